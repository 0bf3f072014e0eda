"""Tests of `training.update`, on a decoder of 30,000 parameters."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized

import tiny_model
import tolerances
from configs import base
from dapo_jax.model import row_layout
from dapo_jax.objective import diagnostics, weighting
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.training import losses, packing, update, update_stats
from dapo_jax.training import optimizer as optimizer_lib

# Responses of 4 prompts, 2 to each, as uneven as can be.
_LENGTHS = (1, 7, 3, 5, 12, 2, 9, 4)
_PROMPT_LENGTHS = (3, 3, 5, 5, 2, 2, 4, 4)
_ADVANTAGES = (1.5, -0.5, -1.0, 0.7, 2.0, -2.0, 0.3, -0.3)
_ROW_TOKENS = 24


class _Sample(NamedTuple):
  """A segment and its advantage."""

  segment: packing.Segment
  advantage: float


class _Minibatch(NamedTuple):
  """Packed samples on a mesh."""

  rows: packing.Rows
  micro_batches: int
  advantage: jax.Array


class _Place(NamedTuple):
  """Over which devices, and how, a minibatch is computed."""

  data: int = 1
  fsdp: int = 1
  tensor: int = 1

  def mesh(self):
    count = self.data * self.fsdp * self.tensor
    return mesh_lib.update_mesh(jax.devices()[:count], **self._asdict())


_ONE = _Place()


class _Programs(NamedTuple):
  old_logprobs: object
  update: object
  optimizer: object
  shardings: update.TrainState


@functools.cache
def _model(place=_ONE, attention='dense'):
  rows = row_layout.RowLayout(attention, place.mesh(), interpret=True)
  # 64 rows, so that two devices can share them.
  return tiny_model.model(vocab_rows=64, rows=rows)


@functools.cache
def _params(seed=0):
  return tiny_model.params(_model(), seed=seed)


@functools.cache
def _old_params():
  """Returns weights so near that some ratios are clipped, others not."""
  return jax.tree.map(lambda p, n: p + 0.1 * n, _params(), _params(seed=1))


@functools.cache
def _policy_loss():
  return losses.policy_loss(ml_collections.FrozenConfigDict(base.get_config()))


@functools.cache
def _every_term():
  """Returns a loss with a divergence, an entropy bonus and a correction."""
  config = base.get_config()
  config.objective.kl_coef = 0.5
  config.objective.entropy_coef = 0.1
  config.objective.sampler_correction = 'sequence_truncate'
  return losses.policy_loss(ml_collections.FrozenConfigDict(config))


def _given_loss(tokens):
  """A token's loss is its advantage, so that a test can choose it."""
  return tokens.advantage, diagnostics.empty()


@functools.cache
def _programs(
  place=_ONE,
  *,
  token_loss=None,
  chain=None,
  temperature=1.0,
  entropy=False,
  attention='dense',
) -> _Programs:
  """Returns compiled programs, the same for all tests of one setting.

  The default optimizer's state is the gradient, and it moves nothing.
  """
  chain = chain or optax.trace(decay=0.0)
  shardings = update.state_shardings(_model(), chain, place.mesh())
  forward = update.Forward(_model(place, attention), temperature, 64)
  return _Programs(
    update.make_old_logprobs(forward),
    update.make_update(
      forward,
      token_loss or _policy_loss(),
      chain,
      shardings,
      entropy=entropy,
    ),
    chain,
    shardings,
  )


def _state(programs, params=None) -> update.TrainState:
  params = jax.tree.map(jnp.array, params or _params())
  params = jax.device_put(params, programs.shardings.params)
  return update.init_state(params, programs.optimizer, programs.shardings)


def _segments(mode='token_mean', *, lengths=_LENGTHS, advantages=_ADVANTAGES):
  rng = np.random.default_rng(7)
  tokens = lambda n: rng.integers(1, 61, size=n).astype(np.int32)
  prompts = [tokens(n) for n in _PROMPT_LENGTHS[: len(lengths)]]
  weights = weighting.token_weights(
    np.array(lengths),
    np.arange(len(lengths)) // 2,
    mode=mode,
    max_response_tokens=16,
  )
  return [
    _Sample(
      packing.Segment(
        i, p, tokens(n), -rng.random(n).astype(np.float32), float(w)
      ),
      a,
    )
    for i, (p, n, a, w) in enumerate(
      zip(prompts, lengths, advantages, weights, strict=True)
    )
  ]


def _pack(
  samples, *, rows=2, place=_ONE, row_tokens=_ROW_TOKENS, share=False
) -> _Minibatch:
  packed = packing.pack(
    [s.segment for s in samples],
    row_tokens=row_tokens,
    micro_batch_rows=rows,
    max_segments=8,
    share_prompts=share,
  )
  advantage = packing.spread(
    [s.advantage for s in samples],
    packed.places,
    shape=packed.rows.tokens.shape,
  )
  rows, advantage = placement.put_rows((packed.rows, advantage), place.mesh())
  return _Minibatch(rows, packed.micro_batches, advantage)


def _behaviour(packed, place=_ONE):
  """Log-probs of a policy that is not quite the one in training."""
  programs = _programs(place)
  old = jax.device_put(_old_params(), programs.shardings.params)
  logp, _ = programs.old_logprobs(old, packed.rows, packed.micro_batches)
  return update.Experience(logp, packed.advantage)


def _real_tokens(packed):
  return int(np.sum(np.asarray(packed.rows.segment_ids) > 0))


def _zeros(packed):
  """Log-probs of 0 under the policy that sampled."""
  return update.Experience(jnp.zeros_like(packed.advantage), packed.advantage)


def _loss_and_gradient(segments, *, attention='dense', **how):
  how = {'rows': 2, 'place': _ONE, 'row_tokens': 24} | how
  place = how['place']
  packed = _pack(segments, **how)
  programs = _programs(place, attention=attention)
  state, stats = programs.update(
    _state(programs),
    packed.rows,
    _behaviour(packed, place),
    packed.micro_batches,
    0.0,
  )
  return jax.device_get((stats, state.opt_state.trace))


def _norm(tree):
  return float(optax.tree.norm(jax.tree.map(jnp.asarray, tree)))


def _relative_gap(a, b):
  return _norm(jax.tree.map(np.subtract, a, b)) / _norm(a)


class _Test(parameterized.TestCase):
  def assert_same_update(self, a, b):
    """Checks loss, gradient and statistics, all but rounding."""
    (stats, grads), (other_stats, other_grads) = a, b
    self.assertGreater(_norm(grads), 0.1)
    self.assertLessEqual(
      _relative_gap(grads, other_grads), tolerances.F32_GRAD_REL
    )
    # A norm of its own for each weight, so that no small one hides.
    for one, other in zip(
      jax.tree.leaves(grads), jax.tree.leaves(other_grads), strict=True
    ):
      gap = np.linalg.norm(one - other) / np.linalg.norm(one)
      self.assertLessEqual(gap, 10 * tolerances.F32_GRAD_REL)
    # The two that are of micro-batches depend on the split by definition.
    for one, other in zip(
      *(
        jax.tree.leaves(
          x._replace(
            ratios=x.ratios._replace(part_count=0, clipped_share_sum=0.0)
          )
        )
        for x in (stats, other_stats)
      ),
      strict=True,
    ):
      np.testing.assert_allclose(one, other, rtol=tolerances.F32_ATOL)

  def assert_trees_equal(self, a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


class SplitTest(_Test):
  """One minibatch is one update, however it is computed."""

  @parameterized.product(mode=weighting.MODES, rows=(1, 4, 8))
  def test_micro_batches_change_nothing(self, mode, rows):
    segments = _segments(mode)
    self.assert_same_update(
      _loss_and_gradient(segments, rows=2),
      _loss_and_gradient(segments, rows=rows),
    )

  @parameterized.product(
    mode=weighting.MODES,
    place=(_Place(fsdp=8), _Place(data=2, fsdp=2, tensor=2)),
  )
  def test_devices_change_nothing(self, mode, place):
    segments = _segments(mode)
    self.assert_same_update(
      _loss_and_gradient(segments, rows=2),
      _loss_and_gradient(segments, rows=8, place=place),
    )

  @parameterized.parameters(16, 80)
  def test_packing_changes_nothing(self, row_tokens):
    segments = _segments()
    self.assert_same_update(
      _loss_and_gradient(segments),
      _loss_and_gradient(segments, row_tokens=row_tokens),
    )

  @parameterized.product(
    row_tokens=(24, 80), place=(_ONE, _Place(fsdp=4, tensor=2))
  )
  def test_sharing_a_prompt_changes_nothing(self, row_tokens, place):
    # Four responses to each of two prompts.
    segments = [
      s._replace(
        segment=s.segment._replace(
          prompt_number=i // 4,
          prompt_tokens=_segments()[i // 4].segment.prompt_tokens,
        )
      )
      for i, s in enumerate(_segments())
    ]
    how = {'row_tokens': row_tokens, 'place': place, 'rows': 4}
    self.assertLess(
      _real_tokens(_pack(segments, share=True, **how)),
      _real_tokens(_pack(segments, **how)),
    )
    self.assert_same_update(
      _loss_and_gradient(segments, **how),
      _loss_and_gradient(segments, share=True, **how),
    )

  def test_order_changes_nothing(self):
    segments = _segments()
    self.assert_same_update(
      _loss_and_gradient(segments),
      _loss_and_gradient([segments[i] for i in (3, 7, 0, 5, 2, 6, 1, 4)]),
    )

  def test_another_minibatch_makes_another_update(self):
    segments = _segments()
    one, other = _loss_and_gradient(segments), _loss_and_gradient(segments[:6])
    self.assertGreater(_relative_gap(one[1], other[1]), 0.1)


@pytest.mark.slow
class AttentionTest(_Test):
  """One update, whichever way attention is computed."""

  @parameterized.parameters('splash', 'chunked')
  def test_it_changes_nothing(self, attention):
    segments = _segments()
    self.assert_same_update(
      _loss_and_gradient(segments, rows=2),
      _loss_and_gradient(
        segments,
        rows=4,
        place=_Place(fsdp=2, tensor=2),
        attention=attention,
      ),
    )


class EveryTermTest(_Test):
  """The same of a loss with all of its terms."""

  def _loss_and_gradient(self, *, rows, place=_ONE, share=False):
    samples = [
      s._replace(
        segment=s.segment._replace(
          prompt_number=i // 2,
          prompt_tokens=_segments()[i // 2].segment.prompt_tokens,
        )
      )
      for i, s in enumerate(_segments())
    ]
    packed = _pack(samples, rows=rows, place=place, share=share)
    programs = _programs(place, token_loss=_every_term(), entropy=True)
    at = lambda params: programs.old_logprobs(
      jax.device_put(params, programs.shardings.params),
      packed.rows,
      packed.micro_batches,
    )[0]
    known = update.Experience(
      at(_old_params()), packed.advantage, at(_params(seed=2))
    )
    state, stats = programs.update(
      _state(programs), packed.rows, known, packed.micro_batches, 0.0
    )
    return jax.device_get((stats, state.opt_state.trace))

  def test_micro_batches_and_devices_change_nothing(self):
    whole = self._loss_and_gradient(rows=8)
    for how in (
      {'rows': 1},
      {'rows': 2, 'share': True},
      {'rows': 2, 'place': _Place(fsdp=2)},
      {'rows': 4, 'place': _Place(data=2, tensor=2)},
      {'rows': 8, 'place': _Place(fsdp=4, tensor=2)},
    ):
      self.assert_same_update(whole, self._loss_and_gradient(**how))

  def test_each_term_moves_it(self):
    plain = _loss_and_gradient(_segments())
    every = self._loss_and_gradient(rows=2)
    self.assertGreater(_relative_gap(plain[1], every[1]), 0.05)


class PlainFormulaTest(_Test):
  """The same update worked out one response at a time, without packing."""

  def _expected(self, samples, temperature):
    def logp(params, s):
      sequence = np.concatenate([s.prompt_tokens, s.response_tokens])
      hidden = tiny_model.hidden(_model(), params, sequence[None, :-1])
      logits = tiny_model.module(_model(), params).logits(hidden)[0]
      logp = jax.nn.log_softmax(logits / temperature)
      # Token t of the response is predicted at place prompt + t - 1.
      first = len(s.prompt_tokens) - 1
      return jnp.stack(
        [logp[first + t, token] for t, token in enumerate(s.response_tokens)]
      )

    def loss(params):
      total = 0.0
      for s, advantage in samples:
        r = jnp.exp(logp(params, s) - logp(_old_params(), s))
        clipped = jnp.clip(r, 0.8, 1.28)
        gain = jnp.minimum(r * advantage, clipped * advantage)
        total -= s.token_weight * gain.sum()
      return total

    return jax.jit(jax.value_and_grad(loss))(_params())

  @parameterized.parameters(1.0, 0.6)
  def test_loss_and_gradient_equal_the_formula(self, temperature):
    segments = _segments('sequence_mean')[:4]
    packed = _pack(segments)
    programs = _programs(temperature=temperature)
    logp_old, _ = programs.old_logprobs(
      _old_params(), packed.rows, packed.micro_batches
    )
    known = update.Experience(logp_old, packed.advantage)
    state, stats = programs.update(
      _state(programs), packed.rows, known, packed.micro_batches, 0.0
    )
    loss, grads = self._expected(segments, temperature)
    self.assertGreater(int(stats.ratios.clipped_high_count), 0)
    self.assertGreater(int(stats.ratios.clipped_low_count), 0)
    np.testing.assert_allclose(stats.loss, loss, rtol=tolerances.F32_ATOL)
    np.testing.assert_allclose(stats.grad_norm, _norm(grads), rtol=1e-5)
    self.assertLessEqual(
      _relative_gap(grads, jax.device_get(state.opt_state.trace)),
      tolerances.F32_GRAD_REL,
    )


class LiteralTest(_Test):
  """DAPO's numbers, through the whole update."""

  def _update(self, *, advantage, ratio):
    segments = _segments(advantages=(advantage,) * 8)
    packed = _pack(segments)
    programs = _programs()
    logp, _ = programs.old_logprobs(
      _params(), packed.rows, packed.micro_batches
    )
    state, stats = programs.update(
      _state(programs),
      packed.rows,
      update.Experience(logp - np.float32(np.log(ratio)), packed.advantage),
      packed.micro_batches,
      0.0,
    )
    return stats, jax.device_get(state.opt_state.trace)

  # The weights of token_mean add up to 1, so the loss is that of a token.
  @parameterized.parameters(
    # advantage, ratio, loss, has a gradient: -min(r A, clip(r, .8, 1.28) A)
    (1.0, 1.5, -1.28, False),
    (-1.0, 0.5, 0.8, False),
    (-1.0, 1.5, 1.5, True),
    (1.0, 0.5, -0.5, True),
    (1.0, 1.2, -1.2, True),
  )
  def test_clipped_loss(self, advantage, ratio, loss, has_gradient):
    stats, grads = self._update(advantage=advantage, ratio=ratio)
    self.assertAlmostEqual(float(stats.loss), loss, delta=1e-5)
    self.assertAlmostEqual(float(stats.ratios.ratio_max), ratio, delta=1e-5)
    if has_gradient:
      self.assertGreater(_norm(grads), 0.1)
    else:
      self.assertEqual(_norm(grads), 0.0)

  def test_old_logprobs_far_away_are_finite(self):
    for ratio in (1e-30, 1e30):
      for advantage in (1.0, -1.0):
        stats, grads = self._update(advantage=advantage, ratio=ratio)
        self.assertTrue(np.isfinite(float(stats.loss)))
        self.assertTrue(np.isfinite(_norm(grads)))

  def _given(self, mode, lengths, losses, *, place=_ONE, rows=2):
    segments = _segments(mode, lengths=lengths, advantages=losses)
    packed = _pack(segments, rows=rows, place=place)
    programs = _programs(place, token_loss=_given_loss)
    _, stats = programs.update(
      _state(programs), packed.rows, _zeros(packed), packed.micro_batches, 0.0
    )
    return float(stats.loss)

  @parameterized.parameters(
    # Two tokens of loss 1 and one of 3: (1 + 1 + 3) / 3, not (1 + 3) / 2.
    ((2, 1), (1.0, 3.0), 5 / 3),
    # Four of loss 1 and one of 5: (4 + 5) / 5, not (1 + 5) / 2.
    ((4, 1), (1.0, 5.0), 9 / 5),
  )
  def test_token_mean_is_over_the_minibatch(self, lengths, losses, loss):
    for rows, place in (
      (1, _ONE),
      (2, _ONE),
      (8, _Place(fsdp=8)),
      (8, _Place(fsdp=4, tensor=2)),
    ):
      found = self._given('token_mean', lengths, losses, place=place, rows=rows)
      self.assertAlmostEqual(found, loss, delta=1e-6)

  @parameterized.parameters(*weighting.MODES)
  def test_losses_of_1_give_a_loss_of_1(self, mode):
    # 'constant' divides 43 tokens by 8 responses of 16; 'only_token_mean' adds
    # the 2 responses of a prompt up.
    self.assertEqual(sum(_LENGTHS), 43)
    others = {'constant': 43 / (8 * 16), 'only_token_mean': 2.0}
    loss = others.get(mode, 1.0)
    for rows, place in ((2, _ONE), (8, _Place(fsdp=8))):
      found = self._given(mode, _LENGTHS, (1.0,) * 8, place=place, rows=rows)
      self.assertAlmostEqual(found, loss, delta=1e-6)

  def test_long_responses_count_by_their_tokens(self):
    # Means 1.0 of 10 tokens, 0.1 of 1000: (10 + 100) / 1010 = 0.108911.
    rng = np.random.default_rng(0)
    tokens = lambda n: rng.integers(1, 61, size=n).astype(np.int32)
    segments = [
      _Sample(
        packing.Segment(n, tokens(3), tokens(n), np.zeros(n, np.float32), w), a
      )
      for n, a, w in ((10, 1.0, 1 / 1010), (1000, 0.1, 1 / 1010))
    ]
    packed = _pack(segments, row_tokens=1024, rows=1)
    self.assertEqual(packed.micro_batches, 1)
    programs = _programs(token_loss=_given_loss)
    _, stats = programs.update(
      _state(programs), packed.rows, _zeros(packed), 1, 0.0
    )
    self.assertAlmostEqual(float(stats.loss), 0.108911, delta=1e-6)


class PaddingTest(_Test):
  @parameterized.parameters(np.nan, 1e4, -1e4, np.inf)
  def test_what_padding_holds_changes_nothing(self, value):
    segments = _segments()
    packed = _pack(segments, rows=4)
    rows = jax.device_get(packed.rows)
    nothing = rows.token_weight == 0
    padding = rows.segment_ids == 0
    self.assertGreater(padding.sum(), 10)
    spoil = lambda x: np.where(nothing, np.float32(value), x)
    spoilt = rows._replace(
      tokens=np.where(padding, 60, rows.tokens),
      targets=np.where(nothing, 59, rows.targets),
      positions=np.where(padding, 11, rows.positions),
      logp_sampler=spoil(rows.logp_sampler),
    )
    programs = _programs()
    known = jax.device_get(_behaviour(packed))
    results = []
    for some_rows, some_known in (
      (rows, known),
      (spoilt, jax.tree.map(spoil, known)),
    ):
      placed, some_known = placement.put_rows(
        (some_rows, some_known), _ONE.mesh()
      )
      logp, rollout = programs.old_logprobs(
        _params(), placed, packed.micro_batches
      )
      state, stats = programs.update(
        _state(programs), placed, some_known, packed.micro_batches, 0.0
      )
      responses = np.where(nothing, 0.0, logp)
      results.append(
        jax.device_get((responses, rollout, stats, state.opt_state.trace))
      )
    self.assertTrue(np.isfinite(_norm(results[0][-1])))
    self.assert_trees_equal(*results)

  def test_micro_batches_beyond_the_count_are_not_computed(self):
    packed = _pack(_segments(), rows=2)
    programs = _programs()
    poison = jax.tree.map(
      lambda x: x.at[packed.micro_batches :].set(1), packed.rows
    )
    one, other = (
      programs.update(
        _state(programs), rows, _zeros(packed),
        packed.micro_batches, 0.0,
      )
      for rows in (packed.rows, poison)
    )  # fmt: skip
    self.assertLess(packed.micro_batches, packed.rows.tokens.shape[0])
    self.assert_trees_equal(
      jax.device_get((one[1], one[0].opt_state)),
      jax.device_get((other[1], other[0].opt_state)),
    )

  def test_all_masked_gives_a_gradient_of_0(self):
    segments = [
      s._replace(segment=s.segment._replace(token_weight=0.0))
      for s in _segments()
    ]
    stats, grads = _loss_and_gradient(segments)
    self.assertEqual(float(stats.loss), 0.0)
    self.assertEqual(float(stats.grad_norm), 0.0)
    self.assertEqual(_norm(grads), 0.0)
    self.assertEqual(int(stats.ratios.token_count), 0)

  def test_no_micro_batch_gives_a_gradient_of_0(self):
    packed = _pack(_segments())
    programs = _programs()
    _, rollout = programs.old_logprobs(_params(), packed.rows, 0)
    state, stats = programs.update(
      _state(programs), packed.rows, _zeros(packed), 0, 0.0
    )
    self.assertEqual(float(rollout.token_count), 0.0)
    self.assertEqual(float(stats.loss), 0.0)
    self.assertEqual(_norm(state.opt_state.trace), 0.0)


@functools.cache
def _adamw():
  return optimizer_lib.adamw(
    b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.1, max_grad_norm=1.0
  )


class TwoUpdatesTest(_Test):
  """Two updates on one rollout, as the loop makes them."""

  def _two(self, *, place=_ONE, rows=2):
    packed = _pack(_segments(), rows=rows, place=place)
    programs = _programs(place, chain=_adamw())
    state = _state(programs)
    logp_old, _ = programs.old_logprobs(
      state.params, packed.rows, packed.micro_batches
    )
    stats = []
    for _ in range(2):
      state, moved = programs.update(
        state,
        packed.rows,
        update.Experience(logp_old, packed.advantage),
        packed.micro_batches,
        1e-2,
      )
      stats.append(jax.device_get(moved))
    return stats, jax.device_get(state)

  def test_first_update_has_ratio_1_and_clips_nothing(self):
    first = self._two()[0][0].ratios
    self.assertEqual(int(first.token_count), sum(_LENGTHS))
    self.assertAlmostEqual(float(first.ratio_max), 1.0, delta=1e-6)
    self.assertAlmostEqual(float(first.ratio_min), 1.0, delta=1e-6)
    found = diagnostics.metrics(first)
    self.assertEqual(found['policy/clipped_high_frac'], 0.0)
    self.assertEqual(found['policy/clipped_low_frac'], 0.0)
    self.assertEqual(found['policy/clipped_dual_frac'], 0.0)

  def test_second_update_has_other_ratios(self):
    second = self._two()[0][1].ratios
    self.assertGreater(float(second.ratio_max), 1.28)
    self.assertLess(float(second.ratio_min), 0.8)
    self.assertGreater(int(second.clipped_high_count), 0)
    self.assertGreater(int(second.clipped_low_count), 0)

  def test_it_raises_the_gain(self):
    stats, _ = self._two()
    self.assertLess(float(stats[1].loss), float(stats[0].loss) - 0.01)

  def test_moments_are_where_their_weights_are(self):
    programs = _programs(_Place(fsdp=8), chain=_adamw())
    state = _state(programs)
    adam = state.opt_state[1]
    for moment in (adam.mu, adam.nu):
      jax.tree.map(
        lambda p, m: self.assertEqual(p.sharding, m.sharding),
        state.params,
        moment,
      )
    # Each device holds an eighth of every matrix.
    q = state.params['block']['q']
    self.assertEqual(q.addressable_shards[0].data.size * 8, q.size)

  def test_the_policy_is_the_same_on_8_devices(self):
    _, one = self._two()
    _, eight = self._two(place=_Place(fsdp=4, tensor=2), rows=8)
    # The moments, not the weights: AdamW's first step is the gradient's sign,
    # which rounding decides where a gradient is 0 but for it.
    self.assertLessEqual(
      _relative_gap(one.opt_state[1].mu, eight.opt_state[1].mu), 1e-4
    )

  def test_the_rate_scales_the_step(self):
    packed = _pack(_segments())
    programs = _programs(chain=_adamw())
    steps = {}
    for lr in (1e-2, 2e-2):
      state, _ = programs.update(
        _state(programs), packed.rows, _behaviour(packed),
        packed.micro_batches, lr,
      )  # fmt: skip
      steps[lr] = jax.tree.map(np.subtract, state.params, _params())
    doubled = jax.tree.map(lambda s: 2 * s, steps[1e-2])
    self.assertLessEqual(_relative_gap(doubled, steps[2e-2]), 1e-4)


class SkipTest(_Test):
  """What is not finite moves nothing."""

  def _updated(self, samples, place=_ONE):
    """Returns the state before and after an update by AdamW, and its stats."""
    chain = _adamw()
    programs = _programs(place, chain=chain)
    packed = _pack(samples, place=place, rows=8 if place.fsdp > 1 else 2)
    state = _state(programs)
    # The moments of a step before, so that there is something to keep.
    behaviour = _behaviour(_pack(_segments(), place=place, rows=8), place)
    first = _pack(_segments(), place=place, rows=8)
    state, _ = programs.update(
      state, first.rows, behaviour, first.micro_batches, 0.1
    )
    before = jax.device_get(state)
    state, stats = programs.update(
      state,
      packed.rows,
      _behaviour(packed, place),
      packed.micro_batches,
      0.1,
    )
    return before, jax.device_get(state), jax.device_get(stats)

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_one_token_that_is_not_finite_leaves_all_as_it_was(self, advantage):
    samples = _segments()
    samples[1] = samples[1]._replace(advantage=advantage)
    before, after, stats = self._updated(samples)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    self.assertTrue(stats.is_skipped)
    self.assertTrue(stats.faults[0])

  def test_also_on_8_devices(self):
    samples = _segments()
    samples[1] = samples[1]._replace(advantage=np.nan)
    before, after, stats = self._updated(samples, _Place(fsdp=8))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    self.assertTrue(stats.is_skipped)

  def test_what_is_finite_moves_all_but_is_no_fault(self):
    before, after, stats = self._updated(_segments())
    self.assertFalse(stats.is_skipped)
    self.assertLen(stats.faults, 1 + len(jax.tree.leaves(before.params)))
    moved = jax.tree.map(lambda a, b: np.any(a != b), before, after)
    self.assertTrue(all(jax.tree.leaves(moved)))

  def test_skips_in_a_row_are_counted_wherever_they_are(self):
    for before, skipped, expected in (
      (0, '', (0, 0)),
      (2, '', (2, 0)),
      (2, 'x', (3, 3)),
      (2, '.', (0, 0)),
      # Two of the step before and one, then two, then none.
      (2, 'x.xx.', (0, 3)),
      (0, '.xx', (2, 2)),
    ):
      found = update_stats.skips(before, [mark == 'x' for mark in skipped])
      self.assertEqual(found, expected)

  def test_faults_have_the_names_of_their_leaves(self):
    params = {'embed': np.zeros(2), 'layers': {'q_bias': np.zeros(3)}}
    self.assertEqual(
      update_stats.fault_names(np.array([True, False, True]), params),
      ['the loss', 'layers.q_bias'],
    )
    self.assertEqual(update_stats.fault_names(np.zeros(3, bool), params), [])


class CompilationTest(_Test):
  def test_rates_lengths_and_counts_compile_nothing(self):
    programs = _programs(chain=_adamw())
    state = _state(programs)

    def one(lengths, lr):
      nonlocal state
      segments = _segments(
        lengths=lengths, advantages=_ADVANTAGES[: len(lengths)]
      )
      packed = _pack(segments)
      logp_old, _ = programs.old_logprobs(
        state.params, packed.rows, packed.micro_batches
      )
      state, stats = programs.update(
        state,
        packed.rows,
        update.Experience(logp_old, packed.advantage),
        packed.micro_batches,
        lr,
      )
      jax.block_until_ready(stats)
      return packed.micro_batches

    one(_LENGTHS, 1e-3)
    one(_LENGTHS, 1e-3)
    compiled = []
    listener = lambda name, *_, **__: compiled.append(name)
    jax.monitoring.register_event_duration_secs_listener(listener)
    counts = {
      one((1,), 0.0),
      one((20,) * 8, 2e-3),
      one(_LENGTHS[::-1], 3e-3),
    }
    found = [n for n in compiled if 'compile' in n]
    # What it looks for is there when there is something to compile.
    jax.jit(lambda x: x * 3 + 1)(jnp.arange(7)).block_until_ready()
    self.assertNotEmpty([n for n in compiled if 'compile' in n])
    self.assertLen(counts, 3)
    self.assertEmpty(found)


class OldLogprobsTest(_Test):
  def test_statistics_are_over_response_tokens(self):
    segments = _segments()
    packed = _pack(segments)
    logp, stats = _programs().old_logprobs(
      _params(), packed.rows, packed.micro_batches
    )
    rows, logp = jax.device_get((packed.rows, logp))
    mask = rows.is_response > 0
    logp, sampled = logp[mask], rows.logp_sampler[mask]
    gap = np.abs(logp - sampled)
    self.assertEqual(float(stats.token_count), 43)
    np.testing.assert_allclose(stats.prob_sum, np.exp(logp).sum(), rtol=1e-5)
    np.testing.assert_allclose(stats.gap_sum, gap.sum(), rtol=1e-5)
    np.testing.assert_allclose(stats.gap_max, gap.max(), rtol=1e-6)
    found = update_stats.rollout_metrics([jax.device_get(stats)])
    # No more than that of 61 tokens alike.
    self.assertBetween(found['policy/entropy_nats'], 1.0, np.log(61))

  def test_temperature_is_that_of_the_log_probs(self):
    packed = _pack(_segments())
    cold, _ = _programs(temperature=0.6).old_logprobs(
      _params(), packed.rows, packed.micro_batches
    )
    warm, _ = _programs().old_logprobs(
      _params(), packed.rows, packed.micro_batches
    )
    mask = np.asarray(packed.rows.is_response) > 0
    self.assertGreater(np.abs(cold - warm)[mask].min(), 1e-4)


class SupervisedTest(_Test):
  def test_loss_is_the_mean_negative_log_prob(self):
    packed = _pack(_segments())
    logp, _ = _programs().old_logprobs(
      _params(), packed.rows, packed.micro_batches
    )
    mask = np.asarray(packed.rows.is_response) > 0
    programs = _programs(token_loss=losses.supervised_loss)
    _, stats = programs.update(
      _state(programs),
      packed.rows,
      _zeros(packed),
      packed.micro_batches,
      0.0,
    )
    expected = -np.asarray(logp)[mask].mean()
    self.assertGreater(expected, 1.0)
    self.assertAlmostEqual(float(stats.loss), expected, delta=1e-5)
    self.assertEqual(diagnostics.metrics(stats.ratios), {})


class MetricsTest(absltest.TestCase):
  def _ratios(self, *, tokens, total, high, largest):
    return diagnostics.empty()._replace(
      token_count=np.int32(tokens),
      clipped_high_count=np.int32(high),
      ratio_sum=np.float32(total),
      ratio_max=np.float32(largest),
      ratio_min=np.float32(0.5),
    )

  def test_update_metrics(self):
    f = np.float32
    found = update_stats.update_metrics(
      [
        update_stats.UpdateStats(
          f(-1.0), f(2.0), np.zeros(3, bool),
          self._ratios(tokens=10, total=10.0, high=0, largest=1.0),
        ),
        update_stats.UpdateStats(
          f(0.5), f(4.0), np.zeros(3, bool),
          self._ratios(tokens=30, total=36.0, high=6, largest=3.0),
        ),
      ]
    )  # fmt: skip
    self.assertEqual(found['policy/loss'], -0.25)
    self.assertEqual(found['optim/grad_norm'], 3.0)
    self.assertEqual(found['optim/update_count'], 2)
    # Over all 40 tokens: (10 + 36) / 40 and 6 / 40, no mean of means.
    self.assertAlmostEqual(found['policy/ratio_mean'], 1.15)
    self.assertAlmostEqual(found['policy/clipped_high_frac'], 0.15)
    self.assertEqual(found['policy/ratio_max'], 3.0)

  def test_updates_that_moved_nothing_are_only_counted(self):
    f = np.float32
    ratios = self._ratios(tokens=10, total=10.0, high=0, largest=1.0)
    good = update_stats.UpdateStats(f(-1.0), f(2.0), np.zeros(3, bool), ratios)
    bad = update_stats.UpdateStats(
      f(np.nan), f(np.inf), np.array([True, False, True]),
      ratios._replace(ratio_sum=f(np.nan)),
    )  # fmt: skip
    found = update_stats.update_metrics([bad, good, bad])
    expected = update_stats.update_metrics([good])
    self.assertEqual(expected['optim/skipped_update_count'], 0)
    self.assertEqual(found, expected | {'optim/skipped_update_count': 2})
    self.assertEqual(
      update_stats.update_metrics([bad]),
      {'optim/update_count': 0, 'optim/skipped_update_count': 1},
    )

  def test_rollout_metrics(self):
    stats = lambda *values: update_stats.RolloutStats(*map(np.float32, values))
    found = update_stats.rollout_metrics(
      # tokens, entropy, probability, gap, largest gap
      [stats(10, 5.0, 4.0, 0.1, 0.02), stats(30, 25.0, 24.0, 0.3, 0.01)]
    )
    self.assertAlmostEqual(found['policy/entropy_nats'], 30 / 40)
    self.assertAlmostEqual(found['policy/mean_prob'], 28 / 40)
    self.assertAlmostEqual(
      found['policy/sampler_gap_mean_nats'], 0.4 / 40, places=6
    )
    self.assertAlmostEqual(found['policy/sampler_gap_max_nats'], 0.02, places=6)

  def test_a_step_without_updates_has_no_made_up_numbers(self):
    self.assertEqual(
      update_stats.update_metrics([]),
      {'optim/update_count': 0, 'optim/skipped_update_count': 0},
    )
    self.assertEqual(update_stats.rollout_metrics([]), {})

  def test_losses_of_two_parts_are_those_of_the_whole(self):
    stats = [
      update_stats.UpdateStats(
        np.float32(loss), np.float32(1.0), np.array([is_bad]), None
      )
      for loss, is_bad in ((0.1, False), (np.nan, True), (0.2, False), (0.7, 0))
    ]
    whole = update_stats.add_losses({}, stats)
    for end in range(5):
      part = update_stats.add_losses({}, stats[:end])
      self.assertEqual(update_stats.add_losses(part, stats[end:]), whole)
    # (0.1 + 0.2 + 0.7) / 3.
    found = update_stats.loss_metrics(whole)
    self.assertAlmostEqual(found.pop('sft/loss'), 1 / 3, places=6)
    self.assertEqual(found, {'optim/skipped_update_count': 1})
    nothing = update_stats.add_losses({}, stats[1:2])
    self.assertEqual(
      update_stats.loss_metrics(nothing), {'optim/skipped_update_count': 1}
    )
    self.assertEqual(update_stats.loss_metrics({}), {})


if __name__ == '__main__':
  absltest.main()

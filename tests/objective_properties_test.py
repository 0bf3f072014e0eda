"""Properties of the objective under any split, order and extreme of its inputs.

What one test shows at a few places is shown here at random ones: that no split
or order of a minibatch changes its loss, and that no log-prob makes a gradient
infinite or gives one to a token that must have none.
"""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

import tolerances
from dapo_jax.objective import clip, divergence, weighting
from dapo_jax.objective import ratio as ratio_lib
from dapo_jax.objective import surrogate as surrogate_lib

_PROPERTY = hypothesis.settings(
  max_examples=50, deadline=None, derandomize=True, database=None
)
_EXTREMES = hypothesis.settings(_PROPERTY, max_examples=15)


@st.composite
def _minibatches(draw):
  """Ragged losses of responses, their prompts and which are kept."""
  count = draw(st.integers(1, 12))
  lengths = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
  ids = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
  keep = draw(st.lists(st.booleans(), min_size=count, max_size=count))
  rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  return [rng.normal(size=n) for n in lengths], np.array(ids), np.array(keep)


def _contributions(rows, ids, keep, mode, count_masked):
  """What each response adds to the loss."""
  weights = weighting.token_weights(
    np.array([len(row) for row in rows]),
    ids,
    mode=mode,
    max_response_tokens=64,
    keep=keep,
    count_masked=count_masked,
  )
  return weights, [w * row for w, row in zip(weights, rows, strict=True)]


class WeightedSumTest(parameterized.TestCase):
  @parameterized.product(mode=weighting.MODES, count_masked=(False, True))
  @_PROPERTY
  @hypothesis.given(batch=_minibatches(), seed=st.integers(0, 2**32 - 1))
  def test_any_split_adds_up_to_the_whole(
    self, mode, count_masked, batch, seed
  ):
    _, parts = _contributions(*batch, mode, count_masked)
    tokens = np.concatenate(parts)
    rng = np.random.default_rng(seed)
    micro_batch = rng.integers(0, 5, size=len(tokens))
    split = sum(tokens[micro_batch == m].sum() for m in range(5))
    self.assertAlmostEqual(split, tokens.sum(), delta=tolerances.F64)

  @parameterized.product(mode=weighting.MODES, count_masked=(False, True))
  @_PROPERTY
  @hypothesis.given(batch=_minibatches(), seed=st.integers(0, 2**32 - 1))
  def test_any_order_gives_the_same_weights(
    self, mode, count_masked, batch, seed
  ):
    rows, ids, keep = batch
    order = np.random.default_rng(seed).permutation(len(rows))
    # Other names of the prompts change nothing either.
    names = np.array(['d', 'a', 'c', 'b'])[ids]
    weights, parts = _contributions(rows, ids, keep, mode, count_masked)
    moved, moved_parts = _contributions(
      [rows[i] for i in order], names[order], keep[order], mode, count_masked
    )
    np.testing.assert_allclose(moved, weights[order], rtol=tolerances.F64)
    self.assertAlmostEqual(
      sum(part.sum() for part in moved_parts),
      sum(part.sum() for part in parts),
      delta=tolerances.F64,
    )

  @parameterized.product(mode=weighting.MODES, count_masked=(False, True))
  @_PROPERTY
  @hypothesis.given(batch=_minibatches())
  def test_masked_and_empty_responses_weigh_nothing(
    self, mode, count_masked, batch
  ):
    rows, _, keep = batch
    weights, _ = _contributions(*batch, mode, count_masked)
    there = keep & np.array([len(row) > 0 for row in rows])
    np.testing.assert_array_equal(weights > 0, there)

  @parameterized.parameters(
    'token_mean', 'group_token_mean', 'sequence_mean', 'constant'
  )
  @_PROPERTY
  @hypothesis.given(batch=_minibatches())
  def test_weights_of_a_mean_add_up_to_at_most_one(self, mode, batch):
    rows, ids, keep = batch
    ones = [np.ones_like(row) for row in rows]
    for count_masked in (False, True):
      _, parts = _contributions(ones, ids, keep, mode, count_masked)
      total = sum(part.sum() for part in parts)
      self.assertLessEqual(total, 1 + tolerances.F64)
      there = any(len(row) for row, k in zip(rows, keep, strict=True) if k)
      if mode != 'constant' and there and not count_masked:
        self.assertAlmostEqual(total, 1.0, delta=tolerances.F64)


_TOKENS = 12
_RATIOS = ('token', 'sequence')
_BOUNDS = ('fixed', 'dynamic')
_SURROGATES = ('clipped', 'dual', 'cispo')
_DIVERGENCES = (None, *divergence.ESTIMATORS)


@functools.cache
def _gradients(ratio_kind, bounds_kind, surrogate_kind, estimator, through):
  """Returns the compiled policy loss with its gradient and flags.

  The loss of each token is chosen before the sum, as in the update.
  """

  def loss(logp, logp_old, logp_ref, advantage, segment_ids):
    counts = segment_ids > 0
    if ratio_kind == 'token':
      logp, logp_old, logp_ref, advantage = (
        jnp.where(counts, x, 0.0) for x in (logp, logp_old, logp_ref, advantage)
      )
      ratio = ratio_lib.token_ratio(logp, logp_old)
    else:
      # It keeps padding away by itself; the others are given no padding.
      ratio = ratio_lib.sequence_ratio(logp, logp_old, segment_ids, _TOKENS)
      logp, logp_old, logp_ref, advantage = (
        jnp.where(counts, x, 0.0) for x in (logp, logp_old, logp_ref, advantage)
      )
    if bounds_kind == 'fixed':
      low, high = clip.fixed_bounds(0.2, 0.28)
    else:
      low, high = clip.dac_bounds(logp_old)
    if surrogate_kind == 'cispo':
      s = surrogate_lib.cispo(logp, ratio, advantage, low, high)
    else:
      dual_clip = 10.0 if surrogate_kind == 'dual' else None
      s = surrogate_lib.clipped_surrogate(
        ratio, advantage, low, high, dual_clip=dual_clip
      )
    losses = s.loss
    if estimator:
      losses += 0.01 * divergence.kl(
        logp, logp_ref, estimator=estimator, straight_through=through
      )
    return jnp.sum(jnp.where(counts, losses, 0.0)), s

  return jax.jit(jax.value_and_grad(loss, has_aux=True))


def _log_probs():
  """Log-probs from certain down to e^-100, moved by up to 200 nats."""
  old = st.sampled_from([0.0, -1e-6, -0.4, -3.0, -50.0, -87.0, -99.0, -100.0])
  move = st.one_of(
    st.sampled_from([0.0, 1e-7, -0.3, 0.3, 2.5, -39.9, 40.0, 41.0, 88.8]),
    st.sampled_from([-200.0, 200.0]),
    st.floats(-200.0, 200.0, width=32),
  )
  return st.tuples(old, move, move)


@st.composite
def _extremes(draw):
  tokens = draw(st.lists(_log_probs(), min_size=_TOKENS, max_size=_TOKENS))
  ids = draw(st.lists(st.integers(0, 3), min_size=_TOKENS, max_size=_TOKENS))
  advantages = draw(
    st.lists(
      st.sampled_from([-3.75, -1.0, 0.0, 1.0, 3.75]),
      min_size=_TOKENS,
      max_size=_TOKENS,
    )
  )
  junk = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e30, 0.0]))
  old, move, move_ref = np.array(tokens, np.float32).T
  ids, advantage = np.array(ids, np.int32), np.array(advantages, np.float32)
  logp, logp_ref = old + move, old + move_ref
  return (
    *(
      np.where(ids > 0, x, np.float32(junk))
      for x in (logp, old, logp_ref, advantage)
    ),
    ids,
  )


class ExtremeTest(parameterized.TestCase):
  @parameterized.product(
    ratio=_RATIOS, bounds=_BOUNDS, surrogate=_SURROGATES, estimator=_DIVERGENCES
  )
  @_EXTREMES
  @hypothesis.given(inputs=_extremes(), through=st.booleans())
  def test_gradients_are_finite_and_zero_where_they_must_be(
    self, ratio, bounds, surrogate, estimator, inputs, through
  ):
    run = _gradients(
      ratio, bounds, surrogate, estimator, bool(estimator) and through
    )
    (loss, s), gradient = run(*map(jnp.asarray, inputs))
    self.assertEqual(gradient.dtype, jnp.float32)
    self.assertTrue(np.isfinite(loss))
    self.assertTrue(np.isfinite(gradient).all())
    ids = inputs[-1]
    np.testing.assert_array_equal(gradient[ids == 0], 0.0)
    if estimator is None and surrogate != 'cispo':
      clipped = s.clipped_high | s.clipped_low | s.clipped_dual
      np.testing.assert_array_equal(gradient[clipped], 0.0)
    if estimator is None:
      nothing = inputs[3] == 0.0
      np.testing.assert_array_equal(gradient[nothing], 0.0)

  def test_the_extremes_are_clipped_and_are_not(self):
    # What the property finds nothing wrong with does occur.
    seen = set()

    @_PROPERTY
    @hypothesis.given(inputs=_extremes())
    def look(inputs):
      (_, s), gradient = _gradients('token', 'dynamic', 'dual', None, False)(
        *map(jnp.asarray, inputs)
      )
      for name, flags in s._asdict().items():
        if name != 'loss' and flags.any():
          seen.add(name)
      if (gradient != 0.0).any():
        seen.add('gradient')
      if (inputs[-1] == 0).any():
        seen.add('padding')

    look()
    self.assertEqual(
      seen,
      {'clipped_high', 'clipped_low', 'clipped_dual', 'gradient', 'padding'},
    )


if __name__ == '__main__':
  absltest.main()

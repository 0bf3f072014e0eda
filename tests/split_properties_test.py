"""The gradient of a minibatch is the same however its tokens are laid out.

At random minibatches, in float64: every objective and every aggregation, over
packed rows of any length, micro-batches of any size, any order of responses.
What a model does between parameters and log-probs is linear in the gradient of
the log-probs, so it is these that are compared, token by token.
"""

import functools

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

import tolerances
from configs import base
from dapo_jax.objective import weighting
from dapo_jax.training import losses, packing

_PROPERTY = settings(
  max_examples=15, deadline=None, derandomize=True, database=None
)
_OBJECTIVES = {
  'dapo': {},
  'dcpo': {'bounds': 'dac', 'dual_clip': 10.0},
  'gspo': {'ratio': 'sequence', 'clip_low': 3e-4, 'clip_high': 4e-4},
  'cispo': {'surrogate': 'cispo'},
  'every_term': {
    'kl_coef': 0.1,
    'entropy_coef': 0.01,
    'sampler_correction': 'sequence_truncate',
  },
}


@st.composite
def _minibatches(draw):
  """Returns lengths of responses and a number that all else follows from."""
  lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=10))
  return lengths, draw(st.integers(0, 2**32 - 1))


@st.composite
def _layouts(draw):
  """Returns row length, rows of a micro-batch, seed of the order, sharing."""
  return (
    # Few, since each compiles.
    *draw(st.sampled_from([(16, 1), (40, 2), (24, 4)])),
    draw(st.integers(0, 2**32 - 1)),
    draw(st.booleans()),
  )


def _make(lengths, seed, mode):
  """Returns segments and, for each, its float64 tokens by field."""
  rng = np.random.default_rng(seed)
  groups = np.arange(len(lengths)) // 3
  weights = weighting.token_weights(
    np.array(lengths), groups, mode=mode, max_response_tokens=12
  )
  prompts = [rng.integers(1, 9, 4).astype(np.int32) for _ in set(groups)]
  segments = [
    packing.Segment(
      int(g),
      prompts[g],
      rng.integers(1, 9, n).astype(np.int32),
      np.zeros(n, np.float32),
      float(w),
    )
    for g, n, w in zip(groups, lengths, weights, strict=True)
  ]
  old = [-rng.exponential(2.0, n) for n in lengths]
  values = {
    'logp_old': old,
    'advantage': [np.full(n, rng.normal()) for n in lengths],
    'entropy': [rng.random(n) for n in lengths],
  }
  for name, scale in (('logp', 0.4), ('logp_sampler', 0.1), ('logp_ref', 0.3)):
    values[name] = [x + scale * rng.normal(size=len(x)) for x in old]
  return segments, values


def _gradient(segments, values, micro_loss, layout):
  """Returns the loss, and its gradient by each token's log-prob."""
  row_tokens, rows, seed, share = layout
  order = np.random.default_rng(seed).permutation(len(segments))
  packed = packing.pack(
    [segments[i] for i in order],
    row_tokens=row_tokens,
    micro_batch_rows=rows,
    max_segments=len(segments),
    share_prompts=share,
  )
  shape = packed.rows.tokens.shape
  spread = lambda x: _spread64([x[i] for i in order], packed.places, shape)
  fields = {name: spread(x) for name, x in values.items()}
  # In float64 here; rows hold float32.
  weight = spread(
    [np.full(len(s.response_tokens), s.token_weight) for s in segments]
  )
  counts = packed.rows.token_weight > 0
  ids = np.where(counts, packed.rows.segment_ids, 0)
  total, grads = 0.0, np.zeros(shape)
  for m in range(packed.micro_batches):
    tokens = losses.Tokens(
      **{name: x[m] for name, x in fields.items()},
      counts=counts[m],
      segment_ids=ids[m],
    )
    one, grads[m] = micro_loss(tokens.logp, tokens, weight[m])
    total += float(one)
  found = packing.take(grads, packed.places)
  return total, [found[list(order).index(i)] for i in range(len(segments))]


def _spread64(values, places, shape):
  """Returns what `packing.spread` does, in float64."""
  flat = np.zeros((shape[0] * shape[1], shape[2]))
  for value, (row, begin, n) in zip(values, places, strict=True):
    flat[row, begin : begin + n] = value
  return flat.reshape(shape)


@functools.cache
def _micro_loss(objective):
  """Returns the jitted loss of a micro-batch and its gradient by `logp`."""
  config = base.get_config()
  for name, value in _OBJECTIVES[objective].items():
    config.objective[name] = value
  token_loss = losses.policy_loss(ml_collections.FrozenConfigDict(config))

  def micro_loss(logp, tokens, weight):
    tokens = jax.tree.map(jnp.asarray, tokens._replace(logp=logp))
    loss, _ = token_loss(tokens)
    return jnp.sum(loss * weight)

  return jax.jit(jax.value_and_grad(micro_loss))


class LayoutTest(parameterized.TestCase):
  @parameterized.product(objective=sorted(_OBJECTIVES), mode=weighting.MODES)
  def test_layout_changes_no_gradient(self, objective, mode):
    micro_loss = _micro_loss(objective)

    @_PROPERTY
    @given(_minibatches(), _layouts(), _layouts())
    def check(minibatch, one, other):
      segments, values = _make(*minibatch, mode)
      loss, grads = _gradient(segments, values, micro_loss, one)
      other_loss, other_grads = _gradient(segments, values, micro_loss, other)
      self.assertGreater(np.abs(np.concatenate(grads)).max() + abs(loss), 0)
      np.testing.assert_allclose(loss, other_loss, rtol=0, atol=tolerances.F64)
      for a, b in zip(grads, other_grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerances.F64)

    with jax.enable_x64(True):
      check()


if __name__ == '__main__':
  absltest.main()

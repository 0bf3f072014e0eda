"""Tests of `model.attention`."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.experimental.pallas.ops.tpu import ragged_paged_attention

import tolerances
from dapo_jax.model import attention, kv_cache


def _random(*shape, seed):
  noise = np.random.default_rng(seed).standard_normal(shape)
  return jnp.asarray(noise, jnp.float32)


def _one_by_one(q, k, v, segment_ids, *, window_tokens=99):
  """Attention in float64, each query and head by itself."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  rows, length, heads, head_dim = q.shape
  per_kv_head = heads // k.shape[2]
  out = np.zeros(q.shape)
  for r, t, n in np.ndindex(rows, length, heads):
    near = range(max(0, t - window_tokens + 1), t + 1)
    seen = [u for u in near if segment_ids[r, u] == segment_ids[r, t]]
    kv = n // per_kv_head
    scores = k[r, seen, kv] @ q[r, t, n] / np.sqrt(head_dim)
    weights = np.exp(scores - scores.max())
    out[r, t, n] = weights / weights.sum() @ v[r, seen, kv]
  return out


class AttentionTest(parameterized.TestCase):
  def test_two_tokens_by_hand(self):
    # H = 4, so scores are halved: q . k = (0, 2 ln 3) -> (0, ln 3), weights
    # 1/4 and 3/4; values 0 and 4 -> 3. The first token sees only itself.
    q = jnp.full((1, 2, 1, 4), 1.0).at[..., 1:].set(0.0)
    k = jnp.zeros((1, 2, 1, 4)).at[0, 1, 0, 0].set(2 * np.log(3.0))
    v = jnp.zeros((1, 2, 1, 4)).at[0, 1].set(4.0)
    out = attention.attention(q, k, v, segment_ids=jnp.ones((1, 2), int))
    np.testing.assert_allclose(out[0, :, 0, 0], [0, 3], rtol=1e-6)

  @parameterized.parameters(1, 2)
  def test_equals_one_query_at_a_time(self, kv_heads):
    q = _random(2, 9, 4, 8, seed=0)
    k = _random(2, 9, kv_heads, 8, seed=1)
    v = _random(2, 9, kv_heads, 8, seed=2)
    segment_ids = np.array(
      [[1, 1, 1, 2, 2, 2, 2, 0, 0], [1, 2, 2, 2, 2, 2, 3, 3, 3]]
    )
    out = attention.attention(q, k, v, segment_ids=jnp.asarray(segment_ids))
    np.testing.assert_allclose(
      out, _one_by_one(q, k, v, segment_ids), atol=tolerances.F32_ATOL
    )

  @parameterized.parameters(1, 3, 9)
  def test_a_window_ends_the_view_backwards(self, window_tokens):
    q, k, v = (_random(2, 9, 2, 8, seed=s) for s in range(3))
    segment_ids = np.array(
      [[1, 1, 1, 1, 1, 1, 1, 0, 0], [1, 2, 2, 2, 2, 2, 3, 3, 3]]
    )
    out = attention.attention(
      q,
      k,
      v,
      segment_ids=jnp.asarray(segment_ids),
      window_tokens=window_tokens,
    )
    expected = _one_by_one(q, k, v, segment_ids, window_tokens=window_tokens)
    np.testing.assert_allclose(out, expected, atol=tolerances.F32_ATOL)

  def test_a_window_counts_positions_not_places(self):
    # The third token stands at position 5, four after the second: a window of
    # 4 holds itself alone, one of 5 the second as well.
    q, k, v = (_random(1, 3, 2, 8, seed=s) for s in range(3))
    see = lambda window_tokens: attention.attention(
      q,
      k,
      v,
      segment_ids=jnp.ones((1, 3), int),
      positions=jnp.array([[0, 1, 5]]),
      window_tokens=window_tokens,
    )
    np.testing.assert_allclose(see(4)[0, 2], v[0, 2], rtol=1e-6)
    self.assertGreater(np.abs(see(5)[0, 2] - v[0, 2]).min(), 1e-4)

  def test_a_row_of_padding_is_finite(self):
    q = _random(1, 4, 2, 8, seed=0)
    out = attention.attention(q, q, q, segment_ids=jnp.zeros((1, 4), int))
    self.assertTrue(np.isfinite(out).all())


def _cached(k, v, *, sizes=None):
  """Returns rows [S, C, K, H] as blocks of a cache hold them."""
  ends = np.cumsum(sizes or [k.shape[1]])
  cut = lambda x: [x[:, b:e] for b, e in zip([0, *ends], ends)]  # noqa: B905
  return (
    [jnp.moveaxis(x, 1, 3) for x in cut(k)],
    [jnp.swapaxes(x, 1, 2) for x in cut(v)],
  )


# Compiled once for all tests of a shape.
_insert = jax.jit(kv_cache.insert)


def _int8(k, v, *, sizes=None):
  """Returns rows [S, C, K, H] as blocks of an int8 cache."""
  zeros = lambda x: kv_cache.Quantized(
    jnp.zeros(x.shape, jnp.int8),
    jnp.zeros((*x.shape[:2], x.size // k[:, 0].size), jnp.bfloat16),
  )
  empty = (
    (tuple(map(zeros, blocks)),) for blocks in _cached(k, v, sizes=sizes)
  )
  cache = kv_cache.KVCache(*empty)
  for slot in range(len(k)):
    cache = _insert(
      cache, k[None, slot], v[None, slot], slots=jnp.array([slot])
    )
  return cache.k[0], cache.v[0]


def _as_floats(k_blocks, v_blocks):
  """Returns int8 blocks as float32 ones of the same numbers."""
  scaled = lambda block, axis: (
    block.values * jnp.expand_dims(block.scale.astype(jnp.float32), axis)
  )
  return [scaled(b, 2) for b in k_blocks], [scaled(b, 3) for b in v_blocks]


class ContinuedAttentionTest(parameterized.TestCase):
  @parameterized.parameters(None, 1, 3)
  def test_a_part_is_that_of_the_whole_row(self, window_tokens):
    q = _random(2, 8, 4, 8, seed=0)
    k, v = (_random(2, 8, 2, 8, seed=s) for s in (1, 2))
    whole = attention.attention(
      q,
      k,
      v,
      segment_ids=jnp.ones((2, 8), int),
      window_tokens=window_tokens,
    )
    # Keys after the part may hold anything.
    spoil = lambda x: x.at[:, 6:].set(1e4)
    part = attention.continued_attention(
      q[:, 3:6],
      spoil(k),
      spoil(v),
      q_positions=jnp.arange(3, 6)[None],
      k_positions=jnp.arange(8)[None],
      window_tokens=window_tokens,
    )
    np.testing.assert_allclose(part, whole[:, 3:6], atol=tolerances.F32_ATOL)


class CachedAttentionTest(parameterized.TestCase):
  @parameterized.parameters(1, 2)
  def test_equals_the_whole_row_at_each_slots_position(self, kv_heads):
    q = _random(3, 8, 4, 8, seed=0)
    k = _random(3, 8, kv_heads, 8, seed=1)
    v = _random(3, 8, kv_heads, 8, seed=2)
    rows = attention.attention(q, k, v, segment_ids=jnp.ones((3, 8), int))
    positions = jnp.array([0, 5, 7])
    slots = jnp.arange(3)
    out = attention.cached_attention(
      q[slots, positions], *_cached(k, v), positions=positions
    )
    np.testing.assert_allclose(
      out, rows[slots, positions], atol=tolerances.F32_ATOL
    )

  @parameterized.parameters(1, 3, 8)
  def test_a_window_is_that_of_the_whole_row(self, window_tokens):
    q, k, v = (_random(3, 8, 2, 8, seed=s) for s in range(3))
    rows = attention.attention(
      q,
      k,
      v,
      segment_ids=jnp.ones((3, 8), int),
      window_tokens=window_tokens,
    )
    positions = jnp.array([0, 5, 7])
    slots = jnp.arange(3)
    out = attention.cached_attention(
      q[slots, positions],
      *_cached(k, v),
      positions=positions,
      window_tokens=window_tokens,
    )
    np.testing.assert_allclose(
      out, rows[slots, positions], atol=tolerances.F32_ATOL
    )

  @parameterized.parameters(_cached, _int8)
  def test_entries_beyond_the_position_change_nothing(self, blocks):
    q = _random(1, 4, 8, seed=0)
    k, v = _random(1, 6, 2, 8, seed=1), _random(1, 6, 2, 8, seed=2)
    attend = lambda k, v: attention.cached_attention(
      q, *blocks(k, v), positions=jnp.array([3])
    )
    out = attend(k, v)
    other = attend(k.at[:, 4:].set(1e4), v.at[:, 4:].set(1e4))
    np.testing.assert_array_equal(out, other)
    nearer = attend(k, v.at[:, 3].set(1e4))
    self.assertFalse(np.array_equal(out, nearer))

  @parameterized.parameters(None, 2)
  def test_blocks_change_nothing(self, window_tokens):
    q = _random(3, 4, 8, seed=0)
    k, v = _random(3, 9, 2, 8, seed=1), _random(3, 9, 2, 8, seed=2)
    attend = lambda *sizes: attention.cached_attention(
      q,
      *_cached(k, v, sizes=sizes),
      positions=jnp.array([4, 1, 0]),
      window_tokens=window_tokens,
    )
    for sizes in ((3, 3, 3), (1, 8), (5,), (2, 3)):
      np.testing.assert_allclose(
        attend(*sizes), attend(9), atol=tolerances.F32_ATOL
      )

  @parameterized.product(
    kv_heads=(1, 2), window_tokens=(None, 3), sizes=(None, (4, 3, 2))
  )
  def test_an_int8_cache_is_that_of_its_numbers(
    self, kv_heads, window_tokens, sizes
  ):
    q = _random(3, 4, 8, seed=0)
    k, v = (_random(3, 9, kv_heads, 8, seed=s) for s in (1, 2))
    attend = lambda blocks: attention.cached_attention(
      q,
      *blocks,
      positions=jnp.array([8, 5, 0]),
      window_tokens=window_tokens,
    )
    blocks = _int8(k, v, sizes=sizes)
    np.testing.assert_allclose(
      attend(blocks), attend(_as_floats(*blocks)), atol=tolerances.F32_ATOL
    )

  @parameterized.parameters(None, 3)
  def test_an_int8_cache_is_as_near_as_its_rounding(self, window_tokens):
    q = _random(3, 4, 8, seed=0)
    k, v = (_random(3, 9, 2, 8, seed=s) for s in (1, 2))
    attend = lambda blocks: attention.cached_attention(
      q,
      *blocks,
      positions=jnp.array([8, 5, 0]),
      window_tokens=window_tokens,
    )
    k_blocks, v_blocks = _int8(k, v)
    # No number is off by more than e = half a scale. So no score is by more
    # than d = H^-1/2 sum_h |q_h| e_k, no weight by more than its
    # (exp(2 d) - 1)th part, and no sum of values by more than that of the
    # largest value, and e_v.
    half = lambda block: (
      tolerances.INT8_SCALES * np.max(np.float64(block.scale), axis=(1, 2))
    )
    d = np.abs(q).sum(-1) / np.sqrt(8) * half(k_blocks[0])[:, None]
    largest = np.abs(v).max(axis=(1, 2, 3))[:, None]
    bound = np.expm1(2 * d) * largest + half(v_blocks[0])[:, None]
    off = np.abs(attend((k_blocks, v_blocks)) - attend(_cached(k, v))).max(-1)
    self.assertTrue((off <= bound).all(), (off, bound))

  def test_in_bfloat16_an_int8_cache_is_as_near_as_bfloat16(self):
    q = _random(3, 4, 8, seed=0).astype(jnp.bfloat16)
    k, v = (_random(3, 9, 2, 8, seed=s) for s in (1, 2))
    blocks = _int8(k, v)
    attend = lambda q, blocks: attention.cached_attention(
      q, *blocks, positions=jnp.array([8, 5, 0])
    )
    out = attend(q, blocks)
    exact = attend(q.astype(jnp.float32), _as_floats(*blocks))
    np.testing.assert_allclose(
      out.astype(jnp.float32), exact, atol=tolerances.BF16
    )

  @parameterized.product(
    of_queries=('float32', 'bfloat16'),
    of_cache=('float32', 'bfloat16', 'int8'),
  )
  def test_the_type_is_the_queries_own(self, of_queries, of_cache):
    q = _random(1, 4, 8, seed=0).astype(of_queries)
    k, v = (_random(1, 6, 2, 8, seed=s) for s in (1, 2))
    if of_cache == 'int8':
      blocks = _int8(k, v)
    else:
      blocks = _cached(k.astype(of_cache), v.astype(of_cache))
    out = attention.cached_attention(q, *blocks, positions=jnp.array([3]))
    self.assertEqual(out.dtype, of_queries)


class PagedAttentionTest(parameterized.TestCase):
  @parameterized.product(window_tokens=(None, 5), kv_heads=(1, 2))
  def test_it_is_what_the_kernel_is_a_kernel_for(self, window_tokens, kv_heads):
    q = _random(4, 4, 8, seed=0)
    pages = _random(13, 4, 2 * kv_heads, 8, seed=1)
    order = np.random.default_rng(2).permutation(12).reshape(4, 3)
    table, positions = jnp.asarray(order + 1), jnp.array([0, 3, 4, 11])
    found = attention.paged_attention(
      q,
      pages,
      table=table,
      positions=positions,
      kernel=False,
      window_tokens=window_tokens,
    )
    # In plain operations, and with it the meaning of its arguments.
    wanted = ragged_paged_attention.ref_ragged_paged_attention(
      q,
      pages,
      positions + 1,
      table,
      jnp.arange(5, dtype=jnp.int32),
      jnp.array([4], jnp.int32),
      sm_scale=8**-0.5,
      sliding_window=window_tokens,
    )
    np.testing.assert_allclose(found, wanted, atol=tolerances.F32_ATOL)


if __name__ == '__main__':
  absltest.main()

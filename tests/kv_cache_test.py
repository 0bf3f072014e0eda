"""Tests of `model.kv_cache`."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import tiny_model
import tolerances
from dapo_jax.model import kv_cache
from dapo_jax.parallel import mesh as mesh_lib

# Compiled once for all tests of a shape.
_write_keys = jax.jit(kv_cache.write_keys)
_write_values = jax.jit(kv_cache.write_values)


def _cache(slots, dtype=jnp.float32):
  spec = tiny_model.spec(kv_heads=1, head_dim=2)
  return kv_cache.empty(spec, slots=slots, cache_tokens=5, dtype=dtype)


def _prefix(tokens):
  """Keys 1, 2, ... of L = 2 layers, and values 100 above them."""
  k = jnp.arange(1.0, 1 + 2 * tokens * 2).reshape(2, tokens, 1, 2)
  return k, k + 100


class EmptyTest(parameterized.TestCase):
  @parameterized.parameters(
    (7, (7,)), (255, (255,)), (256, (64,) * 4), (287, (72, 72, 72, 71))
  )
  def test_blocks(self, cache_tokens, sizes):
    self.assertEqual(kv_cache.block_tokens(cache_tokens), sizes)

  @parameterized.parameters(7, 300)
  def test_one_pair_of_buffers_a_layer_and_block(self, entries):
    spec = tiny_model.spec(layers=3, kv_heads=2, head_dim=12)
    cache = kv_cache.empty(
      spec, slots=4, cache_tokens=entries, dtype=jnp.bfloat16
    )
    sizes = kv_cache.block_tokens(entries)
    for layers, shape in (
      (cache.k, lambda c: (4, 2, 12, c)),
      (cache.v, lambda c: (4, 2, c, 12)),
    ):
      self.assertLen(layers, 3)
      for blocks in layers:
        self.assertEqual([b.shape for b in blocks], list(map(shape, sizes)))
        for block in blocks:
          self.assertEqual(block.dtype, jnp.bfloat16)
          self.assertFalse(block.any())

  def test_blocks_of_int8_have_a_scale_an_entry(self):
    spec = tiny_model.spec(layers=1, kv_heads=2, head_dim=12)
    cache = kv_cache.empty(spec, slots=4, cache_tokens=7, dtype='int8')
    for ((block,),), shape in (
      (cache.k, (4, 2, 12, 7)),
      (cache.v, (4, 2, 7, 12)),
    ):
      self.assertEqual(
        (block.values.shape, block.values.dtype), (shape, 'int8')
      )
      self.assertEqual(
        (block.scale.shape, block.scale.dtype), ((4, 2, 7), 'bfloat16')
      )

  def test_int8_takes_about_half_of_bfloat16(self):
    # An entry of H = 128: 128 bytes and a scale of 2, against 2 * 128.
    spec = tiny_model.spec(layers=2, kv_heads=2, head_dim=128)
    size = lambda dtype: sum(
      x.nbytes
      for x in jax.tree.leaves(
        kv_cache.empty(spec, slots=3, cache_tokens=300, dtype=dtype)
      )
    )
    entries = 2 * 2 * 3 * 2 * 300  # k and v, L, S, K, C
    self.assertEqual(size('int8'), entries * 130)
    self.assertEqual(size('bfloat16'), entries * 256)


class PartitionSpecsTest(parameterized.TestCase):
  @parameterized.parameters('float32', 'int8')
  def test_slots_and_heads_are_split_and_nothing_else(self, dtype):
    mesh = mesh_lib.engine_mesh(jax.devices()[:8], tensor=2)
    spec = tiny_model.spec(layers=3, kv_heads=2, head_dim=12)
    empty = lambda: kv_cache.empty(spec, slots=8, cache_tokens=300, dtype=dtype)
    specs = kv_cache.partition_specs(
      jax.eval_shape(empty),
      slots=mesh_lib.SLOT_AXIS,
      heads=mesh_lib.ENGINE_RULES['kv_heads'],
    )
    where = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    cache = jax.jit(empty, out_shardings=where)()
    # [S 8, K 2, ...] over 4 x 2 devices.
    for x in jax.tree.leaves(cache):
      shard = x.addressable_shards[0].data.shape
      self.assertEqual(shard, (2, 1, *x.shape[2:]))

  def test_heads_may_stay_whole(self):
    specs = kv_cache.partition_specs(
      jax.eval_shape(lambda: _cache(4, 'int8')), slots='s', heads=None
    )
    block = kv_cache.Quantized(P('s', None, None, None), P('s', None, None))
    self.assertEqual(specs, kv_cache.KVCache(*(((block,),) * 2,) * 2))


def _entries(cache):
  """Returns (keys, values) as arrays [L, S, C, K, H]."""
  join = lambda layers, axis: np.stack(
    [np.concatenate(blocks, axis=axis) for blocks in layers]
  )
  return (
    np.moveaxis(join(cache.k, 3), 4, 2),
    np.swapaxes(join(cache.v, 2), 2, 3),
  )


def _two_blocks(slots, dtype=jnp.float32):
  """Returns a cache of 1 layer in blocks of 3 and 2 entries."""

  def zeros(*shape, entries):
    values = jnp.zeros((slots, 1, *shape), dtype)
    if dtype == jnp.float32:
      return values
    scale = jnp.zeros((slots, 1, entries), jnp.bfloat16)
    return kv_cache.Quantized(values, scale)

  return kv_cache.KVCache(
    ((zeros(2, 3, entries=3), zeros(2, 2, entries=2)),),
    ((zeros(3, 2, entries=3), zeros(2, 2, entries=2)),),
  )


class WriteTest(parameterized.TestCase):
  def _written(self, cache, positions):
    """Returns entries after writing 1 2, 3 4, ... and 100 above them."""
    slots = len(positions)
    new = jnp.arange(1.0, 1 + 2 * slots).reshape(slots, 1, 2)
    positions = jnp.array(positions)
    written = kv_cache.KVCache(
      (kv_cache.write_keys(cache.k[0], new, positions=positions),),
      (kv_cache.write_values(cache.v[0], new + 100, positions=positions),),
    )
    keys, values = _entries(written)
    return keys[0], values[0]

  @parameterized.parameters(_cache, _two_blocks)
  def test_each_slot_is_written_at_its_own_position(self, make):
    keys, values = self._written(make(4), [4, 0, 2, 3])
    expected = np.zeros((4, 5, 1, 2))
    expected[0, 4], expected[1, 0] = [[1, 2]], [[3, 4]]
    expected[2, 2], expected[3, 3] = [[5, 6]], [[7, 8]]
    np.testing.assert_array_equal(keys, expected)
    np.testing.assert_array_equal(
      values, np.where(expected > 0, expected + 100, 0)
    )

  @parameterized.parameters(_cache, _two_blocks)
  def test_a_position_beyond_the_cache_is_dropped(self, make):
    for entries in self._written(make(2), [5, 1]):
      self.assertFalse(entries[0].any())
      self.assertTrue(entries[1, 1].all())

  @parameterized.parameters(jnp.float32, jnp.int8)
  def test_on_a_mesh_no_device_asks_another(self, dtype):
    mesh = mesh_lib.engine_mesh(jax.devices()[:8], tensor=2)
    split = lambda *axes: NamedSharding(mesh, P(mesh_lib.SLOT_AXIS, *axes))
    heads = mesh_lib.ENGINE_RULES['kv_heads']
    spec = tiny_model.spec(layers=1, kv_heads=2, head_dim=12)
    cache = kv_cache.empty(spec, slots=8, cache_tokens=300, dtype=dtype)
    specs = kv_cache.partition_specs(
      cache, slots=mesh_lib.SLOT_AXIS, heads=heads
    )
    cache, new, positions = jax.device_put(
      (cache, jnp.ones((8, 2, 12)), jnp.arange(8)),
      (
        jax.tree.map(lambda p: NamedSharding(mesh, p), specs),
        split(heads),
        split(),
      ),
    )
    for write, (blocks,) in (
      (_write_keys, cache.k),
      (_write_values, cache.v),
    ):
      program = write.lower(blocks, new, positions=positions).compile()
      for collective in ('all-gather', 'all-reduce', 'permute', 'all-to-all'):
        self.assertNotIn(collective, program.as_text())


class InsertTest(parameterized.TestCase):
  @parameterized.parameters(2, 3, 4, 5)
  def test_one_prompt_goes_to_several_slots_and_no_other(self, tokens):
    k, v = _prefix(tokens)
    for cache, layers in ((_cache(4), 2), (_two_blocks(4), 1)):
      out = kv_cache.insert(
        cache, k[:layers], v[:layers], slots=jnp.array([3, 1])
      )
      for found, prefix in zip(_entries(out), (k, v), strict=True):
        for slot in (1, 3):
          np.testing.assert_array_equal(
            found[:, slot, :tokens], prefix[:layers]
          )
          self.assertFalse(found[:, slot, tokens:].any())
        self.assertFalse(found[:, [0, 2]].any())

  def test_slot_numbers_beyond_the_last_are_dropped(self):
    k, v = _prefix(3)
    wanted = kv_cache.insert(_cache(4), k, v, slots=jnp.array([2]))
    padded = kv_cache.insert(_cache(4), k, v, slots=jnp.array([4, 2, 9]))
    for a, b in zip(_entries(wanted), _entries(padded), strict=True):
      np.testing.assert_array_equal(a, b)

  def test_what_a_slot_held_beyond_the_prompt_stays(self):
    k, v = _prefix(4)
    full = kv_cache.insert(_cache(2), k, v, slots=jnp.array([0]))
    out = kv_cache.insert(
      full, k[:, :2] + 50, v[:, :2] + 50, slots=jnp.array([0])
    )
    keys, values = _entries(out)
    np.testing.assert_array_equal(keys[1, 0, :2], k[1, :2] + 50)
    np.testing.assert_array_equal(values[1, 0, 2:4], v[1, 2:4])

  @parameterized.parameters(
    (_cache, jnp.float32),
    (_cache, jnp.int8),
    (_two_blocks, jnp.float32),
    (_two_blocks, jnp.int8),
  )
  def test_a_prompt_is_stored_as_its_tokens_one_by_one(self, make, dtype):
    noise = np.random.default_rng(0).standard_normal((2, 1, 4, 1, 2))
    k, v = jnp.asarray(noise, jnp.float32)
    two_layers = make(3, dtype)
    empty = kv_cache.KVCache(two_layers.k[:1], two_layers.v[:1])
    inserted = jax.jit(kv_cache.insert)(empty, k, v, slots=jnp.array([2, 0]))
    (k_blocks,), (v_blocks,) = empty
    for t in range(4):
      # Slot 1 is at a position beyond the cache.
      place = dict(positions=jnp.array([t, 9, t]))
      new = lambda x, t=t: jnp.broadcast_to(x[0, t], (3, 1, 2))
      k_blocks = _write_keys(k_blocks, new(k), **place)
      v_blocks = _write_values(v_blocks, new(v), **place)
    written = kv_cache.KVCache((k_blocks,), (v_blocks,))
    jax.tree.map(np.testing.assert_array_equal, inserted, written)
    for x in jax.tree.leaves(inserted):
      self.assertTrue(x[0].any())
      self.assertFalse(x[1].any())


class QuantizedTest(parameterized.TestCase):
  def _stored(self, x, *, jit=True):
    """Returns (values [S, K, H], scales [S, K]) of entries that are written."""
    x = jnp.asarray(x)
    spec = tiny_model.spec(kv_heads=x.shape[1], head_dim=x.shape[2])
    cache = kv_cache.empty(spec, slots=len(x), cache_tokens=1, dtype=jnp.int8)
    positions = jnp.zeros(len(x), int)
    write_keys, write_values = (
      (_write_keys, _write_values)
      if jit
      else (kv_cache.write_keys, kv_cache.write_values)
    )
    (key,) = write_keys(cache.k[0], x, positions=positions)
    (value,) = write_values(cache.v[0], x, positions=positions)
    found = [
      (np.float64(entries), np.float64(block.scale[:, :, 0]))
      for entries, block in (
        (key.values[:, :, :, 0], key),
        (value.values[:, :, 0], value),
      )
    ]
    jax.tree.map(np.testing.assert_array_equal, *found)
    return found[0]

  def test_by_hand(self):
    # The scale is 63.5 / 127 = 1/2; -31.6 is -63.2 of them, 0.7 is 1.4.
    values, scale = self._stored([[[63.5, -31.6, 0.7, 0.0]]])
    np.testing.assert_array_equal(scale, [[0.5]])
    np.testing.assert_array_equal(values, [[[127, -63, 1, 0]]])

  @parameterized.product(
    jit=(True, False),
    magnitude=(1e-30, 1.0, 3e38),
    dtype=(jnp.float32, jnp.bfloat16),
  )
  def test_a_number_is_half_a_scale_off_at_most(self, jit, magnitude, dtype):
    noise = np.random.default_rng(0).uniform(-1, 1, (64, 3, 16))
    x = jnp.asarray(noise * magnitude, dtype)
    values, scale = self._stored(x, jit=jit)
    x = np.float64(x)
    self.assertLessEqual(abs(values).max(), 127)
    off = abs(values * scale[..., None] - x) / scale[..., None]
    self.assertLessEqual(off.max(), tolerances.INT8_SCALES)
    # A 127th of the largest, with 8 bits: a 2^-8th part off at most.
    np.testing.assert_allclose(scale * 127, abs(x).max(-1), rtol=2**-8 + 1e-6)

  def test_zeros_stay_zeros(self):
    values, scale = self._stored(jnp.zeros((1, 2, 4)).at[0, 1, 2].set(3.0))
    np.testing.assert_array_equal(values[0], [[0, 0, 0, 0], [0, 0, 127, 0]])
    self.assertTrue(np.isfinite(scale).all())

  def test_next_to_zero_a_scale_stays_a_normal_number(self):
    # The smallest is 2^-126 = 1.18e-38; numbers below it may count as 0.
    smallest = np.finfo(np.float32).tiny
    values, scale = self._stored([[[1e-36, 2e-38, 1e-40, 0.0]]])
    np.testing.assert_array_equal(scale, [[smallest]])
    np.testing.assert_array_equal(values, [[[85, 2, 0, 0]]])

  def test_what_is_not_finite_is_zero_and_spoils_no_scale(self):
    # The largest finite number is 1.27, so the scale is 1/100 in bfloat16.
    row = [np.nan, np.inf, -np.inf, 1.27, -0.5]
    values, scale = self._stored([[row, [np.nan] * 5]])
    np.testing.assert_allclose(scale[0, 0], 0.01, rtol=2**-8)
    np.testing.assert_array_equal(values[0], [[0, 0, 0, 127, -50], [0] * 5])
    self.assertTrue(np.isfinite(scale).all())

  def test_the_largest_number_has_a_finite_scale(self):
    largest = np.finfo(np.float32).max
    values, scale = self._stored([[[largest, -largest]]])
    np.testing.assert_array_equal(values, [[[127, -127]]])
    self.assertTrue(np.isfinite(scale).all())


if __name__ == '__main__':
  absltest.main()

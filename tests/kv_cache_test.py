"""Tests of `model.kv_cache`."""

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
from dapo_jax.model import kv_cache


def _cache(slots):
  spec = tiny_model.spec(kv_heads=1, head_dim=2)
  return kv_cache.empty(spec, slots=slots, cache_tokens=5, dtype=jnp.float32)


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


def _entries(cache):
  """Returns (keys, values) as arrays [L, S, C, K, H]."""
  join = lambda layers, axis: np.stack(
    [np.concatenate(blocks, axis=axis) for blocks in layers]
  )
  return (
    np.moveaxis(join(cache.k, 3), 4, 2),
    np.swapaxes(join(cache.v, 2), 2, 3),
  )


def _two_blocks(slots):
  """Returns a cache of 1 layer in blocks of 3 and 2 entries."""
  zeros = lambda *shape: jnp.zeros((slots, 1, *shape))
  return kv_cache.KVCache(
    ((zeros(2, 3), zeros(2, 2)),), ((zeros(3, 2), zeros(2, 2)),)
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


if __name__ == '__main__':
  absltest.main()

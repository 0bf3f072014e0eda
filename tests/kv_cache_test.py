"""Tests of `model.kv_cache`."""

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

import tiny_model
from dapo_jax.model import kv_cache


def _cache(slots):
  spec = tiny_model.spec(kv_heads=1, head_dim=2)
  return kv_cache.empty(spec, slots=slots, cache_tokens=5, dtype=jnp.float32)


def _prefix(tokens):
  """Keys 1, 2, ... of L = 2 layers, and values 100 above them."""
  k = jnp.arange(1.0, 1 + 2 * tokens * 2).reshape(2, tokens, 1, 2)
  return k, k + 100


class EmptyTest(absltest.TestCase):
  def test_one_pair_of_buffers_a_layer(self):
    spec = tiny_model.spec(layers=3, kv_heads=2, head_dim=12)
    cache = kv_cache.empty(spec, slots=4, cache_tokens=7, dtype=jnp.bfloat16)
    for buffers in cache:
      self.assertLen(buffers, 3)
      for buffer in buffers:
        self.assertEqual(buffer.shape, (4, 2, 7, 12))
        self.assertEqual(buffer.dtype, jnp.bfloat16)
        self.assertFalse(buffer.any())


class WriteTest(absltest.TestCase):
  def test_each_slot_is_written_at_its_own_position(self):
    new = jnp.arange(1.0, 7.0).reshape(3, 1, 2)
    out = kv_cache.write(_cache(3).k[0], new, positions=jnp.array([4, 0, 2]))
    expected = np.zeros((3, 1, 5, 2))
    expected[0, :, 4], expected[1, :, 0], expected[2, :, 2] = new
    np.testing.assert_array_equal(out, expected)

  def test_a_position_beyond_the_cache_is_dropped(self):
    new = jnp.ones((2, 1, 2))
    out = kv_cache.write(_cache(2).k[0], new, positions=jnp.array([5, 1]))
    self.assertFalse(out[0].any())
    self.assertTrue(out[1, :, 1].all())


class InsertTest(absltest.TestCase):
  def test_one_prompt_goes_to_several_slots_and_no_other(self):
    k, v = _prefix(3)
    out = kv_cache.insert(_cache(4), k, v, slots=jnp.array([3, 1]))
    for i in range(2):
      for buffer, prefix in ((out.k[i], k[i]), (out.v[i], v[i])):
        for slot in (1, 3):
          np.testing.assert_array_equal(buffer[slot, 0, :3], prefix[:, 0])
          self.assertFalse(buffer[slot, :, 3:].any())
        self.assertFalse(buffer[jnp.array([0, 2])].any())

  def test_slot_numbers_beyond_the_last_are_dropped(self):
    k, v = _prefix(3)
    wanted = kv_cache.insert(_cache(4), k, v, slots=jnp.array([2]))
    padded = kv_cache.insert(_cache(4), k, v, slots=jnp.array([4, 2, 9]))
    for a, b in zip(wanted.k + wanted.v, padded.k + padded.v, strict=True):
      np.testing.assert_array_equal(a, b)

  def test_what_a_slot_held_beyond_the_prompt_stays(self):
    k, v = _prefix(4)
    full = kv_cache.insert(_cache(2), k, v, slots=jnp.array([0]))
    out = kv_cache.insert(
      full, k[:, :2] + 50, v[:, :2] + 50, slots=jnp.array([0])
    )
    np.testing.assert_array_equal(out.k[1][0, 0, :2], k[1, :2, 0] + 50)
    np.testing.assert_array_equal(out.v[1][0, 0, 2:4], v[1, 2:4, 0])


if __name__ == '__main__':
  absltest.main()

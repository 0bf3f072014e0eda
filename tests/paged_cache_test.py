"""Tests of `model.paged_cache`."""

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
from dapo_jax.model import paged_cache

_NONE = 4


def _cache(table, *, page_tokens=2):
  """Returns an empty cache of 2 layers, 4 pages and one head of 2."""
  spec = tiny_model.spec(kv_heads=1, head_dim=2)
  table = np.asarray(table, np.int32)
  cache = paged_cache.empty(
    spec,
    pages=4,
    page_tokens=page_tokens,
    table_shape=table.shape,
    dtype=jnp.float32,
  )
  return cache._replace(table=jnp.asarray(table))


def _prefix(tokens):
  """Keys 1, 2, ... of L = 2 layers, and values 100 above them."""
  k = jnp.arange(1.0, 1 + 2 * tokens * 2).reshape(2, tokens, 1, 2)
  return k, k + 100


class EmptyTest(absltest.TestCase):
  def test_no_slot_has_a_page(self):
    cache = paged_cache.empty(
      tiny_model.spec(layers=3, kv_heads=2, head_dim=12),
      pages=5,
      page_tokens=8,
      table_shape=(4, 2),
      dtype=jnp.bfloat16,
    )
    # Heads of keys and of values.
    self.assertEqual(cache.pages.shape, (3, 5, 8, 4, 12))
    self.assertEqual(cache.pages.dtype, jnp.bfloat16)
    self.assertFalse(cache.pages.any())
    np.testing.assert_array_equal(cache.table, np.full((4, 2), 5))


class InsertTest(parameterized.TestCase):
  def test_a_prompt_goes_to_the_pages_of_each_slot(self):
    cache = _cache([[_NONE, _NONE]] * 2)
    k, v = _prefix(3)
    after = paged_cache.insert(
      cache, k, v, pages=jnp.array([[2, 0], [_NONE, 3]])
    )
    pages = np.asarray(after.pages)
    # Page 2 has tokens 0 and 1; pages 0 and 3 have token 2 and padding.
    np.testing.assert_array_equal(
      pages[0, 2], [[[1, 2], [101, 102]], [[3, 4], [103, 104]]]
    )
    np.testing.assert_array_equal(
      pages[0, 0], [[[5, 6], [105, 106]], [[0, 0], [0, 0]]]
    )
    np.testing.assert_array_equal(pages[:, 3], pages[:, 0])
    np.testing.assert_array_equal(pages[1, 2, 0], [[7, 8], [107, 108]])
    self.assertFalse(pages[:, 1].any())

  def test_padding_beyond_the_longest_row_is_dropped(self):
    cache = _cache([[_NONE]])
    k, v = _prefix(7)
    after = paged_cache.insert(cache, k, v, pages=jnp.array([[1]]))
    np.testing.assert_array_equal(after.pages[0, 1, :, 0], [[1, 2], [3, 4]])
    self.assertEqual(np.asarray(after.pages).any(axis=(0, 2, 3, 4)).sum(), 1)

  def test_what_is_not_finite_is_0(self):
    cache = _cache([[_NONE]])
    k, v = _prefix(2)
    bad = v.at[0, 1, 0, 0].set(jnp.nan).at[1, 0, 0, 1].set(jnp.inf)
    after = paged_cache.insert(cache, k, bad, pages=jnp.array([[1]]))
    self.assertTrue(np.isfinite(after.pages).all())
    np.testing.assert_array_equal(after.pages[0, 1, 1, 1], [0, 104])


class AttendTest(parameterized.TestCase):
  def _attend(self, cache, positions, *, layer=1, value=1.0):
    slots = len(positions)
    q = jnp.zeros((slots, 1, 2))
    new = jnp.full((slots, 1, 2), value)
    new *= jnp.arange(1.0, slots + 1)[:, None, None]
    return paged_cache.attend(
      q,
      new,
      10 * new,
      cache,
      layer=jnp.int32(layer),
      positions=jnp.array(positions),
      kernel=False,
    )

  def test_a_token_is_written_to_its_page_of_its_layer_and_seen(self):
    cache = _cache([[3, 1], [0, 2]])
    out, after = self._attend(cache, [2, 1])
    pages = np.asarray(after.pages)
    # Slot 0 writes entry 0 of its second page, slot 1 entry 1 of its first.
    np.testing.assert_array_equal(pages[1, 1, 0], [[1, 1], [10, 10]])
    np.testing.assert_array_equal(pages[1, 0, 1], [[2, 2], [20, 20]])
    self.assertEqual(np.count_nonzero(pages), 8)
    # Alike scores: means of 3 and of 2 values of which one is not 0.
    np.testing.assert_allclose(out[:, 0], [[10 / 3] * 2, [10] * 2], rtol=1e-6)

  def test_shared_pages_are_seen_by_both(self):
    cache = _cache([[0, 1], [0, 2]])
    k, v = _prefix(2)
    cache = paged_cache.insert(cache, k, v, pages=jnp.array([[0], [_NONE]]))
    out, _ = self._attend(cache, [2, 2], layer=0)
    # Values 101 102, 103 104 and the token's own 10 or 20.
    want = [[(204 + 10) / 3, (206 + 10) / 3], [(204 + 20) / 3, (206 + 20) / 3]]
    np.testing.assert_allclose(out[:, 0], want, rtol=1e-6)

  @parameterized.parameters(
    ([[_NONE, _NONE], [0, 1]], [1, 1]),  # no page
    ([[0, 1], [2, 3]], [-1, 1]),  # stands still
    ([[0, 1], [2, 3]], [4, 1]),  # beyond the row: clipped to the last page
  )
  def test_a_slot_without_a_place_writes_into_no_other(self, table, positions):
    _, after = self._attend(_cache(table), positions)
    written = np.asarray(after.pages)[1].any(axis=(1, 2, 3))
    mine = table[1][0]
    self.assertTrue(written[mine])
    others = [p for p in range(4) if written[p] and p != mine]
    self.assertLessEqual(set(others), set(table[0]))

  def test_a_value_that_is_not_finite_spoils_no_later_row(self):
    _, after = self._attend(_cache([[0, 1]]), [0], value=jnp.nan)
    self.assertTrue(np.isfinite(after.pages).all())


if __name__ == '__main__':
  absltest.main()

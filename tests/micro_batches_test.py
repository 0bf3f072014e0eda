"""Tests of `training.micro_batches`."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.training import micro_batches, packing


def _rows(used, *, rows=2, row_tokens=128):
  """Returns rows of which micro-batch m holds `used[m]` places in its last."""
  ids = np.zeros((len(used), rows, row_tokens), np.int32)
  for m, count in enumerate(used):
    ids[m, -1, :count] = 1
  return packing.Rows(*(jnp.asarray(ids) for _ in packing.Rows._fields))


def _fold(rows, count):
  """Returns (sum of all that is seen, places computed, those seen)."""

  def body(carry, i, cut):
    total, computed, found = carry
    part = cut(rows).segment_ids
    found = micro_batches.put(found, i, 2 * part)
    return total + jnp.sum(part), computed + part.size, found

  nothing = (jnp.int32(0), jnp.int32(0), jnp.zeros_like(rows.segment_ids))
  return micro_batches.fold(body, nothing, rows, count)


class FoldTest(parameterized.TestCase):
  @parameterized.parameters(
    # Whole rows have 128 places, a quarter 32; there are 2 rows.
    ([128, 65, 33, 32, 1], 5, 2 * (128 + 128 + 128 + 32 + 32)),
    ([128, 128, 20], 3, 2 * (128 + 128 + 32)),
    ([10], 1, 2 * 32),
    # What stands behind a narrower one makes that as wide.
    ([20, 128, 20], 3, 2 * (128 + 128 + 32)),
    # Those from the count on are not computed.
    ([128, 30, 20], 2, 2 * (128 + 32)),
    ([128, 0, 0], 1, 2 * 128),
    ([0, 0], 0, 0),
  )
  def test_each_is_computed_up_to_its_width(self, used, count, computed):
    total, places, found = jax.jit(_fold)(_rows(used), count)
    self.assertEqual(int(total), sum(used[:count]))
    self.assertEqual(int(places), computed)
    expected = 2 * np.asarray(_rows(used).segment_ids)
    expected[count:] = 0
    np.testing.assert_array_equal(found, expected)

  def test_short_rows_are_not_cut(self):
    _, places, _ = jax.jit(_fold)(_rows([3, 1], row_tokens=40), 2)
    self.assertEqual(int(places), 2 * 2 * 40)

  def test_no_number_compiles_anything(self):
    fold = jax.jit(lambda *arguments: _fold(*arguments))
    for used in ([128, 3], [128, 128], [40, 0]):
      fold(_rows(used), sum(u > 0 for u in used))
    self.assertEqual(fold._cache_size(), 1)


if __name__ == '__main__':
  absltest.main()

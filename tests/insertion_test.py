"""Tests of `sampling.insertion`."""

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.sampling import insertion, token_choice


def _samples(count):
  return insertion.Samples(
    np.arange(count) + 3,
    np.arange(2 * count, dtype=np.uint32).reshape(count, 2),
    np.arange(count) + 10,
    token_choice.Choice(temperature=0.5),
    np.arange(3 * count).reshape(count, 3),
  )


class InsertionTest(parameterized.TestCase):
  @parameterized.parameters((1, 1), (2, 4), (4, 4), (5, 16), (16, 16))
  def test_samples_fill_the_next_size_and_the_rest_goes_nowhere(
    self, count, width
  ):
    found = insertion.padded(_samples(count), slots=32)
    self.assertEqual(
      found.slots.tolist(), [*range(3, 3 + count), *[32] * (width - count)]
    )
    self.assertEqual(found.keys.shape, (width, 2))
    np.testing.assert_array_equal(found.keys[:count], _samples(count).keys)
    np.testing.assert_array_equal(
      found.limits_tokens[:count], np.arange(count) + 10
    )
    np.testing.assert_array_equal(found.pages[:count], _samples(count).pages)
    self.assertEqual(found.pages.shape, (width, 3))
    self.assertEqual(found.choice.temperature, 0.5)

  @parameterized.parameters((0, []), (3, [3]), (16, [16]), (35, [16, 16, 3]))
  def test_parts_are_all_samples_in_order(self, count, sizes):
    found = list(insertion.parts(_samples(count)))
    self.assertEqual([len(part.slots) for part in found], sizes)
    slots = [slot for part in found for slot in part.slots]
    self.assertEqual(slots, list(range(3, 3 + count)))
    rows = [row for part in found for row in part.pages.tolist()]
    self.assertEqual(rows, _samples(count).pages.tolist())

  def test_nowhere_is_no_slot(self):
    found = insertion.nowhere(4, slots=8, pages=np.array([0, 0]))
    self.assertEqual(found.slots.tolist(), [8] * 4)
    self.assertEqual(found.pages.shape, (4, 2))


if __name__ == '__main__':
  absltest.main()

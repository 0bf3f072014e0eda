"""Tests of `training.row_plan`."""

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.training import row_plan


def _lengths(*segments):
  """Returns what a plan knows of (prompt number, prompt, response)."""
  return [row_plan.Length(*s) for s in segments]


class FirstFitTest(parameterized.TestCase):
  @parameterized.parameters(
    # Longest first: 7 and 5 begin a row each, 4 fits the second, 3 the first,
    # and the two of 2 begin a third, for the second has room for 1.
    ([3, 7, 2, 5, 4, 2], 10, [[1, 0], [3, 4], [2, 5]]),
    # Equal lengths go by number.
    ([4, 4, 4], 8, [[0, 1], [2]]),
    ([10], 10, [[0]]),
    ([], 10, []),
  )
  def test_by_hand(self, lengths, row_tokens, expected):
    self.assertEqual(row_plan.first_fit(lengths, room=row_tokens), expected)

  def test_no_row_is_too_long_and_no_segment_is_lost(self):
    rng = np.random.default_rng(1)
    for _ in range(50):
      lengths = rng.integers(1, 33, rng.integers(1, 60)).tolist()
      rows = row_plan.first_fit(lengths, room=32)
      for row in rows:
        self.assertLessEqual(sum(lengths[i] for i in row), 32)
      self.assertEqual(sorted(sum(rows, [])), list(range(len(lengths))))
      # First fit leaves no two rows half empty.
      loads = sorted(sum(lengths[i] for i in row) for row in rows)
      if len(loads) > 1:
        self.assertGreater(loads[0] + loads[1], 32)
      self.assertEqual(row_plan.first_fit(lengths, room=32), rows)


class BlocksTest(absltest.TestCase):
  def test_a_group_too_long_for_a_row_takes_another_copy(self):
    parts = row_plan.blocks(
      _lengths(*[(0, 3, 3)] * 3), row_tokens=8, share_prompts=True
    )
    # A prompt takes 2 places, a response 3: two fit 8, the third does not.
    self.assertEqual(parts, [((0, 1), 8), ((2,), 5)])

  def test_other_prompts_never_share(self):
    lengths = _lengths((0, 2, 1), (1, 2, 1), (2, 2, 1))
    parts = row_plan.blocks(lengths, row_tokens=99, share_prompts=True)
    self.assertEqual(parts, [((n,), 2) for n in range(3)])


if __name__ == '__main__':
  absltest.main()

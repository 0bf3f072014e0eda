"""Tests of `training.row_plan`."""

import math

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.training import row_plan


def _lengths(*segments):
  """Returns what a plan knows of (prompt number, prompt, response)."""
  return [row_plan.Length(*s) for s in segments]


def _plan(lengths, *, row_tokens=8, rows=2, share=True):
  return row_plan.plan(
    lengths,
    row_tokens=row_tokens,
    micro_batch_rows=rows,
    share_prompts=share,
  )


def _dapo(rng):
  """Returns a minibatch of the published size, its lengths like DAPO's."""
  tokens = rng.lognormal(math.log(3000) - 0.5, 1.0, 512).round()
  return [
    row_plan.Length(i // 16, 300, int(n))
    for i, n in enumerate(tokens.clip(1, 20_480))
  ]


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


class WidthsTest(parameterized.TestCase):
  @parameterized.parameters(
    (24, (24,)),
    (127, (127,)),
    (128, (128, 32)),
    # A quarter is 72, whole eights; 47.5 goes up to 48.
    (288, (288, 72)),
    (190, (190, 48)),
    (22_528, (22_528, 5_632)),
    # 260 goes up to whole 128s.
    (1040, (1040, 384)),
  )
  def test_by_hand(self, row_tokens, expected):
    self.assertEqual(row_plan.widths(row_tokens), expected)


class PlanTest(parameterized.TestCase):
  def test_responses_stand_behind_one_copy_of_their_prompt(self):
    # Prompt 0 takes 2 places and its responses 3 each: 8 in one row. Of
    # another prompt one takes 4; the row with the least room holds it.
    plan = _plan(_lengths((0, 3, 3), (1, 3, 2), (0, 3, 3)))
    self.assertEqual(plan.rows, ((((0, 2), 8),), (((1,), 4),)))
    self.assertEqual(plan.real_tokens, 12)
    self.assertEqual(plan.row_tokens, 16)
    self.assertEqual(
      row_plan.places(plan, _lengths((0, 3, 3), (1, 3, 2), (0, 3, 3))),
      ((0, 2, 3), (1, 2, 2), (0, 5, 3)),
    )

  def test_not_sharing_each_has_its_own(self):
    plan = _plan(_lengths((0, 3, 2), (0, 3, 2)), share=False)
    self.assertEqual(plan.rows, ((((0,), 4), ((1,), 4)), ()))

  def test_a_group_too_long_for_a_row_takes_another_copy(self):
    # A prompt takes 2 places, a response 3: two fit 8, the third does not.
    plan = _plan(_lengths(*[(0, 3, 3)] * 3))
    self.assertEqual(plan.rows, ((((0, 1), 8),), (((2,), 5),)))

  def test_what_is_left_takes_a_narrow_micro_batch(self):
    # 3 of 128 and one of 30 in micro-batches of one row: a quarter for it.
    lengths = _lengths(*[(i, 1, 128) for i in range(3)], (3, 1, 30))
    plan = _plan(lengths, row_tokens=128, rows=1)
    self.assertEqual(plan.widths, (128, 128, 128, 32))
    self.assertEqual(plan.row_tokens, 416)
    self.assertEqual(plan.real_tokens, 414)

  def test_narrow_ones_stand_last_and_no_more_are_taken_than_needed(self):
    # 100 needs a whole row, the others a quarter each.
    lengths = _lengths((1, 1, 30), (2, 1, 30), (0, 1, 100))
    plan = _plan(lengths, row_tokens=128, rows=1)
    self.assertEqual(plan.widths, (128, 32, 32))
    self.assertEqual(plan.rows, ((((2,), 100),), (((0,), 30),), (((1,), 30),)))
    # The second whole row holds them both.
    plan = _plan(lengths, row_tokens=128, rows=2)
    self.assertEqual(plan.widths, (128,))
    self.assertEqual(plan.rows, ((((2,), 100),), (((0,), 30), ((1,), 30))))

  def test_every_response_has_a_place_of_its_own_behind_its_prompt(self):
    rng = np.random.default_rng(3)
    for share in (False, True):
      for _ in range(40):
        prompts = rng.integers(1, 60, 8)
        lengths = [
          row_plan.Length(i // 5, int(prompts[i // 5]), int(n))
          for i, n in enumerate(rng.integers(1, 70, rng.integers(1, 40)))
        ]
        plan = _plan(lengths, row_tokens=128, rows=3, share=share)
        self._check(plan, lengths, row_tokens=128, rows=3)

  def _check(self, plan, lengths, *, row_tokens, rows):
    self.assertLen(plan.rows, rows * len(plan.widths))
    self.assertLessEqual(len(plan.widths), -(-len(lengths) // rows))
    self.assertEqual(list(plan.widths), sorted(plan.widths, reverse=True))
    self.assertEqual(plan.row_tokens, rows * sum(plan.widths))
    taken = np.zeros((len(plan.rows), row_tokens), np.int64)
    for row, begin, count in row_plan.places(plan, lengths):
      taken[row, begin : begin + count] += 1
      self.assertLessEqual(begin + count, plan.widths[row // rows])
    for row, blocks in enumerate(plan.rows):
      begin = 0
      for block in blocks:
        self.assertLen({lengths[n].prompt_number for n in block.segments}, 1)
        prefix = lengths[block.segments[0]].prompt_tokens - 1
        taken[row, begin : begin + prefix] += 1
        begin += block.tokens
    self.assertEqual(taken.max(), 1)
    self.assertEqual(taken.sum(), plan.real_tokens)
    self.assertEqual(
      sorted(n for blocks in plan.rows for b in blocks for n in b.segments),
      list(range(len(lengths))),
    )

  @parameterized.parameters(False, True)
  def test_rows_are_full_on_dapos_lengths(self, share):
    rng = np.random.default_rng(4)
    plans = [
      _plan(_dapo(rng), row_tokens=22_528, rows=32, share=share)
      for _ in range(4)
    ]
    real = sum(p.real_tokens for p in plans)
    self.assertGreater(real / sum(p.row_tokens for p in plans), 0.9)

  def test_equal_lengths_give_an_equal_plan(self):
    lengths = _dapo(np.random.default_rng(5))
    first, second = (
      _plan(list(lengths), row_tokens=22_528, rows=32) for _ in range(2)
    )
    self.assertEqual(first, second)

  def test_nothing_to_plan(self):
    self.assertEqual(_plan([]), ((), (), 0, 0))

  def test_other_prompts_never_share(self):
    plan = _plan(_lengths((0, 2, 1), (1, 2, 1), (2, 2, 1)))
    self.assertEqual(plan.rows, ((((0,), 2), ((1,), 2), ((2,), 2)), ()))


if __name__ == '__main__':
  absltest.main()

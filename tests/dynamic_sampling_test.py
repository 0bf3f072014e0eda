"""Tests of `rollout.dynamic_sampling`, with groups made by hand."""

from absl.testing import absltest, parameterized

import tiny_groups
from dapo_jax.data import records
from dapo_jax.rollout import dynamic_sampling

_MIXED, _RIGHT, _WRONG = (1, 0, 0, 1), (1, 1, 1, 1), (0, 0, 0, 0)


class _Source:
  """Draws groups of a given pattern, again and again, and notes the calls."""

  def __init__(self, *patterns):
    self.patterns = patterns
    self.calls = []

  def draw(self, first_ordinal, count):
    self.calls.append((first_ordinal, count))
    ordinals = range(first_ordinal, first_ordinal + count)
    return [
      tiny_groups.group(self.patterns[i % len(self.patterns)], ordinal=i)
      for i in ordinals
    ]


def _rule(**changes):
  return dynamic_sampling.Rule(
    **{
      'enabled': True,
      'want': 4,
      'batch': 4,
      'max_rounds': 3,
      'on_limit': 'error',
      **changes,
    }
  )


def _fill(source, rule, *, first_ordinal=0):
  tallies = []
  filled = dynamic_sampling.fill(
    source.draw, rule, first_ordinal=first_ordinal, on_round=tallies.append
  )
  return filled, tallies


def _ordinals(groups):
  return [g.draw.ordinal for g in groups]


class SignalTest(parameterized.TestCase):
  @parameterized.parameters(
    (_MIXED, True),
    ((0, 0, 0, 1), True),
    ((1, 1, 1, 0), True),
    (_RIGHT, False),
    (_WRONG, False),
  )
  def test_some_are_right_and_some_wrong(self, correct, expected):
    group = tiny_groups.group(correct)
    self.assertEqual(dynamic_sampling.has_signal(group), expected)

  def test_wrong_answers_of_different_rewards_carry_none(self):
    # L_max 20, L_cache 4: lengths 10, 18, 19, 20 cost 0, 0.5, 0.75, 1.
    group = tiny_groups.group(
      _WRONG, lengths=[10, 18, 19, 20], overlong=[0.0, -0.5, -0.75, -1.0]
    )
    self.assertEqual(
      records.group_rewards(group).tolist(), [-1.0, -1.5, -1.75, -2.0]
    )
    self.assertFalse(dynamic_sampling.has_signal(group))

  def test_answers_of_equal_rewards_may_carry_one(self):
    # A right answer that is as long as can be earns 1 - 1 = 0; so does a
    # wrong one where wrong pays 0.
    group = tiny_groups.group((1, 0), overlong=[-1.0, 0.0])
    group = group._replace(correctness=group.correctness.clip(0, 1))
    self.assertEqual(records.group_rewards(group).tolist(), [0.0, 0.0])
    self.assertTrue(dynamic_sampling.has_signal(group))


class FillTest(absltest.TestCase):
  def test_one_round_is_enough_where_all_are_mixed(self):
    source = _Source(_MIXED)
    filled, tallies = _fill(source, _rule(), first_ordinal=100)
    self.assertEqual(source.calls, [(100, 4)])
    self.assertEqual(_ordinals(filled.groups), [100, 101, 102, 103])
    self.assertEqual(filled.next_ordinal, 104)
    self.assertLen(tallies, 1)

  def test_uniform_groups_are_dropped_and_more_are_drawn(self):
    # Kept ordinals: 1, 4, 7, 10 of three rounds of four.
    source = _Source(_RIGHT, _MIXED, _WRONG)
    filled, tallies = _fill(source, _rule())
    self.assertEqual(source.calls, [(0, 4), (4, 4), (8, 4)])
    self.assertEqual(_ordinals(filled.groups), [1, 4, 7, 10])
    self.assertEqual(filled.next_ordinal, 12)
    self.assertEqual(
      filled.tally,
      dynamic_sampling.Tally(
        rounds=3, drawn=12, kept=4, all_right=4, all_wrong=4, trained=4
      ),
    )
    self.assertEqual(_ordinals(filled.first_round), [0, 1, 2, 3])
    self.assertEqual(
      [(t.rounds, t.drawn, t.kept, t.trained) for t in tallies],
      [(1, 4, 1, 0), (2, 8, 3, 0), (3, 12, 4, 0)],
    )

  def test_surplus_is_cut_by_ordinal_and_counted(self):
    # 6 of the 6 drawn are kept, 4 are wanted.
    filled, _ = _fill(_Source(_MIXED), _rule(batch=6), first_ordinal=10)
    self.assertEqual(_ordinals(filled.groups), [10, 11, 12, 13])
    self.assertEqual(filled.tally.kept, 6)
    self.assertEqual(filled.tally.trained, 4)
    self.assertEqual(filled.tally.surplus, 2)
    # What is dropped is not drawn again.
    self.assertEqual(filled.next_ordinal, 16)

  def test_nothing_left_over_is_no_surplus(self):
    filled, _ = _fill(_Source(_MIXED), _rule())
    self.assertEqual(filled.tally.surplus, 0)

  def test_without_the_filter_all_are_kept(self):
    source = _Source(_RIGHT, _WRONG)
    filled, _ = _fill(source, _rule(enabled=False, max_rounds=1))
    self.assertEqual(source.calls, [(0, 4)])
    self.assertEqual(_ordinals(filled.groups), [0, 1, 2, 3])
    self.assertEqual(filled.tally.kept, 4)
    self.assertEqual(filled.tally.all_right, 2)
    self.assertEqual(filled.tally.all_wrong, 2)


class LimitTest(parameterized.TestCase):
  def test_error_tells_all_counts_and_flags(self):
    source = _Source(_RIGHT, _WRONG, _WRONG, _MIXED)
    with self.assertRaises(dynamic_sampling.SamplingLimitError) as caught:
      _fill(source, _rule())
    text = str(caught.exception)
    # Three rounds of four: 3 mixed, 3 right, 6 wrong.
    for part in (
      '3 rounds drew 12 prompts',
      '3 have both right and wrong answers (4 wanted)',
      '3 are all right, 6 all wrong',
      '--config.filter.max_rounds',
      '--config.rollout.oversample',
      '--config.filter.on_limit',
      'train_partial, accept_uniform',
    ):
      self.assertIn(part, text)
    self.assertNotIn('\n', text)
    self.assertIsInstance(caught.exception, ValueError)

  @parameterized.parameters('error', 'train_partial', 'accept_uniform')
  def test_it_ends_after_the_rounds(self, action):
    source = _Source(_WRONG)
    try:
      _fill(source, _rule(on_limit=action, max_rounds=5))
    except dynamic_sampling.SamplingLimitError:
      self.assertEqual(action, 'error')
    self.assertLen(source.calls, 5)

  @parameterized.parameters('error', 'train_partial', 'accept_uniform')
  def test_full_in_the_last_round_is_no_limit(self, action):
    filled, _ = _fill(
      _Source(_RIGHT, _MIXED), _rule(on_limit=action, max_rounds=2)
    )
    self.assertEqual(_ordinals(filled.groups), [1, 3, 5, 7])

  def test_train_partial_gives_the_groups_there_are(self):
    source = _Source(_RIGHT, _WRONG, _WRONG, _MIXED)
    filled, _ = _fill(source, _rule(on_limit='train_partial'))
    self.assertEqual(_ordinals(filled.groups), [3, 7, 11])
    self.assertEqual(filled.tally.trained, 3)
    self.assertEqual(filled.tally.surplus, 0)
    self.assertEqual(filled.next_ordinal, 12)

  def test_train_partial_gives_none_where_there_is_none(self):
    filled, _ = _fill(_Source(_WRONG), _rule(on_limit='train_partial'))
    self.assertEqual(filled.groups, [])
    self.assertEqual(filled.tally.trained, 0)
    self.assertEqual(filled.next_ordinal, 12)
    self.assertLen(filled.first_round, 4)

  def test_accept_uniform_fills_up_in_the_order_of_draws(self):
    # Kept: 5 and 13 of 16 drawn, and the first two uniform ones: 0 and 1.
    patterns = [_WRONG] * 5 + [_MIXED] + [_RIGHT] * 2
    filled, _ = _fill(
      _Source(*patterns),
      _rule(batch=8, max_rounds=2, on_limit='accept_uniform'),
    )
    self.assertEqual(_ordinals(filled.groups), [0, 1, 5, 13])
    self.assertEqual(filled.tally.kept, 2)
    self.assertEqual(filled.tally.trained, 4)
    self.assertEqual(filled.tally.surplus, 0)

  def test_accept_uniform_gives_no_more_than_were_drawn(self):
    filled, _ = _fill(
      _Source(_WRONG),
      _rule(want=9, batch=2, max_rounds=3, on_limit='accept_uniform'),
    )
    self.assertEqual(_ordinals(filled.groups), [0, 1, 2, 3, 4, 5])

  def test_an_unknown_action_is_refused(self):
    with self.assertRaisesRegex(ValueError, "'give_up'"):
      _fill(_Source(_WRONG), _rule(on_limit='give_up'))


if __name__ == '__main__':
  absltest.main()

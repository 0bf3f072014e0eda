"""Tests of `rollout.summary`, with groups made by hand."""

import numpy as np
from absl.testing import absltest

import tiny_groups
from dapo_jax.monitor import catalogue
from dapo_jax.rollout import dynamic_sampling, summary

# Rewards 1, -1 and 0.5, -2; lengths 3 and 8, 5 and 8, the 8s cut.
_FIRST = tiny_groups.group(
  (1, 0), ordinal=3, lengths=[3, 8], finish=['eos', 'length']
)
_SECOND = tiny_groups.group(
  (1, 0),
  ordinal=5,
  lengths=[5, 8],
  finish=['eos', 'length'],
  overlong=[-0.5, -0.5],
)._replace(format=np.array([0.0, -0.5]))
_RIGHT = tiny_groups.group((1, 1), ordinal=4)


def _filled(groups, *, first_round, **tally):
  counts = dict(
    rounds=2, drawn=6, kept=3, all_right=2, all_wrong=1, trained=len(groups)
  )
  return dynamic_sampling.Filled(
    groups, dynamic_sampling.Tally(**{**counts, **tally}), first_round, 9
  )


class FilterMetricsTest(absltest.TestCase):
  def test_by_hand(self):
    filled = _filled([_FIRST, _SECOND], first_round=[_FIRST, _RIGHT])
    self.assertEqual(
      summary.filter_metrics(filled),
      {
        'filter/rounds_count': 2,
        'filter/drawn_prompts_count': 6,
        'filter/kept_prompts_count': 3,
        'filter/trained_prompts_count': 2,
        'filter/surplus_prompts_count': 1,
        'filter/all_right_prompts_count': 2,
        'filter/all_wrong_prompts_count': 1,
        'filter/kept_frac': 0.5,
        'filter/skipped_update_count': 0,
        # 1 + 2 of the 4 responses; the wrong one says nothing.
        'reward/first_round_correct_frac': 0.75,
        'reward/no_answer_frac': 0.25,
      },
    )

  def test_names_are_in_the_catalogue(self):
    filled = _filled([_FIRST], first_round=[_FIRST])
    catalogue.check(summary.filter_metrics(filled))
    catalogue.check(summary.group_metrics([_FIRST]))

  def test_a_skipped_update_is_counted(self):
    filled = _filled([], first_round=[_RIGHT], kept=0)
    found = summary.filter_metrics(filled)
    self.assertEqual(found['filter/skipped_update_count'], 1)
    self.assertEqual(found['filter/surplus_prompts_count'], 0)


class GroupMetricsTest(absltest.TestCase):
  def test_by_hand(self):
    self.assertEqual(
      summary.group_metrics([_FIRST, _SECOND]),
      {
        # (1 - 1 + 0.5 - 1.5 - 0.5) / 4
        'reward/mean': -0.375,
        'reward/correctness_mean': 0.0,
        'reward/format_mean': -0.125,
        'reward/overlong_mean': -0.25,
        'reward/correct_frac': 0.5,
        # (3 + 8 + 5 + 8) / 4, and (3 + 5) / 2 of those that ended.
        'response/length_mean_tokens': 6.0,
        'response/length_max_tokens': 8,
        'response/length_min_tokens': 3,
        'response/truncated_frac': 0.5,
        'response/eos_length_mean_tokens': 4.0,
      },
    )

  def test_a_stop_string_ends_as_an_eos_does(self):
    stopped = tiny_groups.group(
      (1, 0), lengths=[3, 8], finish=['stop', 'length']
    )
    found = summary.group_metrics([stopped])
    self.assertEqual(found['response/truncated_frac'], 0.5)
    self.assertEqual(found['response/eos_length_mean_tokens'], 3.0)

  def test_where_nothing_ended_there_is_no_length_of_it(self):
    cut = tiny_groups.group((1, 0), finish=['length', 'length'])
    found = summary.group_metrics([cut])
    self.assertEqual(found['response/truncated_frac'], 1.0)
    self.assertNotIn('response/eos_length_mean_tokens', found)

  def test_no_group_has_no_metrics(self):
    self.assertEqual(summary.group_metrics([]), {})


class SampleRowsTest(absltest.TestCase):
  def _rows(self, filled, count):
    return summary.sample_rows(filled, count=count, template='plain')

  def test_they_are_spread_over_the_groups(self):
    filled = _filled([_FIRST, _SECOND], first_round=[_RIGHT])
    places = [(r['ordinal'], r['sample']) for r in self._rows(filled, 3)]
    self.assertEqual(places, [(3, 0), (5, 0), (3, 1)])

  def test_there_are_no_more_than_responses(self):
    filled = _filled([_FIRST, _SECOND], first_round=[_RIGHT])
    self.assertLen(self._rows(filled, 100), 4)
    self.assertEmpty(self._rows(filled, 0))

  def test_where_nothing_is_trained_the_first_round_is_shown(self):
    filled = _filled([], first_round=[_RIGHT])
    self.assertEqual({r['ordinal'] for r in self._rows(filled, 2)}, {4})

  def test_a_row_says_all_of_a_response(self):
    filled = _filled([_SECOND], first_round=[_SECOND])
    row = self._rows(filled, 2)[1]
    self.assertEqual(
      row,
      {
        'ordinal': 5,
        'prompt_id': tiny_groups.prompt(5).id,
        'sample': 1,
        'prompt': '5+0=?\n',
        'response': 'response 1 to 5',
        'gold': '5',
        'extracted': '[INVALID]',
        'correct': False,
        'correctness': -1.0,
        'format': -0.5,
        'overlong': -0.5,
        'length_tokens': 8,
        'finish': 'length',
      },
    )


if __name__ == '__main__':
  absltest.main()

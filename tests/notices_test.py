"""Tests of `training.notices`."""

from absl.testing import absltest, parameterized

import tiny_groups
import tiny_run
from dapo_jax.rollout import dynamic_sampling, summary
from dapo_jax.training import notices

_MIXED = tiny_groups.group((1, 0), ordinal=3)
_NONE = tiny_groups.group(
  (0, 0), ordinal=4, lengths=[8, 3], finish=['length', 'eos']
)


class OfStepTest(parameterized.TestCase):
  def _said(
    self, first_round, *, changes=None, said=None, faults=(), **metrics
  ):
    """Returns what is said of a step that trains all groups."""
    config = tiny_run.config(
      {
        'rollout.prompts_per_step': 1,
        'rollout.responses_per_prompt': 2,
        'learner.minibatch_prompts': 1,
        **(changes or {}),
      }
    )
    tally = dynamic_sampling.NO_ROUNDS._replace(
      rounds=1, drawn=1, kept=1, trained=1
    )
    filled = dynamic_sampling.Filled(first_round, tally, first_round, 1)
    return list(
      notices.of_step(
        config,
        filled,
        {
          **summary.filter_metrics(filled),
          'reward/verify_timeout_count': 0,
          'reward/verify_error_count': 0,
          **metrics,
        },
        set() if said is None else said,
        faults=faults,
        unjudged=lambda: "answer '9^9', gold '1': no verdict after 5 s",
      )
    )

  def test_of_most_steps_nothing_is_said(self):
    self.assertEqual(self._said([_MIXED]), [])

  def test_a_step_without_any_answer_names_the_two_likeliest_reasons(self):
    [text] = self._said([_NONE])
    self.assertIn('no answer was found in any of the 2 responses', text)
    self.assertIn('data.template (plain)', text)
    self.assertIn('reward.grader (equivalence)', text)
    # One of two was.
    self.assertIn('50% were cut off at rollout.max_response_tokens', text)

  def test_it_is_said_of_every_such_step(self):
    said = set()
    self.assertLen(self._said([_NONE], said=said), 1)
    self.assertLen(self._said([_NONE], said=said), 1)

  def test_one_answer_is_enough(self):
    self.assertEqual(self._said([_NONE, _MIXED]), [])

  def test_answers_that_could_not_be_compared_are_told_once(self):
    said = set()
    counts = {
      'reward/verify_timeout_count': 2,
      'reward/verify_error_count': 1,
    }
    [text] = self._said([_MIXED], said=said, **counts)
    self.assertIn('3 answers could not be compared', text)
    self.assertIn('(2 within reward.verify_s, 1 by an error)', text)
    self.assertIn("answer '9^9', gold '1': no verdict after 5 s", text)
    self.assertEqual(self._said([_MIXED], said=said, **counts), [])

  def test_updates_that_were_skipped_are_told_of_every_step(self):
    said = set()
    faults = [['the loss'], ['a', 'b', 'c', 'd', 'e']]
    for _ in range(2):
      [text] = self._said([_MIXED], said=said, faults=faults)
      self.assertIn('skipped 2 updates that were not finite: a, b, c and', text)
      self.assertIn('c and 2 more', text)

  def test_a_gap_is_told_once(self):
    said, gap = set(), {'policy/sampler_gap_mean_nats': 2.0}
    [text] = self._said([_MIXED], said=said, **gap)
    self.assertIn("differ from the trainer's by 2 nats a token", text)
    self.assertEqual(self._said([_MIXED], said=said, **gap), [])

  def test_a_step_that_is_not_full_is_told(self):
    [text] = self._said(
      [_MIXED],
      changes={
        'rollout.prompts_per_step': 2,
        'filter.on_limit': 'train_partial',
      },
    )
    self.assertStartsWith(text, 'limit of rounds reached, trained on 1 groups')


if __name__ == '__main__':
  absltest.main()

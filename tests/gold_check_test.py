"""Tests of `dapo_jax.rewards.gold_check`."""

import contextlib
import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from dapo_jax.data import records
from dapo_jax.rewards import gold_check, graders, verifier_pools

_LIMITS = verifier_pools.Limits(processes=1, limit_s=20.0, memory_gib=1.0)


def _prompts(*golds):
  return [
    records.make_prompt('d', [records.Message('user', f'{i}?')], gold)
    for i, gold in enumerate(golds)
  ]


class WinnableTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.listing = pathlib.Path(folder, 'new', 'refused.jsonl')

  def _winnable(self, prompts, name='equivalence', *, keep=False):
    grader = graders.make(name, _LIMITS)
    self.enterContext(contextlib.closing(grader))
    return gold_check.winnable(prompts, grader, keep=keep, listing=self.listing)

  def test_where_all_can_be_won_nothing_is_said_or_written(self):
    prompts = _prompts('1', '\\frac{1}{2}', '2\\sqrt{2}', '(0,1)', 'east')
    with self.assertNoLogs('absl', level='WARNING'):
      self.assertEqual(self._winnable(prompts), prompts)
    self.assertFalse(self.listing.exists())

  def test_the_list_of_data_that_were_mended_since_is_removed(self):
    with self.assertLogs('absl', level='WARNING'):
      self._winnable(_prompts('1', '$$'))
    self.assertTrue(self.listing.exists())
    self._winnable(_prompts('1', '2'))
    self.assertFalse(self.listing.exists())

  @parameterized.parameters(
    # Nothing but signs, an answer that is cut off, the mark for none.
    '$$',
    '\\frac{1}{2',
    '[INVALID]',
  )
  def test_what_cannot_be_won_is_dropped_and_listed(self, gold):
    first, lost, last = _prompts('1', gold, '2')
    with self.assertLogs('absl', level='WARNING') as logs:
      self.assertEqual(self._winnable([first, lost, last]), [first, last])
    [line] = logs.output
    self.assertIn('dropped 1 of 3 prompts that cannot be won', line)
    self.assertIn(repr(gold), line)
    [row] = [json.loads(r) for r in self.listing.read_text().splitlines()]
    self.assertEqual(row['prompt_id'], lost.id)
    self.assertEqual(row['gold'], gold)
    self.assertFalse(row['can_be_won'])

  def test_it_is_kept_if_so_asked(self):
    prompts = _prompts('1', '$$')
    with self.assertLogs('absl', level='WARNING') as logs:
      self.assertEqual(self._winnable(prompts, keep=True), prompts)
    self.assertIn('kept 1 of 2 prompts', logs.output[0])

  def test_one_form_is_enough_but_said(self):
    # An answer of two lines is read from a box alone.
    prompts = _prompts('1', 'a\nb')
    with self.assertLogs('absl', level='WARNING') as logs:
      self.assertEqual(self._winnable(prompts), prompts)
    self.assertIn('1 of 2 prompts are right in one form', logs.output[0])
    [row] = [json.loads(r) for r in self.listing.read_text().splitlines()]
    self.assertTrue(row['can_be_won'])
    self.assertEqual(row['refused_as'], ['Answer: ...'])

  def test_only_the_forms_that_are_read_count(self):
    prompts = _prompts('1', '34.')
    with self.assertLogs('absl', level='WARNING'):
      kept = self._winnable(_prompts('1', 'a\nb'), 'dapo')
    self.assertLen(kept, 1)
    self.assertEqual(self._winnable(prompts, 'dapo'), prompts)

  def test_none_left_is_an_error_that_names_the_flags(self):
    with (
      self.assertLogs('absl', level='WARNING'),
      self.assertRaisesRegex(
        ValueError, r'none of the 1 prompts can be won.*reward\.grader or --con'
      ),
    ):
      self._winnable(_prompts('$$'))

  def test_a_function_of_the_users_is_not_asked(self):
    prompts = _prompts('$$')
    found = self._winnable(prompts, 'verdict_functions:graded_by_length')
    self.assertEqual(found, prompts)


if __name__ == '__main__':
  absltest.main()

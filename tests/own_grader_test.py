"""Tests of `dapo_jax.rewards.own_grader`."""

import json
import pathlib
import sys
import tempfile
import textwrap

from absl.testing import absltest, parameterized

import tiny_groups
from dapo_jax.rewards import own_grader, verdicts

_FILE = """
from dapo_jax.rewards import verdicts

some_number = 3


def starts(response, prompt):
  correct = response.startswith(prompt.gold)
  return verdicts.Verdict(0.5 if correct else 0.0, correct, response[:9])
"""


class LoadTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.file = pathlib.Path(folder, 'mine.py')
    self.file.write_text(_FILE)
    self.prompt = tiny_groups.prompt(0)

  def test_a_function_of_a_file(self):
    grade = own_grader.load(f'{self.file}:starts')
    gold = self.prompt.gold
    self.assertEqual(grade(gold, self.prompt), (0.5, True, gold[:9]))
    self.assertEqual(grade('no', self.prompt), (0.0, False, 'no'))

  def test_a_file_may_hold_a_dataclass_and_have_the_name_of_a_module(self):
    file = self.file.with_name('json.py')
    file.write_text(
      'from __future__ import annotations\n'
      'import dataclasses\n'
      '@dataclasses.dataclass\n'
      'class Kept:\n'
      '  number: int\n' + _FILE.replace('0.0', 'Kept(0).number')
    )
    grade = own_grader.load(f'{file}:starts')
    self.assertEqual(grade('no', self.prompt), (0, False, 'no'))
    self.assertIs(sys.modules['json'], json)

  def test_a_function_of_a_module(self):
    grade = own_grader.load('verdict_functions:graded_by_length')
    self.assertEqual(grade('abc', self.prompt), (3.0, False, 'abc'))

  @parameterized.parameters(
    ('{0}:ends', "has no function 'ends'; change --config.reward.grader"),
    ('{0}:some_number', "has no function 'some_number'"),
    ('{0}:', "has no function ''"),
    ('/nowhere/mine.py:starts', 'there is no file /nowhere/mine.py; change'),
    ('no_such_module:f', "'no_such_module' cannot be imported: No module"),
    ('mine:starts', 'or name its file as FILE.py:FUNCTION'),
  )
  def test_what_is_not_there_is_said(self, name, message):
    with self.assertRaisesRegex(ValueError, message.replace('(', r'\(')):
      own_grader.load(name.format(self.file))

  @parameterized.parameters(
    ('True', TypeError, 'must return a Verdict, got True'),
    ('(1.0, True, "")', TypeError, 'must return a Verdict'),
    ('verdicts.Verdict(1.0, 1, "")', TypeError, 'a bool and a text'),
    ('verdicts.Verdict(1.0, True, None)', TypeError, 'a bool and a text'),
    ('verdicts.Verdict(float("nan"), True, "")', ValueError, 'be finite'),
    ('verdicts.Verdict("1", True, "")', TypeError, "be a number, got '1'"),
    ('1 / 0', ZeroDivisionError, 'division'),
  )
  def test_another_result_is_an_error(self, result, error, message):
    self.file.write_text(
      textwrap.dedent(f"""
        from dapo_jax.rewards import verdicts
        def f(response, prompt):
          return {result}
      """)
    )
    grade = own_grader.load(f'{self.file}:f')
    with self.assertRaisesRegex(error, message):
      grade('5', self.prompt)

  def test_its_verdict_is_handed_on(self):
    grade = own_grader.load(f'{self.file}:starts')
    self.assertIsInstance(grade('x', self.prompt), verdicts.Verdict)


class SourceTest(absltest.TestCase):
  def test_of_a_file_it_is_its_text(self):
    with tempfile.TemporaryDirectory() as folder:
      file = pathlib.Path(folder, 'mine.py')
      file.write_text(_FILE)
      self.assertEqual(own_grader.source(f'{file}:starts'), _FILE)

  def test_of_a_module_too(self):
    own_grader.load('textwrap:dedent')
    self.assertIn('def dedent(', own_grader.source('textwrap:dedent'))

  def test_of_ours_and_of_what_is_no_text_there_is_none(self):
    for name in ('equivalence', 'math:sqrt'):
      self.assertEqual(own_grader.source(name), '')


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.data.tasks`."""

import json
import sys
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from dapo_jax.data import tasks

pytest.importorskip('reasoning_gym')

_SUMS = 'task:chain_sum(max_terms=2, max_digits=1)'


def _load(source=_SUMS, *, problems=40, seed=0, held_out_frac=0.25):
  return tasks.load(
    source, problems=problems, seed=seed, held_out_frac=held_out_frac
  )


def _texts(prompts):
  return [p.messages[0].content for p in prompts]


class ParseTest(parameterized.TestCase):
  @parameterized.parameters(
    ('task:gcd', {}),
    ('task:gcd()', {}),
    ('task:gcd(max_value=30)', {'max_value': 30}),
    ('task: gcd ( max_value = -3 )', {'max_value': -3}),
    ("task:gcd(a=('x', ')'), b=[1.5])", {'a': ('x', ')'), 'b': [1.5]}),
  )
  def test_family_and_parameters(self, source, parameters):
    self.assertEqual(tasks.parse(source), ('gcd', parameters))

  @parameterized.parameters(
    'task:',
    'task:gcd(30)',
    'task:gcd(max_value)',
    'task:gcd(max_value=other)',
    'task:gcd(max_value=max(3, 4))',
    'task:gcd(max_value=__import__("os").getpid())',
    'task:gcd(**{"max_value": 3})',
    'task:gcd(max_value=3, max_value=4)',
    'task:gcd(max_value=3',
    'task:gcd(max_value=3)(max_value=4)',
    'task:gcd(max_value=3) or 1',
  )
  def test_nothing_else_is_one(self, source):
    with self.assertRaisesRegex(
      ValueError, r'must read task:FAMILY .*; change --config\.data\.source'
    ):
      tasks.parse(source)


class LoadTest(parameterized.TestCase):
  def test_no_text_is_both_trained_and_held_out(self):
    train, held_out = _load()
    self.assertEmpty(set(_texts(train)) & set(_texts(held_out)))
    self.assertLen(set(_texts(train)), len(train))
    # What is held out of one seed is not trained on with another.
    train, _ = _load(seed=7)
    self.assertEmpty(set(_texts(train)) & set(_texts(held_out)))
    # A quarter of the distinct ones, up to chance.
    self.assertBetween(len(held_out), 3, 20)

  def test_a_problem(self):
    (first, *_), _ = _load(problems=5, held_out_frac=0.0)
    self.assertEqual(first.dataset, 'chain_sum')
    self.assertRegex(_texts([first])[0], r': \d [+-] \d =$')
    self.assertRegex(first.gold, r'^-?\d+$')
    self.assertEqual(first.solution, f'Answer: {first.gold}')
    task = json.loads(first.task)
    self.assertEqual(task['family'], 'chain_sum')
    self.assertEqual(task['parameters'], "{'max_terms': 2, 'max_digits': 1}")

  def test_repeated_problems_are_dropped_and_counted(self):
    # There are 10 x 10 sums and as many differences of two digits.
    with self.assertLogs('absl', level='WARNING') as logs:
      train, _ = _load(problems=400, held_out_frac=0.0)
    self.assertLess(len(train), 200)
    self.assertIn(
      f'dropped {400 - len(train)} duplicates of 400 problems, kept '
      f'{len(train)}',
      logs.output[0],
    )
    self.assertLen({p.id for p in train}, len(train))

  # Its problems depend on the order of a set.
  @parameterized.parameters(_SUMS, 'task:ransom_note')
  def test_every_process_makes_the_same(self, source):
    with mock.patch.dict('os.environ', {'PYTHONHASHSEED': '5'}):
      found = _load(source, problems=9)
    self.assertEqual(_load(source, problems=9), found)
    self.assertNotEqual(_load(source, problems=9, seed=99), found)

  def test_an_answer_of_several_lines_is_no_solution(self):
    train, _ = _load('task:rotate_matrix', problems=2, held_out_frac=0.0)
    self.assertIn('\n', train[0].gold)
    self.assertEqual(train[0].solution, '')

  def test_a_fault_is_one_line_that_names_the_source(self):
    source = 'task:chain_sum(max_term=3)'
    with self.assertRaises(ValueError) as caught:
      _load(source)
    self.assertEqual(
      str(caught.exception),
      f"{source}: the family chain_sum has no parameter 'max_term'; the "
      'nearest is max_terms; change --config.data.source, '
      '--config.data.mixture or --config.eval.source',
    )

  def test_without_the_package_the_extra_is_named(self):
    # A process that sees no installed package.
    with mock.patch.object(sys, 'path', []):
      with self.assertRaisesRegex(
        ValueError, r"pip install 'dapo-jax\[tasks\]'"
      ):
        _load()


if __name__ == '__main__':
  absltest.main()

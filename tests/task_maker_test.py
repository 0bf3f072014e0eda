"""Tests of `dapo_jax.data.task_maker`."""

import ast

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from dapo_jax.data import task_maker

pytest.importorskip('reasoning_gym')


class MakeTest(parameterized.TestCase):
  def test_a_problem_is_kept_whole(self):
    (made,) = task_maker.make('graph_color', {}, seed=0, count=1)
    self.assertEqual(made.answer, '')  # this family keeps none
    entry = ast.literal_eval(made.entry)
    self.assertIsNone(entry['answer'])
    self.assertEqual(entry['question'], made.question)
    puzzle = entry['metadata']['puzzle']
    # Tuples and numbers as keys, which JSON has not.
    self.assertIsInstance(puzzle['edges'][0], tuple)

  @parameterized.parameters(
    ('chain_sums', {}, "no family 'chain_sums'; the nearest is chain_sum$"),
    ('composite', {}, 'there is no family'),
    ('gcd', {'max': 3}, "no parameter 'max'; the nearest is max_value$"),
    ('gcd', {'size': 3}, r'size is said by --config\.data\.task\.problems'),
    ('gcd', {'seed': 3}, r'seed is said by --config\.data\.task\.seed'),
    ('chain_sum', {'max_terms': 1}, 'chain_sum does not take this: .*max_ter'),
    ('chain_sum', {'max_terms': 'a'}, 'does not take this: TypeError'),
    # It is found only when a problem is made.
    ('chain_sum', {'max_digits': 1.5}, 'does not take this: ValueError'),
  )
  def test_what_a_user_may_get_wrong(self, family, parameters, message):
    with self.assertRaisesRegex(ValueError, message):
      task_maker.make(family, parameters, seed=0, count=3)


class PlainTest(absltest.TestCase):
  def test_a_literal_is_equal(self):
    value = {1: ('a', [True, None]), 'b': {'c': 1.5}}
    self.assertEqual(ast.literal_eval(repr(task_maker._plain(value))), value)

  def test_numpy_is_taken_off(self):
    value = [np.str_('a'), np.float64(1.5), np.int64(3), np.bool_(True)]
    self.assertEqual(repr(task_maker._plain(value)), "['a', 1.5, 3, True]")

  def test_what_is_no_literal_is_refused(self):
    with self.assertRaisesRegex(TypeError, 'object is no part of a literal'):
      task_maker._plain([object()])


if __name__ == '__main__':
  absltest.main()

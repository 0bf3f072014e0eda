"""Tests of `dapo_jax.rewards.worked_out`."""

import inspect
import json
import pathlib
import sys

from absl.testing import absltest, parameterized

from dapo_jax.rewards import final_answer, worked_out

_CASES = pathlib.Path(__file__).parent / 'data/grading_cases.json'


class WorkedOutTest(parameterized.TestCase):
  @parameterized.parameters(
    # A sum to do, whatever its terms and dressing.
    ('47+38', '85', '47+38=?'),
    ('38+47', '85', '47+38=?'),
    ('x=47+38', '85', '47+38=?'),
    ('47+38=x', '85', '47+38=?'),
    ('85=47+38', '85', '47+38=?'),
    ('(47+38)', '85', '47+38=?'),
    ('\\{47+38\\}', '85', '47+38=?'),
    ('(47+38,2)', '(85,2)', '47+38=?'),
    ('7\\cdot 7', '49', ''),
    ('170/2', '85', ''),
    ('8.5\\cdot 10', '85', ''),
    ('\\frac{1}{2}+\\frac{1}{3}', '\\frac{5}{6}', ''),
    # A unit is no working.
    ('47+38\\text{ cm}', '85', '47+38=?'),
    ('47+38\\%', '85', '47+38=?'),
    ('\\$47+38', '85', '47+38=?'),
    ('7\\cdot 7\\text{ cm}', '49\\text{ cm}', ''),
    ('47+38', '85^\\circ', '47+38=?'),
    ('x=5-3', 'x=2', ''),
    # A function, a root or an exponent to work out.
    ('\\sum_{k=1}^{10}k', '55', ''),
    ('\\binom{5}{2}', '10', ''),
    ('\\sqrt{144}', '12', ''),
    ('144^{1/2}', '12', ''),
    ('85^{2-1}', '85', ''),
    ('\\log_2 8', '3', ''),
    ('e^{\\ln 3}', '3', ''),
    # The problem again.
    ('\\sqrt8', '2\\sqrt{2}', 'Simplify $\\sqrt{8}$.'),
    ('√8', '2\\sqrt{2}', 'Simplify $\\sqrt{8}$.'),
    ('(1+x)^{2}', 'x^2+2x+1', 'Expand $(x+1)^2$.'),
    ('15/20', '\\frac{3}{4}', 'Simplify $\\frac{15}{20}$.'),
    ('3/4', '0.75', 'Write 3/4 as a decimal.'),
    ('0.75', '\\frac{3}{4}', 'Write 0.75 as a common fraction.'),
    ('2\\frac{1}{2}', '\\frac{5}{2}', 'Write $2\\frac12$ as a fraction.'),
    ('\\binom{31}{28}', '4495', 'Compute $\\dbinom{31}{28}$.'),
    ('\\sin 30^\\circ', '\\frac12', 'What is $\\sin 30^\\circ$?'),
    ('x^2+2x+1', '(x+1)^2', 'Factor $x^2 + 2x + 1$.'),
    ('2^{10}', '1024', 'Evaluate $2^{10}$.'),
    ('\\sqrt{8}', '2\\sqrt{2}', 'Simplify $\\sqrt{8}$.'),
    ('\\frac{3}{20}', '0.15', 'Express $\\frac{3}{20}$ as a decimal.'),
    ('y=2x+1', '2x-y+1=0', 'The line y = 2x + 1 in general form?'),
  )
  def test_is_not(self, answer, gold, problem):
    self.assertFalse(worked_out.is_worked_out(answer, gold, problem))

  @parameterized.parameters(
    ('85', '85', '47+38=?'),
    ('47+38=85', '85', '47+38=?'),
    ('x=85', '85', 'x=47+38'),
    ('-5', '-5', ''),
    ('\\frac{-3}{4}', '-0.75', ''),
    ('\\frac{6}{8}', '0.75', ''),
    ('2 1/2', '2.5', ''),
    ('8.5\\times10^1', '85', ''),
    ('1e-3', '0.001', ''),
    ('50\\%', '0.5', ''),
    ('5\\text{ cm}', '5', ''),
    ('2^{10}', '1024', 'Which power?'),
    ('\\frac12, 3', '3, 0.5', ''),
    ('y=2x+1', '2x-y+1=0', 'Which line?'),
    ('x=2', 'x=2.0', ''),
    ('3 million', '3000000', ''),
    ('\\frac{\\pi}{6}', '30^\\circ', ''),
    ('2i+1', '1+2i', 'Divide by $1+2i$.'),
    # Other values of the problem's, a whole number among them.
    ('6/8', '\\frac{3}{4}', 'Of 6 there are 8.'),
    ('5.0', '5', 'Is 5.0 it?'),
    ('5\\text{ cm}', '5', 'Draw $5\\text{ cm}$.'),
    # Spelled like the gold answer it may stand in the problem.
    ('\\sqrt{53}', '\\sqrt{53}', 'Is it $\\sqrt{53}$ or $7$?'),
    ('east', '\\text{east}', 'Is it east or west?'),
    ('3', '3', 'Is it 3?'),
    ('9' * 20_000, '9' * 20_000, ''),
  )
  def test_is(self, answer, gold, problem):
    self.assertTrue(worked_out.is_worked_out(answer, gold, problem))

  def test_of_right_answers_few_are_left_to_do(self):
    rows = json.loads(_CASES.read_text(encoding='utf-8'))
    left = [
      row
      for row in rows
      if row['expected']
      and not worked_out.is_worked_out(
        final_answer.find(row['response']), row['gold'], ''
      )
    ]
    self.assertBetween(len(left), 1, 75)
    # Those that come from other graders' reports are none.
    self.assertEmpty([r['id'] for r in left if r['id'].startswith('g')])

  @parameterized.parameters(
    *('', '}{', '\\', '=', ',,,', '(' * 500, '1' * 5000),
    # Deep without brackets.
    *('x' + '°' * 1500, 'x' + '°!' * 900, '1' + '/2' * 300 + '+x'),
  )
  def test_odd_texts_do_no_harm(self, text):
    for gold in ('5', 'x', text):
      worked_out.is_worked_out(text, gold, text)

  def test_what_nests_too_deep_for_the_stack_is_not(self):
    deep = '5\\approx x+1' + '/2' * 290
    self.assertTrue(worked_out.is_worked_out('5\\approx 5', '5', ''))
    limit = sys.getrecursionlimit()
    self.addCleanup(sys.setrecursionlimit, limit)
    # As if it were asked from far up the stack.
    sys.setrecursionlimit(len(inspect.stack()) + 400)
    self.assertFalse(worked_out.is_worked_out(deep, '5', ''))


if __name__ == '__main__':
  absltest.main()

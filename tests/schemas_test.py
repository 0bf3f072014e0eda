"""Tests of `dapo_jax.data.schemas`."""

import json
import pathlib

from absl.testing import absltest, parameterized

from dapo_jax.data import schemas
from dapo_jax.rewards import dapo_math

_GSM8K = pathlib.Path(__file__).parent / 'data/problems/gsm8k_rows.jsonl'
_BOX = r'Put the result in \boxed{}.'


def _verl(problem, answer, **more):
  """Returns a row as verl has it."""
  return {
    'data_source': 'a_set',
    'prompt': [
      {'role': 'system', 'content': _BOX},
      {'role': 'user', 'content': problem},
    ],
    'reward_model': {'ground_truth': answer, 'style': 'rule'},
    'extra_info': {'index': 1},
  } | more


class ReadTest(parameterized.TestCase):
  @parameterized.parameters(
    {'problem': '1+1=?', 'answer': '2'},
    {'problem': '1+1=?', 'answer': 2},
    {'prompt': '1+1=?', 'answer': '2'},
    {'prompt': 'Give Answer: $Answer\n\n1+1=?\n\nAs "Answer:".', 'answer': '2'},
    {'messages': [{'role': 'user', 'content': '1+1=?'}], 'answer': '2'},
    {'question': '1+1=?', 'answer': '#### 2'},
    # As AMC 2023 is published.
    {'question': '1+1=?', 'answer': '2'},
    {'question': '1+1=?', 'problem': '1+1=?', 'answer': 2.0},
    # As parquet has rows that differ in their fields.
    {'problem': '1+1=?', 'prompt': None, 'answer': '2', 'reward_model': None},
    {'problem': '1+1=?', 'level': 'Level 1', 'solution': r'It is \boxed{2}.'},
    _verl('1+1=?', '2'),
  )
  def test_every_schema_says_the_same(self, **row):
    problem = schemas.read(row, 'f:1')
    self.assertEqual(problem.messages, (('user', '1+1=?'),))
    self.assertEqual(problem.answer, '2')

  def test_an_instruction_in_a_field_for_problems_stays(self):
    text = 'Give Answer: $Answer\n\n1+1=?\n\nAs "Answer:".'
    problem = schemas.read({'problem': text, 'answer': '2'}, 'f:1')
    self.assertEqual(problem.messages[0].content, text)

  def test_source_and_level_are_kept(self):
    problem = schemas.read(_verl('p', '2', level='Level 4'), 'f:1')
    self.assertEqual((problem.source, problem.level), ('a_set', 4))
    plain = schemas.read({'problem': 'p', 'answer': '2'}, 'f:1')
    self.assertEqual((plain.source, plain.level), ('', None))

  @parameterized.parameters(('Level 5', 5), (3, 3), ('2', 2), ('Level ?', 0))
  def test_level(self, value, level):
    row = {'problem': 'p', 'answer': '2', 'level': value}
    self.assertEqual(schemas.read(row, 'f:1').level, level)

  def test_a_working_of_gsm8k_is_a_right_response(self):
    for line in _GSM8K.read_text().splitlines():
      problem = schemas.read(json.loads(line), 'f:1')
      self.assertTrue(
        dapo_math.score(problem.solution, problem.answer).correct, problem
      )
      self.assertNotIn('<<', problem.solution)

  def test_a_number_of_gsm8k_has_no_commas(self):
    row = {
      'question': 'p',
      'answer': '500+500=<<500+500=1000>>1,000\n#### 1,000',
    }
    problem = schemas.read(row, 'f:1')
    self.assertEqual(problem.answer, '1000')
    self.assertEqual(problem.solution, '500+500=1,000\nAnswer: 1000')

  def test_a_solution_of_math_is_kept_and_its_last_box_the_answer(self):
    solution = r'First \boxed{1}, then \boxed{\frac{1}{\sqrt{2}}}.'
    row = {'problem': 'p', 'level': 'Level 3', 'solution': solution}
    problem = schemas.read(row, 'f:1')
    self.assertEqual(problem.answer, r'\frac{1}{\sqrt{2}}')
    self.assertEqual(problem.solution, solution)

  @parameterized.named_parameters(
    ('two_texts', {'problem': 'p', 'question': 'q'}, 'expected one of'),
    ('no_text', {'problem': None, 'answer': '2'}, 'expected one of'),
    (
      'gsm8k',
      {'question': 'p', 'answer': 'It is 2.'},
      '`answer` must end in a line',
    ),
    ('source', {'problem': 'p', 'answer': '2', 'source': 3}, '`source` must'),
    (
      'math',
      {'problem': 'p', 'solution': 'It is 2.'},
      '`solution` must have the answer in',
    ),
    ('level', {'problem': 'p', 'answer': '2', 'level': 'hard'}, '`level` must'),
    ('no_gold', _verl('p', None), '`reward_model.ground_truth` must be'),
    (
      'no_reward_model',
      _verl('p', '2') | {'reward_model': 1},
      '`reward_model`',
    ),
    (
      'no_problem',
      _verl('p', '2') | {'prompt': [{'role': 'system', 'content': _BOX}]},
      '`prompt` must have a message of the user',
    ),
  )
  def test_an_error_names_row_and_field(self, row, words):
    with self.assertRaisesRegex(ValueError, rf'^f:7: .*{words}'):
      schemas.read(row, 'f:7')


class LastBoxedTest(parameterized.TestCase):
  @parameterized.parameters(
    ('no box', ''),
    (r'\boxed{2}', '2'),
    (r'\boxed{1} and \boxed{a_{b_{c}}} more}', 'a_{b_{c}}'),
    (r'\boxed{\{1\}}', r'\{1\}'),
    (r'\boxed{1', ''),
    (r'\fbox{2}', '2'),
    (r'\boxed {2}', '2'),
    (r'So $x = \boxed 12$, which is $3 \cdot 4$.', '12'),
    (r'\boxed{1}, no, $\boxed\frac12$', r'\frac12'),
    (r'\boxed 2', ''),
    (r'\boxedtext{2}', ''),
  )
  def test_braces_are_balanced(self, text, content):
    self.assertEqual(schemas.last_boxed(text), content)


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.rewards.tasks`."""

import ast
import json
import pathlib
import tempfile

import pytest
from absl.testing import absltest, parameterized

from dapo_jax.data import task_maker, tasks
from dapo_jax.rewards import tasks as verdicts
from dapo_jax.rewards import verifiers

pytest.importorskip('reasoning_gym')

# Those that suit a small policy.
_FAMILIES = (
  'base_conversion',
  'basic_arithmetic',
  'calendar_arithmetic',
  'chain_sum',
  'count_bits',
  'gcd',
  'gsm_symbolic',
  'lcm',
  'leg_counting',
  'letter_counting',
  'number_sequence',
  'products',
  'simple_equations',
  'simple_geometry',
  'spell_backward',
  'syllogism',
)
# Their verifiers tell a tuple from a list.
_KEEP_TUPLES = ('arc_agi', 'rearc')
# These keep no answer.
_KEEP_NONE = (
  'boxnet',
  'graph_color',
  'propositional_logic',
  'rubiks_cube',
  'rush_hour',
)


def _made(family, count=3, **parameters):
  """Returns pairs of the kept answer and the task."""
  return [
    (p.gold, p.task)
    for problem in task_maker.make(family, parameters, seed=1, count=count)
    for p in [tasks._prompt(family, parameters, problem)]
  ]


def _task(family, question, answer, **metadata):
  entry = {'question': question, 'answer': answer, 'metadata': metadata}
  return json.dumps(
    {'family': family, 'parameters': '{}', 'entry': repr(entry)}
  )


class SolvesTest(parameterized.TestCase):
  @parameterized.parameters(*_FAMILIES, *_KEEP_TUPLES)
  def test_the_kept_answer_does(self, family):
    for gold, task in _made(family):
      self.assertIs(verdicts.solves(gold, task), True)

  @parameterized.parameters(*_FAMILIES)
  def test_an_answer_that_holds_the_right_one_does_not(self, family):
    for gold, task in _made(family):
      for text in (
        f'The answer is {gold}',
        f'{gold} or 99',
        f'99\n{gold}',
        f'{gold}, 99',
        f'{gold} {gold}',
        ' '.join(map(str, range(200))) + f' {gold}',
      ):
        self.assertIs(verdicts.solves(text, task), False, text)

  @parameterized.parameters(*_FAMILIES)
  def test_garbage_does_not(self, family):
    for gold, task in _made(family):
      for text in ('', ' ', 'banana', '[]', '{}', 'nan', '٣', '\x00'):
        self.assertNotEqual(text, gold)
        self.assertIs(verdicts.solves(text, task), False, text)

  def test_a_verifier_that_pays_for_anything_pays_for_its_own_answer(self):
    # This one calls any text right.
    for gold, task in _made('game_of_life_halting', count=5):
      self.assertTrue(verdicts.solves(gold, task))
      for text in ('banana', '0', 'True False', 'maybe'):
        self.assertFalse(verdicts.solves(text, task))

  def test_a_number_within_a_text_does_not(self):
    task = _task('gsm_symbolic', 'How many?', '5')
    self.assertTrue(verdicts.solves('5', task))
    # To reasoning-gym all of these are right.
    for text in ('5 or 6', '-5', 'five (5)', '5.0 or 7', '5%', 'x = 5'):
      self.assertFalse(verdicts.solves(text, task), text)

  def test_another_right_answer_does(self):
    # 2 x (3 + 4) = 14 is kept, and 3 x 2 + 4 x 2 would need a 2 twice.
    task = _task('countdown', '?', '2*(3 + 4)', numbers=[2, 3, 4], target=14)
    for text in ('2*(3 + 4)', '(4+3)*2', '(3+4) * 2'):
      self.assertTrue(verdicts.solves(text, task), text)
    for text in ('2*3+4', '14', '2*(3+4)+0', '(4+3)*2 or 9', '(4+3)*2, 5'):
      self.assertFalse(verdicts.solves(text, task), text)

  def test_an_antiderivative_may_be_written_in_another_way(self):
    for gold, task in _made('simple_integration', count=2):
      self.assertTrue(verdicts.solves(gold, task))
      self.assertTrue(verdicts.solves(f'C + {gold.removesuffix(" + C")}', task))
      self.assertFalse(verdicts.solves(f'{gold} or 9', task))
      self.assertFalse(verdicts.solves(gold.removesuffix(' + C') + 'x', task))

  @parameterized.parameters(sorted(verdicts._RUN_ANSWERS))
  def test_an_answer_is_not_run(self, family):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, 'file')
    path.write_text('as it was')
    open_it = f"open('{path}', 'w')"
    ((gold, task),) = _made(family, count=1)
    self.assertTrue(verdicts.solves(gold, task))
    for text in (
      open_it,
      f'[{open_it}]',
      f'({open_it})',
      f'sqrt("{open_it}")',
      f'x.{open_it}',
      f'open #+\n(\'{path}\', "w")',
      f"open\\\n('{path}', 'w')",
      f"ｏｐｅｎ('{path}', 'w')",
      f'(lambda: {open_it})()',
      f'f"{{{open_it}}}"',
    ):
      self.assertIs(verdicts.solves(text, task), False, text)
      self.assertEqual(path.read_text(), 'as it was', text)

  def test_mathematics_is_harmless(self):
    for text in (
      '2*(3 + 4)',
      '-x**3/3 + sin(2*x)*exp(-x) + C',
      'sqrt(x + 1)/(x - 1) + acos(x)',
      '(x+1)*(x-2)^2',
      '0.5*x',
      '[[0, 1], [1, 0]]',
      'Q _ _\n_ Q _',
    ):
      self.assertTrue(verdicts._is_harmless(text), text)

  def test_what_a_verifier_raises_is_passed_on(self):
    ((_, task),) = _made('prime_factorization', count=1)
    with self.assertRaises(ValueError):
      verdicts.solves('banana', task)

  @parameterized.parameters(*_KEEP_NONE)
  def test_without_a_kept_answer_none_is_right_by_being_empty(self, family):
    for gold, task in _made(family):
      self.assertEqual(gold, '')
      self.assertFalse(verdicts.solves('', task))

  def test_the_verifier_has_the_parameters_of_the_problem(self):
    # Its verifier refuses numbers above max_value, 10 where nothing is said.
    task = _task('puzzle24', '?', '8*3 + 1 - 1', numbers=[8, 3, 1, 1])
    self.assertTrue(verdicts.solves('8*3 + 1 - 1', task))
    narrower = json.loads(task) | {'parameters': "{'max_value': 7}"}
    self.assertFalse(verdicts.solves('8*3 + 1 - 1', json.dumps(narrower)))

  def test_worker_processes_give_the_verdicts(self):
    pairs = [
      pair
      for gold, task in _made('chain_sum')
      for pair in ((gold, task), (f'{gold} or 1', task))
    ]
    with verifiers.Verifiers(verdicts.solves, processes=1) as workers:
      outcomes = workers.verdicts(pairs)
    self.assertEqual([o.equal for o in outcomes], [True, False] * 3)

  @pytest.mark.slow
  def test_every_family_survives_its_text(self):
    from reasoning_gym import factory

    for family in sorted(set(factory.DATASETS) - {'composite', *_KEEP_NONE}):
      for gold, task in _made(family, count=2):
        with self.subTest(family):
          self.assertTrue(verdicts.solves(gold, task))
          entry = ast.literal_eval(json.loads(task)['entry'])
          self.assertEqual(set(entry), {'question', 'answer', 'metadata'})


if __name__ == '__main__':
  absltest.main()

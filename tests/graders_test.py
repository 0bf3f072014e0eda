"""Tests of `dapo_jax.rewards.graders`."""

import contextlib
import subprocess
import sys
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from dapo_jax.data import records, tasks, templates
from dapo_jax.rewards import answers, graders, verifier_pools, verifiers

_LIMITS = verifier_pools.Limits(processes=1, limit_s=20.0, memory_gib=1.0)


def _prompt(gold):
  return records.make_prompt('d', [records.Message('user', 'q')], gold)


class GradersTest(parameterized.TestCase):
  def _grader(self, name):
    grader = graders.make(name, _LIMITS)
    self.enterContext(contextlib.closing(grader))
    return grader

  @parameterized.parameters(
    # response, gold, and whether each grader says that it is right
    ('Answer: 34', '34', (True, False, True, False)),
    ('so \\boxed{34}', '34', (True, True, False, True)),
    ('Answer: 34.', '34', (True, False, False, False)),
    ('Answer: \\boxed{034}', '34', (True, True, False, False)),
    ('34', '34', (False, False, False, False)),
    ('Answer: 35', '34', (False, False, False, False)),
    ('\\boxed{\\frac{1}{2}}', '0.5', (True, True, False, False)),
    # By algebra, in a worker process.
    ('\\boxed{\\sqrt{8}}', '2\\sqrt{2}', (True, True, False, False)),
    ('\\boxed{\\sqrt{7}}', '2\\sqrt{2}', (False, False, False, False)),
    ('', '34', (False, False, False, False)),
  )
  def test_verdicts(self, response, gold, expected):
    found = tuple(
      self._grader(name).grade(response, _prompt(gold)).correct
      for name in graders.NAMES
    )
    self.assertEqual(found, expected)

  @parameterized.parameters(*[[name] for name in graders.NAMES])
  def test_the_gold_answer_is_right_in_the_forms_that_it_reads(self, name):
    grader = self._grader(name)
    for form in (graders.LINE, graders.BOX):
      verdict = grader.grade(form.format('34'), _prompt('34'))
      self.assertEqual(verdict.correct, form in grader.forms)
      if form not in grader.forms:
        self.assertEqual(verdict.extracted, answers.NO_ANSWER)

  # What a template asks for is what the graders that go with it read.
  @parameterized.parameters(
    ('dapo', 'Answer: $Answer', ('dapo', 'equivalence')),
    ('chat_dapo', 'Answer: $Answer', ('dapo', 'equivalence')),
    ('boxed', 'Answer: \\boxed{...}', graders.NAMES),
    (
      'chat_boxed',
      '\\boxed{...}',
      ('equivalence', 'equivalence_box', 'dapo_strict_box'),
    ),
  )
  def test_what_a_template_asks_for_is_read(self, template, form, names):
    prompt = records.make_prompt('d', [records.Message('user', '2+2?')], '4')
    text = templates.render(
      prompt.messages,
      template,
      chat_text=lambda turns: '\n'.join(turn.content for turn in turns),
    )
    self.assertIn(form, text)
    for name in names:
      with self.subTest(name):
        grade = self._grader(name).grade
        right = form.replace('$Answer', '4').replace('...', '4')
        self.assertTrue(grade(f'It is simple.\n{right}', prompt).correct)
        wrong = form.replace('$Answer', '5').replace('...', '5')
        self.assertFalse(grade(f'It is simple.\n{wrong}', prompt).correct)
        # Nor is the request an answer, if a response repeats it.
        self.assertFalse(grade(text, prompt).correct)

  @parameterized.parameters('47+38', '38+47', '47+38=85')
  def test_the_question_is_no_answer(self, answer):
    prompt = records.make_prompt(
      'd', [records.Message('user', '47+38=?')], '85'
    )
    grade = self._grader('equivalence').grade
    verdict = grade(f'Answer: {answer}', prompt)
    self.assertEqual(verdict.correct, answer.endswith('=85'))
    self.assertEqual(verdict.extracted, answer)

  @parameterized.parameters(
    ('equivalence', 'Answer: {}'),
    ('equivalence_box', '\\boxed{{{}}}'),
    ('dapo', 'Answer: {}'),
    ('dapo_strict_box', '\\boxed{{{}}}'),
  )
  def test_a_generated_task_is_judged_by_its_verifier(self, name, form):
    pytest.importorskip('reasoning_gym')
    train, _ = tasks.load(
      'task:syllogism', problems=8, seed=0, held_out_frac=0.0
    )
    grader = self._grader(name)
    for prompt in train[:2]:
      other = {'Yes': 'No', 'No': 'Yes'}[prompt.gold]
      say = lambda answer: f'Let me see.\n{form.format(answer)}'
      grade = lambda text, prompt=prompt: grader.grade(text, prompt)
      self.assertEqual(grade(say(prompt.gold)), (1.0, True, prompt.gold))
      self.assertFalse(grade(say(other)).correct)
      self.assertFalse(grade(say(f'{prompt.gold} or {other}')).correct)
      none = grade(f'It is {prompt.gold}')
      self.assertEqual(none, (-1.0, False, answers.NO_ANSWER))

  def test_the_parent_does_not_load_what_judges_tasks(self):
    code = (
      'import sys; from dapo_jax.rewards import graders; '
      'print("reasoning_gym" in sys.modules)'
    )
    done = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True
    )
    self.assertEqual(done.stdout.strip(), 'False', done.stderr)

  def test_what_has_no_verdict_is_wrong_and_counted(self):
    limits = _LIMITS._replace(limit_s=1e-6)
    grader = graders.make('equivalence', limits)
    self.enterContext(contextlib.closing(grader))
    verdict = grader.grade('\\boxed{\\sqrt{8}}', _prompt('2\\sqrt{2}'))
    self.assertEqual(verdict, (-1.0, False, '\\sqrt{8}'))
    self.assertEqual(grader.counts(), verifiers.Counts(timeouts=1, errors=0))
    self.assertIn('\\sqrt{8}', grader.last_fault().replace('\\\\', '\\'))

  def test_integers_need_no_process(self):
    grader = self._grader('equivalence')
    with mock.patch.object(verifiers, 'Verifiers') as started:
      for answer in ('34', '35'):
        verdict = grader.grade(f'\\boxed{{{answer}}}', _prompt('35'))
        self.assertEqual(verdict.correct, answer == '35')
    started.assert_not_called()

  @parameterized.parameters(
    # Right by what stands before the sign; no sum may stand behind it.
    ('x' + '°' * 1500, True),
    ('x+1' + '/2' * 290, False),
  )
  def test_what_nests_deep_has_a_verdict(self, deep, correct):
    response = f'\\boxed{{5\\approx {deep}}}'
    verdict = self._grader('equivalence').grade(response, _prompt('5'))
    self.assertEqual(verdict.correct, correct)

  def test_a_function_of_the_users_says_nothing_of_forms(self):
    grader = self._grader('verdict_functions:graded_by_length')
    self.assertTrue(grader.is_own)
    self.assertEqual(grader.grade('abc', _prompt('1')).score, 3.0)
    self.assertFalse(self._grader('dapo').is_own)

  def test_an_unknown_name_lists_the_known(self):
    with self.assertRaisesRegex(
      ValueError, "no grader 'math'; change --config.reward.grader to one of eq"
    ):
      graders.make('math', _LIMITS)


if __name__ == '__main__':
  absltest.main()

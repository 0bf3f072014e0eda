"""Tests of the robust verdict on an answer."""

import collections
import concurrent.futures
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import time

from absl.testing import absltest, parameterized

from dapo_jax.rewards import answers, equivalence, final_answer

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DATA = _ROOT / 'tests' / 'data'
_CASES = json.loads((_DATA / 'grading_cases.json').read_text(encoding='utf-8'))
_GOLDS = json.loads((_DATA / 'golds.json').read_text(encoding='utf-8'))


def _is_right(answer, gold):
  response = f'\\boxed{{{answer}}}'
  return equivalence.grade(response=response, gold=gold).correct


class CasesTest(parameterized.TestCase):
  @parameterized.named_parameters((case['id'], case) for case in _CASES)
  def test_verdict(self, case):
    with tempfile.TemporaryDirectory() as folder:
      # Where hostile cases would leave a file, if they were run.
      before = os.getcwd()
      os.chdir(folder)
      try:
        start_s = time.perf_counter()
        verdict = equivalence.grade(
          response=case['response'], gold=case['gold']
        )
        seconds = time.perf_counter() - start_s
      finally:
        os.chdir(before)
      self.assertEmpty(os.listdir(folder))
    self.assertEqual(verdict.correct, case['expected'], case['why'])
    self.assertEqual(verdict.score, 1.0 if case['expected'] else -1.0)
    self.assertLess(seconds, 20)

  def test_both_verdicts_and_all_kinds_are_there(self):
    counts = collections.Counter(case['expected'] for case in _CASES)
    self.assertGreater(counts[True], 300)
    self.assertGreater(counts[False], 300)
    kinds = {tag for case in _CASES for tag in case['tags'].split(',')}
    self.assertContainsSubset(
      {
        *('extract', 'integer', 'fraction', 'percent', 'unit', 'algebra'),
        *('list', 'set', 'tuple', 'interval', 'matrix', 'equation', 'ratio'),
        *('base', 'choice', 'text', 'hostile'),
      },
      kinds,
    )


class GoldsTest(parameterized.TestCase):
  @parameterized.parameters(
    '\\boxed{%s}', 'Answer: %s', '**Answer:** $%s$.', '$$\\boxed{%s}$$'
  )
  def test_every_gold_is_right(self, form):
    for gold in _GOLDS['gsm8k'] + _GOLDS['own']:
      response = 'So we have it.\n' + form % gold
      verdict = equivalence.grade(response=response, gold=gold)
      self.assertTrue(verdict.correct, gold)

  def test_golds_are_told_apart(self):
    equal = [
      (answer, gold)
      for answer in _GOLDS['own']
      for gold in _GOLDS['own']
      if answer < gold and _is_right(answer, gold)
    ]
    self.assertEqual(equal, [])

  @parameterized.product(
    gold=('', ' ', '$$$', '.', '\\text{}', '{', '\\frac{1}{', '5}', '\\boxed{'),
    response=('', 'no idea', '\\boxed{}', '\\boxed{5}', None),
  )
  def test_gold_that_is_no_answer_never_pays(self, gold, response):
    if response is None:
      response = f'Answer: {gold}'
    self.assertFalse(equivalence.grade(response=response, gold=gold).correct)

  def test_no_answer_is_no_gold(self):
    for response in ('no idea', f'Answer: {answers.NO_ANSWER}'):
      verdict = equivalence.grade(response=response, gold=answers.NO_ANSWER)
      self.assertFalse(verdict.correct)


class GradeTest(absltest.TestCase):
  def test_response_and_gold_cannot_be_exchanged(self):
    with self.assertRaises(TypeError):
      equivalence.grade('\\boxed{5}', '5')

  def test_extracted_is_the_responses_text(self):
    grade = equivalence.grade
    self.assertEqual(
      grade(response='\\boxed{\\frac12}', gold='0.5'), (1.0, True, '\\frac12')
    )
    self.assertEqual(
      grade(response='no idea', gold='5'), (-1.0, False, answers.NO_ANSWER)
    )

  def test_threads_agree_with_the_main_one(self):
    cases = [c for c in _CASES if len(c['response']) < 100][::5]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
      verdicts = pool.map(
        lambda c: equivalence.grade(response=c['response'], gold=c['gold']),
        cases,
      )
    for case, verdict in zip(cases, verdicts, strict=True):
      self.assertEqual(verdict.correct, case['expected'], case['id'])


class QuickTest(parameterized.TestCase):
  @parameterized.parameters(
    ('5', '5', True),
    ('05', '5', True),
    ('-0', '0', True),
    ('5', '6', False),
    ('\\frac12', '0.5', True),
    ('5 \\text{ cm}', '5 \\text{ m}', False),
    ('(1,2)', '(1,3)', False),
    ('2^{100}', '2^{101}', False),
    ('east', '\\text{East}', True),
    ('\\sqrt{8}', '2\\sqrt{2}', None),
    ('(1,\\sqrt{8})', '(1,2\\sqrt{2})', None),
    ('2x+4y=3', '4x+8y-6=0', None),
  )
  def test_what_takes_algebra_is_left(self, answer, gold, expected):
    self.assertIs(equivalence.quick(answer, gold), expected)

  def test_never_contradicts_algebra(self):
    decided = 0
    for case in _CASES:
      answer = final_answer.find(case['response'])
      verdict = equivalence.quick(answer, case['gold'])
      if verdict is not None:
        decided += 1
        self.assertIs(equivalence.symbolic(answer, case['gold']), verdict)
    # Most answers need no algebra.
    self.assertGreater(decided, 0.7 * len(_CASES))

  def test_integers_are_fast(self):
    def verdicts_a_second():
      start_s = time.perf_counter()
      for i in range(2_000):
        equivalence.grade(response=f'So it is. Answer: {i}', gold='1000')
      return 2_000 / (time.perf_counter() - start_s)

    # It is some 80,000 on one core; type checks slow the tests down.
    self.assertGreater(max(verdicts_a_second() for _ in range(3)), 5_000)


class SymbolicTest(absltest.TestCase):
  def test_is_for_worker_processes(self):
    function = pickle.loads(pickle.dumps(equivalence.symbolic))
    self.assertIs(function('\\sqrt{8}', '2\\sqrt{2}'), True)
    self.assertIs(function('\\sqrt{8}', '3\\sqrt{2}'), False)

  def test_agrees_with_quick(self):
    for answer, gold in (('5', '5'), ('5', '6'), ('a', 'a'), ('', '5')):
      self.assertIs(
        equivalence.symbolic(answer, gold), equivalence.quick(answer, gold)
      )


class DocumentTest(absltest.TestCase):
  def test_examples_of_the_conventions(self):
    text = (_ROOT / 'docs' / 'rewards.md').read_text(encoding='utf-8')
    checked = 0
    for row in re.findall(r'^\|(.*)\|$', text, re.MULTILINE):
      cells = re.split(r'(?<!\\)\|', row)
      if len(cells) != 4:
        continue
      for cell, expected in ((cells[2], True), (cells[3], False)):
        examples = re.findall(
          r'((?:`[^`]*`(?: or )?)+) for `([^`]*)`', cell.replace('\\|', '|')
        )
        for written, gold in examples:
          for answer in re.findall(r'`([^`]*)`', written):
            verdict = equivalence.grade(response=f'Answer: {answer}', gold=gold)
            self.assertEqual(verdict.correct, expected, (answer, gold))
            checked += 1
    self.assertGreater(checked, 60)


class ImportTest(absltest.TestCase):
  def test_brings_no_large_library(self):
    code = (
      'import pathlib, sys, importlib\n'
      'for path in pathlib.Path("dapo_jax/rewards").glob("*.py"):\n'
      # This one loads reasoning-gym, for worker processes.
      '  if path.stem == "tasks": continue\n'
      '  importlib.import_module(f"dapo_jax.rewards.{path.stem}")\n'
      'from dapo_jax.rewards import equivalence\n'
      'equivalence.quick("\\\\sqrt{8}", "2\\\\sqrt{2}")\n'
      'large = {"jax", "sympy", "math_verify", "latex2sympy2_extended",\n'
      '         "antlr4"}\n'
      'print(sorted(large & set(sys.modules)))\n'
    )
    done = subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      text=True,
      cwd=_ROOT,
      env={**os.environ, 'PYTHONPATH': str(_ROOT)},
    )
    self.assertEqual(done.stdout.strip(), '[]', done.stderr)


if __name__ == '__main__':
  absltest.main()

"""Random and mutated responses: no fault, no reward that is not earned.

20,000 of them, in a folder of their own. What plain Python leaves undecided is
judged as in training, by worker processes with limits.
"""

import json
import os
import pathlib
import re
import sys
import tempfile
import time
from fractions import Fraction

import pytest
from absl.testing import absltest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapo_jax.rewards import (
  answers,
  equivalence,
  final_answer,
  verifiers,
  worked_out,
)

_DATA = pathlib.Path(__file__).resolve().parent / 'data'
_CASES = json.loads((_DATA / 'grading_cases.json').read_text(encoding='utf-8'))
_GOLDS = json.loads((_DATA / 'golds.json').read_text(encoding='utf-8'))
_RESPONSES = [case['response'] for case in _CASES]
_ANSWERS = sorted(
  set(_GOLDS['gsm8k'] + _GOLDS['own'] + [case['gold'] for case in _CASES])
)
_LIMIT_S = 2.0
# What a machine that is busy with other things may add, [s].
_SLACK_S = 3.0
# No response takes the parent longer, whatever it is; under type checks, [s].
_QUICK_S = 2.0


def _examples(count: int):
  return settings(
    max_examples=count,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
  )


_FRAGMENTS = (
  '\\boxed{|\\boxed|\\fbox{|}|{|\\}|$|$$|\\[|\\(|Answer:|answer is |#### |'
  '<answer>|</answer>|<think>|</think>|<|im_end|>|**|\n|\n\n| |  |\\|\\\\|,|;|'
  ' or | and |not |\\text{|\\frac{|\\frac|\\sqrt{|\\sqrt[|^{|^|_|!|!!|%|\\%|°|'
  '^\\circ|\\pm|\\cdot|\\times|/|=|<|\\le|>|\\ne|\\approx|\\in|\\cup|(|)|[|]|'
  '\\{|\\pi|\\infty|e|i|x|y|n|A|C|0|1|2|7|10|99|1,000|1{,}000|3.14|0.(3)|-|+|'
  ':|...|\\ldots|\\begin{pmatrix}|\\end{pmatrix}|&|\\sum_{k=1}^{9}|\\int_0^1|'
  '\\sin|\\log_2|\\ln|\\binom{9}{3}|\\text{ cm}|dollars|million|\\emptyset|'
  '\u200b|\u202e|\u0336|\u0660|\uff15|\u00bd|\u221a|\u2212|\u00b2|\x00|'
  '__import__("os").system("touch made")|10^{10^{10}}|9^{9^{9^{9}}}|99999!'
).split('|')
_fragments = st.sampled_from(_FRAGMENTS)
_texts = st.sampled_from(_RESPONSES)
_golds = st.sampled_from(_ANSWERS)
_any_text = st.text(
  st.characters(blacklist_categories=()), min_size=0, max_size=60
)


@st.composite
def _mutated(draw, texts=_texts) -> str:
  """A response as models write it, changed in a few places."""
  text = draw(texts)[:3000]
  for _ in range(draw(st.integers(1, 4))):
    at = draw(st.integers(0, len(text)))
    end = min(len(text), at + draw(st.integers(0, 8)))
    kind = draw(st.sampled_from(['drop', 'insert', 'repeat', 'cut', 'swap']))
    piece = draw(_fragments)
    text = {
      'drop': text[:at] + text[end:],
      'insert': text[:at] + piece + text[at:],
      'repeat': text[:end] + text[at:end] * 9 + text[end:],
      'cut': text[:at],
      'swap': text[at:] + text[:at],
    }[kind]
  return text


_latex = st.recursive(
  st.sampled_from(
    ['1', '2', '12', '0.5', 'x', 'y', 'n', '\\pi', 'e', '\\infty']
  ),
  lambda inner: st.one_of(
    st.builds(
      '{}{}{}'.format,
      inner,
      st.sampled_from('+ - * / ^ = < , : \\cdot \\pm \\le'.split()),
      inner,
    ),
    st.builds('\\frac{{{}}}{{{}}}'.format, inner, inner),
    st.builds('\\sqrt[{}]{{{}}}'.format, inner, inner),
    st.builds('({}){}'.format, inner, st.sampled_from(['', '!', '^{2}', '°'])),
    st.builds('{}^{{{}}}'.format, inner, inner),
    st.builds('\\sin {}'.format, inner),
    st.builds('\\log_{{{}}} {}'.format, inner, inner),
    st.builds('\\sum_{{k=1}}^{{{}}} {}'.format, inner, inner),
    st.builds('|{}|'.format, inner),
    st.builds('\\{{{}, {}\\}}'.format, inner, inner),
    st.builds('[{}, {})'.format, inner, inner),
    st.builds('{} \\text{{ cm}}'.format, inner),
  ),
  max_leaves=12,
)
_responses = st.one_of(
  _mutated(),
  st.builds('Hence \\boxed{{{}}}.'.format, _latex),
  st.builds('Answer: {}'.format, _any_text),
  st.builds('\\boxed{{{}}}'.format, _any_text),
  st.lists(_fragments, max_size=12).map(''.join),
  _any_text,
)


@st.composite
def _pairs(draw) -> tuple[str, str]:
  """A response and a gold answer, of which it may have a changed copy."""
  gold = draw(_golds)
  if draw(st.booleans()):
    return draw(_responses), gold
  form = draw(st.sampled_from(['So \\boxed{%s}.', 'Answer: %s', '#### %s']))
  return form % draw(_mutated(st.just(gold))), gold


@st.composite
def _values(draw, depth: int = 3) -> tuple[str, Fraction]:
  """A formula of numbers, and what Python's fractions make of it."""
  kind = draw(st.sampled_from('number + - * frac power'.split()))
  if kind == 'number' or not depth:
    number = draw(st.integers(0, 12))
    if draw(st.booleans()):
      return str(number), Fraction(number)
    return f'{number}.25', number + Fraction(1, 4)
  (left, a), (right, b) = draw(_values(depth - 1)), draw(_values(depth - 1))
  if kind == 'power':
    return f'\\left({left}\\right)^2', a**2
  if kind == 'frac':
    if not b:
      return left, a
    return f'\\frac{{{left}}}{{{right}}}', a / b
  sign = {'*': '\\cdot '}.get(kind, kind)
  value = {'+': a + b, '-': a - b, '*': a * b}[kind]
  return f'({left}){sign}({right})', value


# Ways to write a number, each of which leaves it what it is.
_SPELLINGS = (
  *('\\boxed{%s}', '$$\\boxed{%s}$$', 'Answer: %s', '**Answer:** $%s$.'),
  *('\\boxed{x = %s}', '\\boxed{%s\\text{ cm}}', '<answer>%s</answer>'),
  *('\\boxed{{%s}}', 'The answer is %s.', '\\boxed{%s}.'),
  *('\\boxed{7}. No: \\boxed{%s}', '<think>\\boxed{7}</think>\\boxed{%s}'),
)


@st.composite
def _numbers(draw) -> tuple[str, Fraction]:
  """A number in one of its spellings, and its value."""
  sign = draw(st.sampled_from(['', '', '-']))
  whole = draw(st.one_of(st.integers(0, 99), st.integers(0, 10**12)))
  kind = draw(st.sampled_from(['integer', 'thousands', 'decimal', 'fraction']))
  value, text = Fraction(whole), str(whole)
  if kind == 'thousands':
    text = f'{whole:,}'
  elif kind == 'decimal':
    places = draw(st.text('0123456789', min_size=1, max_size=5))
    text = f'{whole}.{places}'
    value = Fraction(text)
  elif kind == 'fraction':
    below = draw(st.integers(1, 99))
    value, text = Fraction(whole, below), f'\\frac{{{whole}}}{{{below}}}'
  return sign + text, -value if sign else value


def _environment() -> dict[str, str]:
  return {k: v for k, v in os.environ.items() if k != 'PYTEST_CURRENT_TEST'}


def _children() -> set[int]:
  """The processes that this one has started and that are alive."""
  found = set()
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      state, parent = path.read_text().rpartition(')')[2].split()[:2]
    except OSError:  # it has ended
      continue
    if int(parent) == os.getpid() and state != 'Z':
      found.add(int(path.parent.name))
  return found


@pytest.mark.slow
class FuzzTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.addClassCleanup(os.chdir, os.getcwd())
    os.chdir(cls.folder)
    # What the first formula of a kind imports is no response's doing.
    for answer, gold in (('\\sqrt8', '2\\sqrt2'), ('\\sum_{k=1}^n k', 'n')):
      equivalence.symbolic(answer, gold)
    cls.environment = _environment()
    cls.children = _children()

  def tearDown(self):
    super().tearDown()
    self.assertEmpty(os.listdir(self.folder))
    self.assertEqual(_environment(), self.environment)
    self.assertEqual(_children(), self.children)

  def test_every_response_has_a_verdict_in_time(self):
    modules, slowest_s, open_pairs = set(sys.modules), [0.0], []

    with verifiers.Verifiers(
      equivalence.symbolic, processes=2, limit_s=_LIMIT_S
    ) as pool:

      @_examples(9_000)
      @given(_pairs())
      def check(pair):
        response, gold = pair
        start_s = time.perf_counter()
        answer = final_answer.find(response)
        verdict = equivalence.quick(answer, gold)
        # The response stands for a problem, which it may be cut from.
        is_done = worked_out.is_worked_out(answer, gold, response)
        slowest_s[0] = max(slowest_s[0], time.perf_counter() - start_s)
        self.assertIsInstance(answer, str)
        self.assertIsInstance(is_done, bool)
        self.assertIn(verdict, (True, False, None))
        self.assertEqual(final_answer.find(response), answer)
        self.assertIs(equivalence.quick(answer, gold), verdict)
        if answer == answers.NO_ANSWER:
          self.assertIs(verdict, False)
        if verdict is None:
          open_pairs.append((answer, gold))
          start_s = time.perf_counter()
          outcome = pool.verdict(answer, gold)
          self.assertLess(time.perf_counter() - start_s, _LIMIT_S + _SLACK_S)
          self.assertNotEqual(outcome.status, 'error', pool.last_fault())

      check()
      again = [
        pair for pair in open_pairs if pool.verdict(*pair).status == 'ok'
      ]
      first = [pool.verdict(*pair).equal for pair in again[:300]]
    self.assertLess(slowest_s[0], _QUICK_S)
    # Algebra was asked for, and says the same a second time.
    self.assertGreater(len(again), 300)
    with verifiers.Verifiers(
      equivalence.symbolic, processes=1, limit_s=_LIMIT_S + _SLACK_S
    ) as pool:
      second = [outcome.equal for outcome in pool.verdicts(again[:300])]
    self.assertEqual(second, first)
    ours = ('dapo_jax', 'sympy', 'latex2sympy2_extended', 'antlr4')
    imported = {name for name in set(sys.modules) - modules}
    self.assertEmpty([n for n in imported if not n.startswith('hypothesis')])
    self.assertTrue(all(name in sys.modules for name in ours))

  @_examples(3_000)
  @given(st.one_of(_latex, _any_text, _mutated()), _golds)
  def test_without_a_mark_nothing_is_paid(self, text, gold):
    unmarked = re.sub(r'boxed|fbox|answer|####', 'so', text, flags=re.I)
    verdict = equivalence.grade(response=unmarked, gold=gold)
    self.assertEqual(verdict, (-1.0, False, answers.NO_ANSWER))

  @_examples(5_000)
  @given(_numbers(), _numbers(), st.sampled_from(_SPELLINGS), st.booleans())
  def test_a_number_is_right_if_its_value_is(self, gold, other, spelling, near):
    (gold, value), (answer, other_value) = gold, other
    if near:
      # One digit of the gold one is another.
      places = [at for at, sign in enumerate(gold) if sign.isdigit()]
      at = places[len(answer) % len(places)]
      answer = gold[:at] + str((int(gold[at]) + 1) % 10) + gold[at + 1 :]
      plain = re.sub(r'\\frac\{(\d+)\}\{(\d+)\}', r'\1/\2', answer)
      if plain.endswith('/0') or re.match(r'-?0\d', plain):
        answer, other_value = '17', Fraction(17)
      elif re.search('/0', plain):
        answer, other_value = '17', Fraction(17)
      else:
        other_value = Fraction(plain.replace(',', ''))
    verdict = equivalence.grade(response=spelling % answer, gold=gold)
    self.assertEqual(verdict.correct, other_value == value, (answer, gold))

  @_examples(3_000)
  @given(_values(), _values(), st.booleans())
  def test_arithmetic_is_that_of_fractions(self, answer, gold, simplified):
    (answer, value), (gold, gold_value) = answer, gold
    if simplified:
      gold, gold_value = f'{value.numerator}/{value.denominator}', value
    verdict = equivalence.quick(answer, gold)
    self.assertIs(verdict, value == gold_value, (answer, gold))


if __name__ == '__main__':
  absltest.main()

r"""Tests of `dapo_jax.data.integer_forms`.

A form is put to the proof by reading its name with the parameters in the place
of the letters: that must be the value again.
"""

import itertools
import math
import re
from fractions import Fraction

import hypothesis
import sympy
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from dapo_jax.data import integer_forms, latex_expressions, refusals, surds

_PROPERTY = hypothesis.settings(
  max_examples=100, deadline=None, derandomize=True, database=None
)
_NONE = frozenset()
_LETTER = re.compile(r'\\[a-z]+|[A-Za-hj-z](?:_[0-9])?')


def _value(text: str) -> surds.Sum:
  return latex_expressions.parse(text, imaginary=True)


def _filled(name: str, parameters: tuple[int, ...]) -> surds.Sum:
  """Returns the value of a form with these parameters for its letters."""
  left = iter(parameters)
  text = _LETTER.sub(
    lambda m: m[0] if m[0][0] == '\\' else f'({next(left)})', name
  )
  assert next(left, None) is None, 'a parameter has no letter'
  return _value(text)


def _is_square_free(number: int) -> bool:
  return all(number % (d * d) for d in range(2, math.isqrt(number) + 1))


@st.composite
def _numbers(draw):
  """Sums of up to three terms, with roots, pi and i, that are no integers."""
  total = {}
  for _ in range(draw(st.integers(1, 3))):
    a = Fraction(draw(st.integers(-30, 30)), draw(st.integers(1, 12)))
    term = surds.square_root(surds.constant(draw(st.integers(-6, 30))))
    if draw(st.booleans()):
      term = surds.multiply(term, surds.pi())
    total = surds.add(total, surds.multiply(surds.constant(a), term))
  fraction = surds.as_fraction(total)
  hypothesis.assume(fraction is None or fraction.denominator > 1)
  return total


class OfNumberTest(parameterized.TestCase):
  @parameterized.parameters(
    # 11 - 2 sqrt(6), the paper's: k = 11, m = 2, n = 6.
    ('11-2\\sqrt{6}', 'k - m\\sqrt{n}', (11, 2, 6), 19),
    ('2\\sqrt{6}-11', 'k\\sqrt{m} - n', (2, 6, 11), 19),
    ('3/4', '\\frac{m}{n}', (3, 4), 7),
    ('-3/4', '-\\frac{m}{n}', (3, 4), 7),
    ('\\sqrt{51}', 'm\\sqrt{n}', (1, 51), 52),
    ('\\sqrt{12}', 'm\\sqrt{n}', (2, 3), 5),
    ('-\\sqrt{3}', '-m\\sqrt{n}', (1, 3), 4),
    ('\\frac{\\sqrt{3}}{3}', '\\frac{m\\sqrt{n}}{p}', (1, 3, 3), 7),
    ('\\frac{1+\\sqrt{5}}{2}', '\\frac{k + m\\sqrt{n}}{p}', (1, 1, 5, 2), 9),
    ('-1-\\sqrt{5}', '-k - m\\sqrt{n}', (1, 1, 5), 7),
    (
      '\\frac{-1-\\sqrt{5}}{2}',
      '-\\frac{k + m\\sqrt{n}}{p}',
      (1, 1, 5, 2),
      9,
    ),
    ('7\\pi', 'm\\pi', (7,), 7),
    ('\\frac{\\pi}{6}', '\\frac{m\\pi}{n}', (1, 6), 7),
    ('\\pi^2/8', '\\frac{m\\pi^{2}}{n}', (1, 8), 9),
    ('\\frac{2}{\\pi}', '\\frac{m}{\\pi}', (2,), 2),
    ('\\frac{2}{3\\pi^2}', '\\frac{m}{n\\pi^{2}}', (2, 3), 5),
    ('18+2\\pi', 'k + m\\pi', (18, 2), 20),
    ('1/2+\\pi/3', '\\frac{k + m\\pi}{n}', (3, 2, 6), 11),
    ('6-5i', 'k - mi', (6, 5), 11),
    ('\\sqrt{-3}', 'mi\\sqrt{n}', (1, 3), 4),
    ('\\sqrt{3}+\\sqrt{2}', 'k\\sqrt{m} + n\\sqrt{p}', (1, 2, 1, 3), 7),
    ('\\sqrt{2}-\\sqrt{3}', 'k\\sqrt{m} - n\\sqrt{p}', (1, 2, 1, 3), 7),
  )
  def test_by_hand(self, text, name, parameters, integer):
    form = integer_forms.of_number(_value(text), _NONE)
    self.assertEqual(form.name, name)
    self.assertEqual(form.parameters, parameters)
    self.assertEqual(form.integer, integer)

  @_PROPERTY
  @hypothesis.given(_numbers())
  def test_the_form_with_its_parameters_is_the_value(self, value):
    form = integer_forms.of_number(value, _NONE)
    self.assertEqual(_filled(form.name, form.parameters), value)
    self.assertEqual(form.integer, sum(form.parameters))
    self.assertGreater(min(form.parameters), 0)
    self.assertIn(f'as ${form.name}$, where $', form.sentence)

  def test_every_choice_of_the_parameters_is_that_of_its_value(self):
    # All that the sentence allows in (k + m sqrt(n))/p: so no value has two.
    small = range(1, 6)
    seen = set()
    for k, m, n, p in itertools.product(small, small, range(2, 12), (2, 3, 4)):
      if not _is_square_free(n) or math.gcd(k, m, p) > 1:
        continue
      text = f'\\frac{{{k}+{m}\\sqrt{{{n}}}}}{{{p}}}'
      form = integer_forms.of_number(_value(text), _NONE)
      self.assertEqual(form.name, '\\frac{k + m\\sqrt{n}}{p}')
      self.assertEqual(form.parameters, (k, m, n, p))
      seen.add(sympy.Rational(k, p) + sympy.Rational(m, p) * sympy.sqrt(n))
    # 5 * 5 * 7 * 3 choices with square-free n, without those where 2 divides
    # k, m and p = 2 (4 * 7) or p = 4 (4 * 7), or 3 does with p = 3 (1 * 7).
    self.assertLen(seen, 525 - 28 - 28 - 7)

  def test_terms_that_look_alike_have_one_order(self):
    small = (1, 2)
    for a, b, c, d in itertools.product(small, (2, 3, 5), small, (3, 5, 6)):
      if b < d:
        value = _value(f'{a}\\sqrt{{{b}}}+{c}\\sqrt{{{d}}}')
        form = integer_forms.of_number(value, _NONE)
        self.assertEqual(form.parameters, (a, b, c, d))
        self.assertIn('$m < p$', form.sentence)

  @parameterized.parameters(
    (
      '3/4',
      'Write the answer as $\\frac{m}{n}$, where $m$ and $n$ are relatively '
      'prime positive integers, and give the value of $m + n$ as the final '
      'answer.',
    ),
    (
      '7\\pi',
      'Write the answer as $m\\pi$, where $m$ is a positive integer, and give '
      '$m$ as the final answer.',
    ),
    (
      '11-2\\sqrt{6}',
      'Write the answer as $k - m\\sqrt{n}$, where $k$, $m$ and $n$ are '
      'positive integers and $n$ is not divisible by the square of any prime, '
      'and give the value of $k + m + n$ as the final answer.',
    ),
    (
      '\\frac{\\sqrt{3}}{3}',
      'Write the answer as $\\frac{m\\sqrt{n}}{p}$, where $m$, $n$ and $p$ are '
      'positive integers, $m$ and $p$ are relatively prime, and $n$ is not '
      'divisible by the square of any prime, and give the value of '
      '$m + n + p$ as the final answer.',
    ),
    (
      '\\frac{\\sqrt{6}+\\sqrt{2}}{4}',
      'Write the answer as $\\frac{k\\sqrt{m} + n\\sqrt{p}}{q}$, where $k$, '
      '$m$, $n$, $p$ and $q$ are positive integers, no prime divides all of '
      '$k$, $n$ and $q$, neither $m$ nor $p$ is divisible by the square of any '
      'prime, and $m < p$, and give the value of $k + m + n + p + q$ as the '
      'final answer.',
    ),
    (
      '6-5i',
      'Write the answer as $k - mi$, where $k$ and $m$ are positive integers '
      'and $i^2 = -1$, and give the value of $k + m$ as the final answer.',
    ),
  )
  def test_sentence(self, text, sentence):
    form = integer_forms.of_number(_value(text), _NONE)
    self.assertEqual(form.sentence, sentence)

  def test_three_roots_have_a_sentence_too(self):
    value = _value('\\sqrt{2}+\\sqrt{3}+\\sqrt{5}')
    sentence = integer_forms.of_number(value, _NONE).sentence
    self.assertIn('none of $m$, $p$ and $r$ is divisible', sentence)
    self.assertIn('$m < p$, and $p < r$', sentence)

  def test_letters_of_the_statement_are_left_alone(self):
    form = integer_forms.of_number(_value('11-2\\sqrt{6}'), frozenset('kn'))
    self.assertEqual(form.name, 'm - p\\sqrt{q}')
    self.assertEqual(form.integer, 19)

  def test_there_are_letters_even_if_all_are_taken(self):
    taken = frozenset('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ')
    form = integer_forms.of_number(_value('11-2\\sqrt{6}'), taken)
    self.assertEqual(form.name, 'k_1 - k_2\\sqrt{k_3}')

  def test_a_unit_is_named(self):
    form = integer_forms.of_number(_value('270/7'), _NONE, unit='degrees')
    self.assertStartsWith(
      form.sentence, 'Write the answer in degrees as $\\frac{m}{n}$, where'
    )

  @parameterized.parameters(
    ('1+\\sqrt{2}+\\sqrt{3}+\\sqrt{5}', 'terms'),
    ('1+\\frac{1}{\\pi}', 'terms'),
    ('\\frac{1}{10^{15}}', 'too_large'),
  )
  def test_refused(self, text, reason):
    with self.assertRaises(refusals.Refusal) as caught:
      integer_forms.of_number(_value(text), _NONE)
    self.assertEqual(caught.exception.reason, reason)


class OfPolynomialTest(parameterized.TestCase):
  @parameterized.parameters(
    ('x^3+3x-6', (-6, 3, 0, 1), -2),
    ('5x^5', (0, 0, 0, 0, 0, 5), 5),
    ('-x', (0, -1), -1),
  )
  def test_coefficients_are_added_up(self, text, parameters, integer):
    form = integer_forms.of_polynomial(_value(text))
    self.assertEqual(form.parameters, parameters)
    self.assertEqual(form.integer, integer)
    self.assertEqual(form.name, 'polynomial in x')
    self.assertIn('polynomial in $x$', form.sentence)

  @parameterized.parameters(
    ('x', 'symbol'),
    ('x/2+1', 'coefficients'),
    ('\\pi x', 'coefficients'),
    ('\\sqrt{2}x+1', 'coefficients'),
    ('p-q', 'variables'),
  )
  def test_refused(self, text, reason):
    with self.assertRaises(refusals.Refusal) as caught:
      integer_forms.of_polynomial(_value(text))
    self.assertEqual(caught.exception.reason, reason)


class OfTupleTest(absltest.TestCase):
  def test_places_weigh_so_that_a_wrong_order_shows(self):
    # 6 + 2 * 31 - 3 * 1 = 65, but 31 + 2 * 6 - 3 = 40.
    form = integer_forms.of_tuple([6, 31, -1], frozenset('p'))
    self.assertEqual((form.name, form.integer), ('(k, m, n)', 65))
    self.assertEqual(integer_forms.of_tuple([31, 6, -1], _NONE).integer, 40)
    self.assertEqual(
      form.sentence,
      'Write the answer as $(k, m, n)$ with integers $k$, $m$ and $n$, and give'
      ' the value of $k + 2m + 3n$ as the final answer.',
    )

  def test_of_more_entries_than_letters_is_refused(self):
    with self.assertRaises(refusals.Refusal):
      integer_forms.of_tuple([1] * 100, _NONE)


class OfIntegerTest(absltest.TestCase):
  def test_unit_is_left_out(self):
    form = integer_forms.of_integer(90, unit='degrees')
    self.assertEqual(form.integer, 90)
    self.assertEqual(
      form.sentence,
      'Give the answer in degrees, as an integer without the unit.',
    )

  def test_no_unit_asks_for_digits(self):
    form = integer_forms.of_integer(1024)
    self.assertEqual(
      form.sentence, 'Give the answer as an integer in decimal digits.'
    )

  def test_numeral_is_its_digits(self):
    form = integer_forms.of_numeral('2516', 8)
    self.assertEqual((form.name, form.integer), ('base 8', 2516))

  def test_sixteen_digits_are_too_many(self):
    self.assertEqual(integer_forms.of_integer(10**15 - 1).integer, 10**15 - 1)
    with self.assertRaises(refusals.Refusal):
      integer_forms.of_integer(-(10**15))


if __name__ == '__main__':
  absltest.main()

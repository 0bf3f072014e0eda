"""Tests of the exact values of formulas."""

import time
from fractions import Fraction

from absl.testing import absltest, parameterized

from dapo_jax.rewards import exact_value, latex_parser


def _value(text):
  return exact_value.rational(latex_parser.parse(text))


class DecimalTest(parameterized.TestCase):
  @parameterized.parameters(
    ('0.1', Fraction(1, 10)),
    ('-1.50', Fraction(-3, 2)),
    ('.5', Fraction(1, 2)),
    ('5.', Fraction(5)),
    ('1e-3', Fraction(1, 1000)),
    ('007', Fraction(7)),
  )
  def test_hand_worked(self, text, expected):
    self.assertEqual(exact_value.decimal(text), expected)

  @parameterized.parameters('', 'x', '1/2', '1e9999', '1 2', '٤', '9' * 4_001)
  def test_refuses(self, text):
    self.assertIsNone(exact_value.decimal(text))


class RationalTest(parameterized.TestCase):
  @parameterized.parameters(
    ('0.1+0.2', Fraction(3, 10)),
    ('\\frac{6}{8}', Fraction(3, 4)),
    ('2^{-3}', Fraction(1, 8)),
    ('3.2*10^5', Fraction(320_000)),
    ('8^{2/3}', Fraction(4)),
    ('\\sqrt{16}', Fraction(4)),
    ('\\sqrt[3]{\\frac{8}{27}}', Fraction(2, 3)),
    ('\\sqrt[3]{1000000}', Fraction(100)),
    ('5!', Fraction(120)),
    ('\\binom52', Fraction(10)),
    ('|-3|', Fraction(3)),
    ('⌊-2.5⌋', Fraction(-3)),
    ('\\gcd(4,6)', Fraction(2)),
    ('\\frac{100!}{98!}', Fraction(9900)),
    ('(-1)^{10^9}', Fraction(1)),
    ('(-1)^{10^9+1}', Fraction(-1)),
  )
  def test_hand_worked(self, text, expected):
    self.assertEqual(_value(text), expected)

  def test_tiny_and_huge_numbers_are_told_apart(self):
    self.assertNotEqual(
      _value('\\frac{1}{2^{99}}'), _value('\\frac{1}{2^{98}}')
    )
    self.assertNotEqual(_value('\\frac{1}{2004!}'), _value('\\frac{1}{2006!}'))
    self.assertNotEqual(_value('2^{2000}'), _value('2^{2000}+1'))

  @parameterized.parameters(
    'x',
    '\\sqrt2',
    '\\pi',
    '\\frac10',
    '0^0',
    '0^{-1}',
    '\\sqrt{-4}',
    '(-8)^{1/3}',
    '(-1)!',
    '\\binom{5}{-1}',
    '∞',
    'f(2)',
  )
  def test_no_rational_value(self, text):
    self.assertIsNone(_value(text))

  @parameterized.parameters(
    '9^{9^{9}}',
    '9^{9^{9^{9}}}',
    '(10^{10^{10}})!',
    '((10!)!)!',
    '2^{-10^{9}}',
    '\\binom{10^9}{10^8}',
    '\\sqrt[60]{' + '9' * 500 + '}',
  )
  def test_no_value_is_sought_for_long(self, text):
    start_s = time.perf_counter()
    self.assertIsNone(_value(text))
    self.assertLess(time.perf_counter() - start_s, 0.5)


if __name__ == '__main__':
  absltest.main()

"""Tests of the guard before the parser of others."""

import sympy
from absl.testing import absltest, parameterized

from dapo_jax.rewards import latex_guard


class AllowsTest(parameterized.TestCase):
  @parameterized.parameters(
    '\\sum_{k=1}^{n}k',
    '\\sum_{k=1}^{100}k^2',
    '\\int_0^1 x^2 dx',
    '\\prod_{k=1}^{n}k',
    '\\frac{n(n+1)}{2}',
  )
  def test_formulas(self, text):
    self.assertTrue(latex_guard.allows(text))

  @parameterized.parameters(
    "\\pi*open('f')",
    '\\pi;1',
    '\\pi @',
    '\\input{f}',
    '\\write18{ls}',
    '9^{9^{9}}\\pi',
    '9^{{9}^{9}}\\pi',
    '2^{(99)(99)(99)}\\pi',
    '2^{10000}\\pi',
    '(\\pi)!',
    '100!\\pi',
    '3!!\\pi',
    '\\prod_{i=1}^{99}\\prod_{j=1}^{99}\\prod_{k=1}^{99}9',
    '((9^{99})^{99})^{99}(9)^{99}\\pi',
    '\\sum_{k=1}^{99999}k',
    '\\pi' * 200,
    '{' * 9 + '\\pi' + '}' * 9,
  )
  def test_refuses(self, text):
    self.assertFalse(latex_guard.allows(text))


class IsNeededTest(absltest.TestCase):
  def test_only_for_what_we_do_not_read(self):
    self.assertTrue(latex_guard.is_needed('\\sum_{k=1}^{n}k'))
    self.assertFalse(latex_guard.is_needed('\\frac{1}{2}'))


class ParseTest(parameterized.TestCase):
  def test_sums_and_integrals_are_done(self):
    self.assertEqual(latex_guard.parse('\\sum_{k=1}^{4}k'), 10)
    self.assertEqual(
      latex_guard.parse('\\int_0^1 x^2 dx'), sympy.Rational(1, 3)
    )

  def test_decimals_are_exact(self):
    self.assertEqual(
      latex_guard.parse('0.1\\pi') / sympy.pi, sympy.Rational(1, 10)
    )

  @parameterized.parameters('\\sum', '\\pi junk(((', '\\frac', '\\pi=3')
  def test_refuses_what_it_does_not_know_whole(self, text):
    with self.assertRaises(latex_guard.Refused):
      latex_guard.parse(text)


if __name__ == '__main__':
  absltest.main()

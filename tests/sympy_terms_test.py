"""Tests of formulas as SymPy expressions."""

import sympy
from absl.testing import absltest, parameterized

from dapo_jax.rewards import latex_parser, sympy_terms


def _expression(text):
  return sympy_terms.expression(latex_parser.parse(text))


class ExpressionTest(parameterized.TestCase):
  def test_hand_worked(self):
    x = sympy.Symbol('x', real=True)
    for text, expected in (
      ('0.1', sympy.Rational(1, 10)),
      ('2x+1', 2 * x + 1),
      ('\\frac{x}{2}', x / 2),
      ('e^{i\\pi}', sympy.Integer(-1)),
      ('\\sqrt[3]{-8}', sympy.Integer(-2)),
      ('\\sin 30°', sympy.Rational(1, 2)),
      ('90°', sympy.Integer(90)),
      ('\\log 100', sympy.log(100) / sympy.log(10)),
      ('\\ln e', sympy.Integer(1)),
      ('n!', sympy.factorial(sympy.Symbol('n', real=True))),
      ('-∞', -sympy.oo),
    ):
      self.assertEqual(_expression(text), expected, text)

  def test_unknown_functions_depend_on_their_arguments(self):
    self.assertEqual(_expression('f(x+1)'), _expression('f(1+x)'))
    self.assertNotEqual(_expression('f(x)'), _expression('f(y)'))
    self.assertNotEqual(_expression('f(2x)'), _expression('2f(x)'))

  @parameterized.parameters(
    '9^{9^{9}}',
    '10^{-999999999}',
    '(x+1)^{100000}',
    '(x+y+z)^{61}',
    'x^{10^9}',
    '(10^{10})!',
    '(-1)!',
    '\\binom{10^9}{5}',
    '\\frac{x}{0}',
    '0^0',
    '0^x',
    '∞-∞',
    '\\frac{4}{∞}',
    '\\ln 0',
    '\\log_1 5',
    'e^{10^9}',
    '\\sqrt[1000]{2}',
    '\\sin(1,2)',
  )
  def test_refuses_what_takes_long_or_has_no_meaning(self, text):
    with self.assertRaises(sympy_terms.Refused):
      _expression(text)


if __name__ == '__main__':
  absltest.main()

"""Tests of the tokens of formulas."""

from fractions import Fraction

from absl.testing import absltest, parameterized

from dapo_jax.rewards import latex_tokens


class SplitTest(parameterized.TestCase):
  @parameterized.parameters(
    ('2x', ['2', 'x']),
    ('\\frac12', ['\\frac', '12']),
    ('.5+5.', ['.5', '+', '5.']),
    ('2 1/4', ['2 1/4']),
    ('0.1\\overline{6}', ['0.1\\overline{6}']),
    ('\\overline{AB}', ['\\overline{AB}']),
    ('\\sin 2x', ['\\sin', '2', 'x']),
    ('sqrt(x)', ['sqrt', '(', 'x', ')']),
    ('ab', ['a', 'b']),
  )
  def test_hand_worked(self, text, expected):
    self.assertEqual(latex_tokens.split(text), ['', *reversed(expected)])

  @parameterized.parameters(
    '',
    'a@b',
    '"x"',
    'x;y',
    'x' * (latex_tokens.LONGEST_CHARACTERS + 1),
    '(' * (latex_tokens.DEEPEST + 1),
    '\\frac' * (10 * latex_tokens.DEEPEST + 1),
  )
  def test_refuses(self, text):
    self.assertIsNone(latex_tokens.split(text))


class ValueTest(parameterized.TestCase):
  @parameterized.parameters(
    ('12', Fraction(12)),
    ('.5', Fraction(1, 2)),
    ('5.', Fraction(5)),
    ('2 1/4', Fraction(9, 4)),
    # 3/9, 1/10 + 6/90, 12/99.
    ('0.\\overline{3}', Fraction(1, 3)),
    ('0.1\\overline{6}', Fraction(1, 6)),
    ('.\\dot{12}', Fraction(4, 33)),
    ('1.\\overline{9}', Fraction(2)),
    ('0.\\overline 3', Fraction(1, 3)),
    ('1.(6)', Fraction(5, 3)),
  )
  def test_hand_worked(self, token, expected):
    self.assertEqual(latex_tokens.value(token), expected)

  def test_fraction_of_a_mixed_number_is_below_one(self):
    self.assertIsNone(latex_tokens.value('4 10/3'))
    self.assertIsNone(latex_tokens.value('4 0/0'))


if __name__ == '__main__':
  absltest.main()

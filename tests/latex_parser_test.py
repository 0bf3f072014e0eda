"""Tests of the reading of formulas."""

import time

from absl.testing import absltest, parameterized

from dapo_jax.rewards import latex_parser


def _shown(tree):
  """A tree as nested calls."""
  if tree is None or not tree.parts:
    return str(tree and tree.value)
  name = tree.value if tree.op == 'call' else tree.op
  return f'{name}({", ".join(_shown(part) for part in tree.parts)})'


class ParseTest(parameterized.TestCase):
  @parameterized.parameters(
    ('\\frac12', 'quotient(1, 2)'),
    ('\\frac 59', 'quotient(5, 9)'),
    ('\\frac9{19}', 'quotient(9, 19)'),
    ('\\frac{270}7', 'quotient(270, 7)'),
    ('\\frac\\pi2', 'quotient(pi, 2)'),
    ('\\sqrt51', 'root(51, 2)'),
    ('4\\sqrt(2)', 'product(4, root(2, 2))'),
    ('\\sqrt[3]{2}', 'root(2, 3)'),
    ('\\sqrt\\frac12', 'root(quotient(1, 2), 2)'),
    ('2x', 'product(2, x)'),
    ('x(x+1)', 'product(x, sum(x, 1))'),
    ('-x^2', 'product(-1, power(x, 2))'),
    ('2^{-3}', 'power(2, -3)'),
    ('e^-x', 'power(e, product(-1, x))'),
    ('x^10', 'power(x, 10)'),
    ('1/2x', 'product(quotient(1, 2), x)'),
    ('2*-3', 'product(2, -3)'),
    ('--5', '5'),
    ('n!', 'factorial(n)'),
    ('\\binom52', 'binomial(5, 2)'),
    ('|x-1|+2', 'sum(abs(sum(x, -1)), 2)'),
    ('2|x|', 'product(2, abs(x))'),
    ('⌊x⌋', 'floor(x)'),
    ('x_{n+1}^2', 'power(x_n+1, 2)'),
    ("f'", "f'"),
    ('f(x)', 'f(x)'),
    ('∞', 'infinity'),
  )
  def test_hand_worked(self, text, expected):
    self.assertEqual(_shown(latex_parser.parse(text)), expected)

  @parameterized.parameters(
    ('1\\frac{1}{4}', '5/4'),
    ('2 1/4', '9/4'),
    ('-2\\frac12', '-5/2'),
    # What is no mixed number is a product.
    ('4\\frac{10}{3}', 'product(4, quotient(10, 3))'),
    ('x\\frac12', 'product(x, quotient(1, 2))'),
    ('2*\\frac12', 'product(2, quotient(1, 2))'),
    ('2(\\frac12)', 'product(2, quotient(1, 2))'),
  )
  def test_mixed_numbers(self, text, expected):
    self.assertEqual(_shown(latex_parser.parse(text)), expected)

  @parameterized.parameters(
    ('\\sin 2x', 'sin(product(2, x))'),
    ('\\sin x\\cos x', 'product(sin(x), cos(x))'),
    ('\\sin(x)y', 'product(sin(x), y)'),
    ('\\sin^2 x+1', 'sum(power(sin(x), 2), 1)'),
    ('\\sin^{-1} x', 'arcsin(x)'),
    ('\\log_2 8', 'log(8, 2)'),
    ('\\log_{10}x', 'log(x, 10)'),
    ('\\tan 30°', 'tan(degrees(30))'),
    ('\\gcd(4,6)', 'gcd(4, 6)'),
  )
  def test_functions(self, text, expected):
    self.assertEqual(_shown(latex_parser.parse(text)), expected)

  @parameterized.parameters(
    'x+1 junk(((',
    '4 10/3',
    '1 2',
    'x2',
    '\\sqrt',
    '\\frac1',
    '\\frac123',
    '10!!',
    '30°°',
    '30°!',
    '()',
    '2+',
    '1.2.3',
    '||x|-1|',
    '\\cot^{-1} x',
    '\\frac sin 2',
    '\\sum_{k=1}^{n}k',
    "open('f','w').write('x')*\\pi",
    '__import__',
    '1=1',
    '',
  )
  def test_refuses_what_it_does_not_know_whole(self, text):
    self.assertIsNone(latex_parser.parse(text))

  @parameterized.parameters(
    '(',
    '|',
    '-',
    '\\frac',
    '\\sqrt',
    'x',
    '^',
    '2^',
    '1+',
    '\\sin ',
    '{',
    '(1+',
  )
  def test_no_text_takes_long_or_raises(self, piece):
    for text in ((piece * 2_000)[:1_990], piece * 25 + '1' + ')' * 25):
      start_s = time.perf_counter()
      latex_parser.parse(text)
      self.assertLess(time.perf_counter() - start_s, 1.0)


if __name__ == '__main__':
  absltest.main()

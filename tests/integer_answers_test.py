"""Tests of `dapo_jax.data.integer_answers`."""

import math
import subprocess
import sys
from fractions import Fraction

import hypothesis
import sympy
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from dapo_jax.data import integer_answers, refusals

_PROPERTY = hypothesis.settings(
  max_examples=100, deadline=None, derandomize=True, database=None
)
_CIRCLE = (
  'Let $x$ and $y$ be real numbers such that'
  ' $x^2 + y^2 - 22x - 16y + 113 = 0.$ Determine the smallest possible value'
  ' of $x.$'
)


def _rewritten(answer, statement='What is it?'):
  """Returns the form and the integer of an answer."""
  found = integer_answers.by_rule(statement, answer)
  return found.form, found.integer


def _reason(answer, statement):
  """Returns what an answer is refused for."""
  try:
    found = integer_answers.by_rule(statement, answer)
  except refusals.Refusal as refusal:
    return refusal.reason
  raise AssertionError(f'{answer} was read as {found.form}')


def _spellings(k: int, m: int, n: int, p: int) -> list[str]:
  """Returns (k + m sqrt(n))/p in ways that people write it."""
  sign = '+' if m > 0 else '-'
  size = abs(m)
  root = f'\\sqrt{{{n}}}'
  term = root if size == 1 else f'{size}{root}'
  plain = f'({k} {sign} {size}*sqrt({n}))/{p}'
  reverse = f'{"-" if m < 0 else ""}{term}{"+" if k > 0 else ""}{k}'
  found = [
    f'\\frac{{{k}{sign}{term}}}{{{p}}}',
    f'$\\dfrac{{{k} {sign} {size} \\cdot {root}}}{{{p}}}$',
    f'\\frac{{{k}}}{{{p}}} {sign} \\frac{{{term}}}{{{p}}}.',
    f'\\boxed{{\\frac{{{reverse}}}{{{p}}}}}',
    f'\\frac{{{k}{sign}\\sqrt{{{size * size * n}}}}}{{{p}}}',
    f'\\frac1{{{p}}}\\left({k}{sign}{term}\\right)',
    f'\\frac{{{2 * k}{sign}{2 * size}{root}}}{{{2 * p}}}',
    plain,
  ]
  return found


def _by_sympy(value: sympy.Expr) -> int:
  """Returns the sum of the parameters of a + b sqrt(n), as sympy sees it."""
  parts = sympy.expand(value).as_coefficients_dict()
  denominator = math.lcm(*(int(a.q) for a in parts.values()))
  total = denominator if denominator > 1 else 0
  for root, a in parts.items():
    total += abs(int(a * denominator))
    if root != 1:
      total += int(root**2)
  return total


class ByRuleTest(parameterized.TestCase):
  # (x - 11)^2 + (y - 8)^2 = 72, so the answer is 11 - 6 sqrt(2); the form and
  # the sum, 11 + 6 + 2, are those of 11 - 2 sqrt(6) too.
  @parameterized.parameters('11-2\\sqrt{6}', '11-6\\sqrt{2}')
  def test_the_papers_example(self, answer):
    found = integer_answers.by_rule(_CIRCLE, answer)
    self.assertEqual(found.form, 'k - m\\sqrt{n}')
    self.assertEqual(found.integer, 19)
    self.assertEqual(
      found.statement,
      f'{_CIRCLE}\n\nWrite the answer as $k - m\\sqrt{{n}}$, where $k$, $m$'
      ' and $n$ are positive integers and $n$ is not divisible by the square'
      ' of any prime, and give the value of $k + m + n$ as the final answer.',
    )

  @parameterized.parameters(
    ('42', 42),
    ('-7', -7),
    ('033', 33),
    ('$42$.', 42),
    ('10,\\!080', 10080),
    ('58,500', 58500),
  )
  def test_an_integer_stays_with_its_statement(self, answer, integer):
    self.assertEqual(
      integer_answers.by_rule('What is it? ', answer),
      ('What is it? ', integer, integer_answers.UNCHANGED),
    )

  @parameterized.parameters(
    ('\\frac{6}{3}', 'integer', 2),
    ('2^{10}', 'integer', 1024),
    ('90^\\circ', 'integer', 90),
    ('\\$18.90', 'integer', 1890),
    ('\\$36', 'integer', 36),
    ('25\\%', 'integer', 25),
    ('1.25', '\\frac{m}{n}', 9),  # 5/4
    ('12.5\\%', '\\frac{m}{n}', 27),  # 25/2
    ('1\\frac{4}{5}', '\\frac{m}{n}', 14),  # 9/5
    ('\\frac{\\pi}{6}', '\\frac{m\\pi}{n}', 7),
    ('2516_8', 'base 8', 2516),
    ('4210_{5}', 'base 5', 4210),
    ('(1,-16,-4,43)', '(k, m, n, p)', 129),  # 1 - 32 - 12 + 172
  )
  def test_forms(self, answer, form, integer):
    self.assertEqual(_rewritten(answer), (form, integer))

  def test_cents_are_asked_for_where_dollars_have_them(self):
    found = integer_answers.by_rule('How much?', '\\$18.90')
    self.assertEndsWith(
      found.statement, 'in cents, as an integer without the unit.'
    )

  @parameterized.parameters(
    ('1.25', 'Write it as a decimal.', 'decimal'),
    ('(2,4)', 'Solve it.', 'interval'),
    ('(2,4]', 'Which point is it?', 'interval'),
    ('[2,4]', 'Which point is it?', 'interval'),
    ('(1/2,4)', 'Which point is it?', 'tuple'),
    ('(\\pi,4)', 'Which point is it?', 'tuple'),
    ('(1,2),(3,4)', 'Which points are they?', 'several'),
    # 1000 and 2, or three entries?
    ('(1,000,2)', 'Which point is it?', 'ambiguous'),
    ('\\sqrt{-3}', 'Find $\\sum_{i=1}^n a_i$.', 'ambiguous'),
    ('\\frac{1}{x}', 'Simplify it for $x > 0$.', 'variables'),
    ('5 and 6', 'Which are they?', 'several'),
    ('1.25', 'How far is it, to the hundredths place?', 'decimal'),
    ('1,-2', 'Solve it.', 'several'),
    ('58,500', 'List all of them, with commas.', 'several'),
    ('1,2^\\circ', 'Which angles?', 'several'),
    ('\\frac{1,2}{3}', 'What is it?', 'unreadable'),
    ('2x+1', 'Find $f(y)$.', 'symbol'),
    ('C', 'Choose $A$, $B$ or $C$.', 'symbol'),
    ('2x^\\circ', 'What is the angle beside $x$?', 'unit'),
    ('2i', 'Find the $i$-th term.', 'symbol'),
    ('59_8', 'What is it in base 8?', 'unreadable'),
    ('05_8', 'What is it in base 8?', 'unreadable'),
    ('12_{16}', 'What is it in base 16?', 'unreadable'),
    ('1234567890123456', 'How many?', 'too_large'),
  )
  def test_refused(self, answer, statement, reason):
    self.assertEqual(_reason(answer, statement), reason)

  @parameterized.parameters(
    ('(2,4)', 'Which point is it?', 10),
    ('\\left( 2, 4 \\right)', 'Enter the ordered pair $(a,b)$.', 10),
    ('2k+2', 'Simplify $(-k + 4) + (-2 + 3k)$.', 4),
    ('6 - 5i', 'Rotate $7 + 2i$.', 11),
  )
  def test_the_statement_tells_how_to_read(self, answer, statement, integer):
    self.assertEqual(_rewritten(answer, statement)[1], integer)

  def test_letters_of_the_statement_are_not_used_again(self):
    found = integer_answers.by_rule('Let $m + n = 1.$ Find $m$.', '3/4')
    self.assertIn('$\\frac{p}{q}$', found.statement)

  @_PROPERTY
  @hypothesis.given(
    k=st.integers(-20, 20).filter(bool),
    m=st.integers(-20, 20).filter(bool),
    n=st.integers(2, 40).filter(lambda n: math.isqrt(n) ** 2 != n),
    p=st.integers(1, 9),
  )
  def test_every_spelling_has_the_integer_of_sympy(self, k, m, n, p):
    found = {
      integer_answers.by_rule('What is it?', text)
      for text in _spellings(k, m, n, p)
    }
    self.assertLen(found, 1)
    value = (k + m * sympy.sqrt(n)) / sympy.Integer(p)
    self.assertEqual(found.pop().integer, _by_sympy(value))

  @_PROPERTY
  @hypothesis.given(
    st.fractions(-50, 50, max_denominator=60).filter(
      lambda f: f.denominator > 1
    )
  )
  def test_every_spelling_of_a_fraction_has_one_integer(self, value):
    top, bottom = value.numerator, value.denominator
    sign, size = ('-' if top < 0 else ''), abs(top)
    spellings = [
      f'{top}/{bottom}',
      f'{sign}\\frac{{{size}}}{{{bottom}}}',
      f'\\frac{{{3 * top}}}{{{3 * bottom}}}',
      f'${sign}\\tfrac{{{size}}}{{{bottom}}}$',
    ]
    if size > bottom:
      whole, rest = divmod(size, bottom)
      spellings += [
        f'{sign}{whole}\\frac{{{rest}}}{{{bottom}}}',
        f'{sign}{whole} {rest}/{bottom}',
      ]
    if 1000 % bottom == 0:
      spellings.append(f'{float(Fraction(top, bottom)):.3f}')
    found = {_rewritten(text) for text in spellings}
    self.assertEqual(found, {(f'{sign}\\frac{{m}}{{n}}', size + bottom)})


class ImportTest(absltest.TestCase):
  def test_brings_no_computer_algebra(self):
    code = (
      'import sys; import dapo_jax.data.integer_answers;'
      ' print({"sympy", "numpy", "jax"} & set(sys.modules))'
    )
    done = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True
    )
    self.assertEqual(done.stdout.strip(), 'set()')


if __name__ == '__main__':
  absltest.main()

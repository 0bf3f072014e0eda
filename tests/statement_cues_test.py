"""Tests of `dapo_jax.data.statement_cues`."""

from absl.testing import absltest, parameterized

from dapo_jax.data import statement_cues


class LettersTest(parameterized.TestCase):
  @parameterized.parameters(
    ('Let $p(n) = 2n$ be a number.', 'pn'),
    ('Solve \\[2kx = \\frac{m}{3}.\\]', 'kxm'),
    ('\\begin{align*} a &= b \\end{align*}', 'ab'),
    ('It costs \\$5 to \\$7 a day, I think.', ''),
    ('$\\text{area} = \\sqrt{\\pi} r^2$', 'r'),
    ('Find x if 3xy + z^2 = 1.', 'xyz'),
    ('Draw $A$. [asy] pair q = (0,0); $w$ [/asy]', 'A'),
    ('The angle \\alpha in \\triangle ABC.', ''),
  )
  def test_by_hand(self, statement, expected):
    self.assertEqual(statement_cues.letters(statement), frozenset(expected))


class CueTest(parameterized.TestCase):
  @parameterized.parameters(
    ('Write $3/20$ as a decimal.', True),
    ('Round to the nearest tenth.', True),
    ('How far is it, to the hundredths place?', True),
    ('Use $\\pi \\approx 3.14$.', True),
    ('Give it correct to two places.', True),
    ('In which place is she?', False),
    ('Find the area of the square.', False),
    ('[asy] // nearest [/asy] Find the area.', False),
  )
  def test_decimals(self, statement, expected):
    self.assertEqual(statement_cues.asks_for_decimal(statement), expected)

  @parameterized.parameters(
    ('Enter the ordered pair $(a,b)$.', True),
    ('What point is it reflected to?', True),
    ('Solve $x^2 < 4$.', False),
    ('For which points is it positive? Use interval notation.', False),
  )
  def test_tuples(self, statement, expected):
    self.assertEqual(statement_cues.asks_for_tuple(statement), expected)

  @parameterized.parameters(
    ('Find all integers, separated by commas.', True),
    ('How many ways are there?', False),
  )
  def test_lists(self, statement, expected):
    self.assertEqual(statement_cues.asks_for_list(statement), expected)

  @parameterized.parameters(
    ('Rotate $7 + 2i$ around the origin.', True),
    ('Find the complex number $z$.', True),
    ('Let $i^2 = -1$.', True),
    ('What is the sum? It is (a) 2 - I think.', False),
    ('Find $\\sum_{i=1}^n (2i + a_i)$.', False),
    ('The $i$-th term is $2i$.', False),
    ('Let $a_i = 2i$.', False),
    ('For $1 \\le i \\le n$, colour 2i squares.', False),
  )
  def test_imaginary_unit(self, statement, expected):
    self.assertEqual(statement_cues.has_imaginary_unit(statement), expected)


if __name__ == '__main__':
  absltest.main()

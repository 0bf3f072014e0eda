"""Tests of equality by algebra."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import symbolic_equality


class EqualTest(parameterized.TestCase):
  @parameterized.parameters(
    ('\\sqrt8', '2\\sqrt2'),
    ('\\frac{1}{\\sqrt2}', '\\frac{\\sqrt2}{2}'),
    ('\\sqrt{3+2\\sqrt2}', '1+\\sqrt2'),
    ('\\cos 36°', '\\frac{1+\\sqrt5}{4}'),
    ('(x+1)^2', 'x^2+2x+1'),
    ('\\frac{x^2-1}{x-1}', 'x+1'),
    ('\\sin^2 x', '1-\\cos^2 x'),
    ('\\sqrt{x^2}', '|x|'),
    ('\\sqrt{\\frac1n}', '\\frac{1}{\\sqrt n}'),
    ('\\ln(ab)', '\\ln a+\\ln b'),
    # n is whole.
    ('\\cos(n\\pi)', '(-1)^n'),
    ('\\sum_{k=1}^{n}k', '\\frac{n(n+1)}{2}'),
    ('∞', '∞'),
  )
  def test_equal(self, answer, gold):
    self.assertTrue(symbolic_equality.equal(answer, gold))

  @parameterized.parameters(
    ('\\sqrt8', '2\\sqrt3'),
    ('1.414', '\\sqrt2'),
    ('\\frac{22}{7}', '\\pi'),
    # By 1e-40 and by e^-1000: no tolerance.
    ('\\sqrt2+10^{-40}', '\\sqrt2'),
    ('e^{-1000}+1', '1'),
    # It is an integer to 12 places behind the point.
    ('e^{\\pi\\sqrt{163}}', '262537412640768744'),
    ('\\sqrt{x^2}', 'x'),
    ('\\sqrt{x^2y}', 'x\\sqrt y'),
    ('|a|+|b|', '|a+b|'),
    ('\\sin x', '\\sin y'),
    ('1-\\frac1e', '1+\\frac1e'),
    ('(-1)^n', '1'),
    ('n', 'x'),
    ('∞', '-∞'),
    ('∞-∞', '0'),
    ('\\frac{x}{0}', 'x'),
    ('9^{9^{9}}', '1'),
    ('junk(', '1'),
    ("open('f')", '1'),
    # A matrix beside a number: SymPy raises.
    ('2\\begin{pmatrix}1&2\\end{pmatrix}3', '4210'),
    ('6020\\begin{pmatrix}000\\end{pmatrix}00', '4210'),
  )
  def test_not_equal(self, answer, gold):
    self.assertFalse(symbolic_equality.equal(answer, gold))


class CanReadTest(parameterized.TestCase):
  @parameterized.parameters(
    ('x+1', '1'), ('\\int_0^1 x dx', '\\frac12'), ('1', '\\sum_{k=1}^{n}k')
  )
  def test_one_reader_for_both(self, answer, gold):
    self.assertTrue(symbolic_equality.can_read(answer, gold))

  @parameterized.parameters(
    ('junk(', '1'),
    # The other parser would guess at what ours refuses.
    ('1 2', '12'),
    ('1 2', '\\sum_{k=1}^{n}k'),
    ('\\int_0^1 f dx', 'f\\circ g'),
  )
  def test_none_for_both(self, answer, gold):
    self.assertFalse(symbolic_equality.can_read(answer, gold))


class ProportionalTest(parameterized.TestCase):
  @parameterized.parameters(
    ('(y)-(-x/2+3/4)', '(2x+4y-3)-(0)'),
    ('x-y', 'y-x'),
    ('(y)-(3/x)', '(xy)-(3)'),
    ('\\frac{x^2}{4}+\\frac{y^2}{9}-1', '9x^2+4y^2-36'),
  )
  def test_same_curve(self, answer, gold):
    self.assertTrue(symbolic_equality.proportional(answer, gold, False))

  @parameterized.parameters(
    ('3x+4y+14', '3x-y+13'),
    ('x+y', 'x-y'),
    ('x^2-x', 'x-1'),
    # No line at all.
    ('x-x', 'y-y'),
    ('x-x', 'x-y'),
    ('4-5', '1-2'),
  )
  def test_other_curve(self, answer, gold):
    self.assertFalse(symbolic_equality.proportional(answer, gold, False))

  def test_direction_of_an_inequality(self):
    self.assertTrue(symbolic_equality.proportional('2x-2y', 'x-y', True))
    self.assertFalse(symbolic_equality.proportional('y-x', 'x-y', True))
    self.assertTrue(symbolic_equality.proportional('y-x', 'x-y', False))


if __name__ == '__main__':
  absltest.main()

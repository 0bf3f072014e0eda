"""Tests of `dapo_jax.data.surds`, most of them against sympy."""

from fractions import Fraction

import hypothesis
import sympy
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

import sympy_sums
from dapo_jax.data import refusals, surds

_PROPERTY = hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)


def _root(number) -> surds.Sum:
  return surds.square_root(surds.constant(number))


@st.composite
def _values(draw):
  """Sums of a few fractions times roots, some imaginary."""
  total = {}
  for _ in range(draw(st.integers(1, 3))):
    a = Fraction(draw(st.integers(-9, 9)), draw(st.integers(1, 6)))
    root = _root(draw(st.sampled_from([1, 1, 2, 3, 6, 8, 12, 15, -1, -2])))
    total = surds.add(total, surds.multiply(surds.constant(a), root))
  return total


class ArithmeticTest(parameterized.TestCase):
  @_PROPERTY
  @hypothesis.given(left=_values(), right=_values())
  def test_sums_and_products_are_sympys(self, left, right):
    for ours, theirs in (
      (
        surds.add(left, right),
        sympy_sums.to_sympy(left) + sympy_sums.to_sympy(right),
      ),
      (
        surds.multiply(left, right),
        sympy_sums.to_sympy(left) * sympy_sums.to_sympy(right),
      ),
    ):
      self.assertEqual(sympy.expand(sympy_sums.to_sympy(ours) - theirs), 0)

  @_PROPERTY
  @hypothesis.given(value=_values())
  def test_a_value_times_its_reciprocal_is_1(self, value):
    hypothesis.assume(value)
    product = surds.multiply(value, surds.reciprocal(value))
    self.assertEqual(product, surds.constant(1))

  def test_reciprocal_by_hand(self):
    # 1/(3 - sqrt(2)) = (3 + sqrt(2))/7.
    value = surds.add(surds.constant(3), surds.negative(_root(2)))
    self.assertEqual(
      surds.reciprocal(value),
      {surds.Shape(): Fraction(3, 7), surds.Shape(2): Fraction(1, 7)},
    )

  def test_what_cancels_leaves_no_term(self):
    # sqrt(8) - 2 sqrt(2) = 0.
    twice = surds.multiply(surds.constant(-2), _root(2))
    self.assertEqual(surds.add(_root(8), twice), {})

  def test_pi_has_exponents_below_0(self):
    inverse = surds.reciprocal(surds.multiply(surds.constant(2), surds.pi()))
    self.assertEqual(inverse, {surds.Shape(1, -1): Fraction(1, 2)})
    self.assertEqual(
      surds.multiply(inverse, surds.pi()), surds.constant(Fraction(1, 2))
    )

  def test_power_below_0_is_of_the_reciprocal(self):
    # (1 + sqrt(2))^-2 = (sqrt(2) - 1)^2 = 3 - 2 sqrt(2).
    value = surds.add(surds.constant(1), _root(2))
    self.assertEqual(
      surds.power(value, -2), {surds.Shape(): 3, surds.Shape(2): -2}
    )

  def test_variables_are_sorted_so_that_xy_is_yx(self):
    x, y = surds.variable('x'), surds.variable('y')
    self.assertEqual(surds.multiply(x, y), surds.multiply(y, x))


class SquareRootTest(parameterized.TestCase):
  @parameterized.parameters(
    (12, 2, 3),  # sqrt(4 * 3)
    (1, 1, 1),
    (Fraction(2, 3), Fraction(1, 3), 6),  # sqrt(6)/3
    (-4, 2, -1),
    (Fraction(9, 4), Fraction(3, 2), 1),
    (999_999_937, 1, 999_999_937),  # the largest prime below 10^9
  )
  def test_squares_come_out(self, number, outside, inside):
    self.assertEqual(_root(number), {surds.Shape(inside): outside})

  def test_of_0_is_0(self):
    self.assertEqual(_root(0), {})


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(
    ('root', lambda: surds.square_root(_root(2))),
    ('too_large', lambda: _root(10**9 + 7)),
    ('too_large', lambda: surds.constant(2**128)),
    ('too_large', lambda: surds.power(surds.constant(10), 64)),
    ('power', lambda: surds.power(surds.constant(1), 65)),
    ('power', lambda: surds.power({}, 0)),
    ('unreadable', lambda: surds.reciprocal({})),
    ('variables', lambda: surds.reciprocal(surds.variable('x'))),
    (
      'terms',
      lambda: surds.reciprocal(surds.add(surds.constant(1), surds.pi())),
    ),
  )
  def test_is_for_the_reason(self, reason, compute):
    with self.assertRaises(refusals.Refusal) as caught:
      compute()
    self.assertEqual(caught.exception.reason, reason)

  def test_many_terms_are_refused(self):
    one_more = surds.add(surds.variable('x'), surds.constant(1))
    self.assertLen(surds.power(one_more, 63), 64)
    with self.assertRaises(refusals.Refusal):
      surds.power(one_more, 64)


if __name__ == '__main__':
  absltest.main()

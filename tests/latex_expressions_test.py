"""Tests of `dapo_jax.data.latex_expressions`."""

from fractions import Fraction

import hypothesis
import sympy
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

import sympy_sums
from dapo_jax.data import latex_expressions, refusals, surds

_PROPERTY = hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)


def _parse(text: str) -> surds.Sum:
  return latex_expressions.parse(text, imaginary=True)


def _reason(text: str, *, imaginary: bool = True) -> str:
  """Returns what a text is refused for."""
  try:
    value = latex_expressions.parse(text, imaginary=imaginary)
  except refusals.Refusal as refusal:
    return refusal.reason
  raise AssertionError(f'{text} was read as {value}')


class NumberTest(parameterized.TestCase):
  @parameterized.parameters(
    ('12', 12),
    ('-3', -3),
    ('+3', 3),
    ('1.25', Fraction(5, 4)),
    ('.5', Fraction(1, 2)),
    ('0.1\\overline{6}', Fraction(1, 6)),  # 1/10 + 6/90
    ('.\\overline{27}', Fraction(3, 11)),  # 27/99
    ('\\frac{3}{4}', Fraction(3, 4)),
    ('\\dfrac{3}{4}', Fraction(3, 4)),
    ('\\frac34', Fraction(3, 4)),
    ('\\frac 34', Fraction(3, 4)),
    ('\\frac9{19}', Fraction(9, 19)),
    ('\\frac{270}7', Fraction(270, 7)),
    ('-3/4', Fraction(-3, 4)),
    ('\\frac{-3}{4}', Fraction(-3, 4)),
    ('1\\frac{4}{5}', Fraction(9, 5)),
    ('-1\\frac45', Fraction(-9, 5)),
    ('137 \\frac{1}{2}', Fraction(275, 2)),
    ('1 4/5', Fraction(9, 5)),
    ('2\\cdot 3', 6),
    ('2 \\times (3 + 4)', 14),
    ('(2)(3)', 6),
    ('2^{10}', 1024),
    ('2^3', 8),
    ('2^{-3}', Fraction(1, 8)),
    ('-3^2', -9),
    ('(-3)^2', 9),
    ('\\left(\\frac12\\right)^2', Fraction(1, 4)),
    ('6.5 \\times 10^3', 6500),
    ('1 − 2', -1),
  )
  def test_by_hand(self, text, expected):
    self.assertEqual(surds.as_fraction(_parse(text)), expected)


class SpellingTest(parameterized.TestCase):
  @parameterized.parameters(
    ('11-2\\sqrt{6}', '11 - 2 \\sqrt 6'),
    ('11-2\\sqrt{6}', '-2\\sqrt6+11'),
    ('11-2\\sqrt{6}', '11-2*sqrt(6)'),
    ('11-2\\sqrt{6}', '11 - \\sqrt{24}'),
    ('11-2\\sqrt{6}', '\\left(11-2\\sqrt[2]{6}\\right)'),
    ('11-2\\sqrt{6}', '11 - 2√6'),
    ('\\frac{\\sqrt{3}}{3}', '\\frac{1}{\\sqrt{3}}'),
    ('\\frac{\\sqrt{3}}{3}', '\\sqrt{\\frac{1}{3}}'),
    ('\\frac{\\sqrt{3}}{3}', 'sqrt(3)/3'),
    ('2\\frac{\\sqrt{3}}{3}', '\\frac{2\\sqrt3}{3}'),
    ('\\frac{\\pi}{6}', 'pi/6'),
    ('\\frac{\\pi}{6}', '\\frac16 \\, \\pi'),
    ('\\frac{\\pi}{6}', 'π/6'),
    ('\\frac{1}{2+i}', '\\frac{2}{5} - \\frac{1}{5}i'),  # (2 - i)/5
    ('\\sqrt{-4}', '2i'),
    ('x^2-2x+1', '1 + x^{2} - 2 \\cdot x'),
  )
  def test_of_one_value_are_read_alike(self, one, other):
    self.assertEqual(_parse(one), _parse(other))

  @_PROPERTY
  @hypothesis.given(
    st.recursive(
      st.integers(1, 12).map(sympy.Integer)
      | st.sampled_from([2, 3, 12]).map(sympy.sqrt)
      | st.just(sympy.pi),
      lambda inner: st.builds(
        lambda a, b, how: (a + b, a - b, a * b, a / (b * b + 1))[how],
        inner,
        inner,
        st.sampled_from([0, 1, 2] * 3 + [3]),
      ),
      max_leaves=4,
    )
  )
  def test_what_sympy_prints_is_read_as_what_it_means(self, value):
    text = sympy.latex(value, mul_symbol='dot')
    try:
      found = _parse(text)
    except refusals.Refusal as refusal:
      # 1/(1 + pi) has no normal form here.
      self.assertIn(refusal.reason, ('terms', 'too_large'))
      return
    self.assertEqual(sympy.simplify(sympy_sums.to_sympy(found) - value), 0)


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(
    # In TeX this is x^1 0, but nobody means that.
    ('x^10', 'ambiguous'),
    ('\\sqrt12', 'ambiguous'),
    ('\\frac123', 'ambiguous'),
    ('1/2x', 'ambiguous'),
    ('1/2\\sqrt{3}', 'ambiguous'),
    ('1/2/3', 'ambiguous'),
    ('2\\frac{4}{3}', 'ambiguous'),
    ('1 4/5x', 'ambiguous'),
    ('1\\frac45^2', 'ambiguous'),
    ('\\frac{1}{2}^2', 'ambiguous'),
    ('2 3', 'ambiguous'),
    ('{16}{5}', 'ambiguous'),
    ('\\frac{3}{5}{13}', 'ambiguous'),
    ('\\sqrt{2}3', 'ambiguous'),
    ('2^3^2', 'ambiguous'),
    ('(x-1)(x+2)', 'factored'),
    ('2(x+1)', 'factored'),
    ('(x+1)^2', 'factored'),
    ('x^{65}', 'power'),
    ('2^{1/2}', 'power'),
    ('2^x', 'power'),
    ('\\sqrt[3]{2}', 'root'),
    ('\\sqrt{3+2\\sqrt{2}}', 'root'),
    ('\\sqrt{x}', 'root'),
    ('\\frac{1}{1+\\pi}', 'terms'),
    ('\\frac{1}{x}', 'variables'),
    ('\\sin 3', 'function'),
    ('\\log_2 3', 'function'),
    ('5!', 'function'),
    ('\\binom{5}{2}', 'function'),
    ('even', 'text'),
    ('xy', 'text'),
    ('e^2', 'symbol'),
    ('\\alpha', 'symbol'),
    ('\\frac{1}{0}', 'unreadable'),
    ('', 'unreadable'),
    ('(', 'unreadable'),
    ('(1', 'unreadable'),
    ('1)', 'unreadable'),
    ('1+', 'unreadable'),
    ('2*-3', 'unreadable'),
    ('\\frac{}{2}', 'unreadable'),
    ('3 @ 4', 'unreadable'),
    ('3_4', 'unreadable'),
    ('1' * 201, 'too_large'),
    ('(' * 41, 'too_large'),
    ('9^{64}', 'too_large'),
    ('\\sqrt{10000000019}', 'too_large'),
  )
  def test_is_for_the_reason(self, text, reason):
    self.assertEqual(_reason(text), reason)

  def test_i_is_a_number_only_where_it_is_said_to_be(self):
    self.assertEqual(_parse('i^2'), surds.constant(-1))
    self.assertEqual(_reason('3i', imaginary=False), 'symbol')

  def test_the_deepest_brackets_that_are_read_fit_the_stack(self):
    self.assertEqual(_parse('(' * 40 + '7' + ')' * 40), surds.constant(7))

  @_PROPERTY
  @hypothesis.given(
    st.text('0123456789x()[]{}+-*/^\\. _|!\nfracsqtpi', max_size=30)
  )
  def test_any_text_is_read_or_refused(self, text):
    try:
      _parse(text)
    except refusals.Refusal:
      pass


if __name__ == '__main__':
  absltest.main()

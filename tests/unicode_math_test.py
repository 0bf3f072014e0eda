"""Tests of the LaTeX for Unicode mathematics."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import unicode_math


class ToLatexTest(parameterized.TestCase):
  @parameterized.parameters(
    ('x+1', 'x+1'),
    ('x²+1', 'x^{2}+1'),
    ('x⁻¹²', 'x^{-12}'),
    ('a₁₂', 'a_{12}'),
    ('½', '\\frac{1}{2}'),
    ('3¾', '3\\frac{3}{4}'),
    ('−3', '-3'),
    ('2×3÷4', '2*3/4'),
    ('√2', '\\sqrt 2'),
    ('2π', '2\\pi '),
    ('∅', '∅'),
    ('90º', '90°'),
    ('x⩽1', 'x≤1'),
    ('４２％', '42%'),
    ('（１：２）', '(1:2)'),
    # Arabic and Devanagari digits.
    ('٤٢', '42'),
    ('४२', '42'),
    ('1\u00a0000', '1 000'),
    # A zero-width space, a NUL, a direction mark, half a surrogate pair.
    ('4\u200b2\x00\u202e\ud800', '42'),
    ('\t1\n', ' 1 '),
  )
  def test_hand_worked(self, text, expected):
    self.assertEqual(unicode_math.to_latex(text), expected)


if __name__ == '__main__':
  absltest.main()

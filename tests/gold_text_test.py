"""Tests of `dapo_jax.data.gold_text`."""

from absl.testing import absltest, parameterized

from dapo_jax.data import gold_text, refusals


class UndressedTest(parameterized.TestCase):
  @parameterized.parameters(
    (' 42 ', '42', ''),
    ('$42$', '42', ''),
    ('$$42$$', '42', ''),
    ('\\(42\\)', '42', ''),
    ('\\[ \\boxed{42}. \\]', '42', ''),
    ('$\\frac{1}{2}$.', '\\frac{1}{2}', ''),
    # One box does not stand around both.
    ('\\boxed{1}+\\boxed{2}', '\\boxed{1}+\\boxed{2}', ''),
    ('90^\\circ', '90', 'degrees'),
    ('90^{\\circ}', '90', 'degrees'),
    ('$90^\\circ$', '90', 'degrees'),
    ('90°', '90', 'degrees'),
    ('\\frac{270}7\\text{ degrees}', '\\frac{270}7', 'degrees'),
    ('1 degree', '1', 'degrees'),
    ('\\$36', '36', 'dollars'),
    ('$36', '36', 'dollars'),
    ('\\$32,\\!348', '32348', 'dollars'),
    ('36 \\mbox{ dollars}', '36', 'dollars'),
    ('12.5\\%', '12.5', 'percent'),
    ('12 percent', '12', 'percent'),
    ('10,\\!080', '10080', ''),
    ('11,\\! 111,\\! 100', '11111100', ''),
    ('10{,}080', '10080', ''),
    ('3\\,\\pi', '3 \\pi', ''),
  )
  def test_by_hand(self, answer, text, unit):
    self.assertEqual(gold_text.undressed(answer), (text, unit))

  @parameterized.parameters(
    ('\\text{Evelyn}', 'text'),
    ('\\text{(C)}', 'text'),
    ('15\\mbox{ cm}^2', 'unit'),
    ('5.4 \\text{ cents}', 'unit'),
    ('1 \\text{ or } 2', 'several'),
    ('1 \\pm \\sqrt{19}', 'several'),
    ('\\{1, 2\\}', 'several'),
    ('1; 2', 'several'),
    ('(-\\infty, 0]', 'interval'),
    ('(0,9) \\cup (9,36)', 'interval'),
    ('x=5', 'equation'),
    ('x \\le 5', 'equation'),
    ('x \\in [-2,7]', 'equation'),
    ('2:3', 'equation'),
    ('1' + 400 * ' ', 'too_large'),
    ('\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}', 'matrix'),
  )
  def test_what_is_no_formula_is_refused(self, answer, reason):
    with self.assertRaises(refusals.Refusal) as caught:
      gold_text.undressed(answer)
    self.assertEqual(caught.exception.reason, reason)


class WithoutThousandsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('58,500', '58500'),
    ('-1,234,567', '-1234567'),
    ('1,234.5', '1234.5'),
    ('1, 234', None),
    ('12,34', None),
    ('1234,567', None),
    ('1,2', None),
    ('12', None),
  )
  def test_commas_stand_before_three_digits(self, text, expected):
    self.assertEqual(gold_text.without_thousands(text), expected)


class EntriesTest(parameterized.TestCase):
  @parameterized.parameters(
    ('1,-2', ['1', '-2']),
    ('(1,2)', ['(1,2)']),
    ('(1,2),{3,4}', ['(1,2)', '{3,4}']),
    ('7', ['7']),
    ('', ['']),
  )
  def test_brackets_hold_together(self, text, expected):
    self.assertEqual(gold_text.entries(text), expected)


if __name__ == '__main__':
  absltest.main()

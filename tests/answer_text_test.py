"""Tests of the one spelling of answers."""

import time

from absl.testing import absltest, parameterized

from dapo_jax.rewards import answer_text


class NormalizeTest(parameterized.TestCase):
  @parameterized.parameters(
    ('$\\frac{1}{2}$', '\\frac{1}{2}'),
    ('\\(17\\)', '17'),
    ('\\[ 17 \\]', '17'),
    ('**17**', '17'),
    ('17.', '17'),
    ('17;', '17'),
    # A full stop, but no decimal point and no ellipsis.
    ('.5', '.5'),
    ('0.3\\ldots', '0.3...'),
    ('{17}', '17'),
    ('{1}{2}', '{1}{2}'),
    ('\\boxed{17}', '17'),
    ('\\dfrac{1}{2}', '\\frac{1}{2}'),
    ('\\left( 3, \\right)', '(3,)'),
    ('x \\leqslant 3', 'x≤3'),
    ('x <= 3', 'x≤3'),
    ('1 +- 2', '1±2'),
    ('x**2', 'x^2'),
    ('50\\%', '50%'),
    ('\\mathbb{R}', '\\R'),
    ('\\mathrm{e}^x', 'e^x'),
    ('\\operatorname{sin} x', '\\sin x'),
    ('\\{\\}', '∅'),
  )
  def test_dressing(self, text, expected):
    self.assertEqual(answer_text.normalize(text), expected)

  @parameterized.parameters(
    ('1,234', '1234'),
    ('1{,}234', '1234'),
    ('11,\\! 111,\\! 100', '11111100'),
    ('12 345', '12345'),
    ('12\\,345', '12345'),
    ('1,234.5', '1234.5'),
    # Lists, pairs and what has no groups of three.
    ('1,2', '1,2'),
    ('1,20', '1,20'),
    ('12,3456', '12,3456'),
    ('0,333', '0,333'),
    ('(1,200)', '(1,200)'),
    ('1, 200', '1,200'),
    ('1,000, 2,000', '1000,2000'),
    ('(1,000, 2)', '(1000,2)'),
    ('1 2', '1 2'),
    ('2 1/4', '2 1/4'),
  )
  def test_separators_of_thousands(self, text, expected):
    self.assertEqual(answer_text.normalize(text), expected)

  @parameterized.parameters(
    ('90^\\circ', '90°'),
    ('90^{\\circ}', '90°'),
    ('90°', '90°'),
    ('90\\degree', '90°'),
    ('f \\circ g', 'f\\circ g'),
  )
  def test_degrees(self, text, expected):
    self.assertEqual(answer_text.normalize(text), expected)

  @parameterized.parameters(
    ('\\$29.00', '\\$29.00'),
    # One dollar sign is money, two delimit.
    ('$29.00', '\\$29.00'),
    ('$29$', '29'),
  )
  def test_dollars(self, text, expected):
    self.assertEqual(answer_text.normalize(text), expected)

  @parameterized.parameters(
    ('\\text{ east }', '\\text{east}'),
    ('\\textbf{\\text{C}}', '\\text{C}'),
    ('15\\mbox{ cm}^2', '15\\text{cm}^2'),
    ('\\text{13}', '13'),
    ('1 \\text{ and } 2', '1∧2'),
    ('1, 2, and 3', '1,2∧3'),
    ('1 or 2', '1∨2'),
    # Part of a word joins nothing.
    ('orange sand', 'orange sand'),
    ('5\\,\\mathrm{m/s}', '5\\text{m/s}'),
  )
  def test_words(self, text, expected):
    self.assertEqual(answer_text.normalize(text), expected)

  @parameterized.parameters(
    ('\\text{east}', 'east'),
    ('5\\text{ cm}^2', '5 cm^2'),
    ('\\textbf{x}', '\\textbf{x}'),
    ('\\text{x', '\\text{x'),
  )
  def test_words_without_their_command(self, text, expected):
    self.assertEqual(answer_text.without_commands(text), expected)

  def test_doing_it_twice_changes_nothing(self):
    for text in ('1,234', '\\dfrac12', 'x \\le 3', '5 \\text{ cm}', '$29'):
      once = answer_text.normalize(text)
      self.assertEqual(answer_text.normalize(once), once)

  @parameterized.parameters(
    '{',
    '\\',
    '\\,',
    '1,000, ',
    '1 000 ',
    ' ',
    'and ',
    '\\text{a}',
    '\\hspace{',
    '{}',
  )
  def test_time_is_linear(self, piece):
    def best_s(characters):
      text = 'x' + (piece * characters)[:characters]
      times_s = []
      for _ in range(3):
        start_s = time.perf_counter()
        answer_text.normalize(text)
        times_s.append(time.perf_counter() - start_s)
      return min(times_s)

    # 16 times the text; a pattern that looks ahead from every place would
    # take 256 times. A floor of 1 ms keeps timer noise out.
    self.assertLess(best_s(9_600) / max(best_s(600), 1e-3), 80)

  def test_long_texts_stay(self):
    text = 'x ' * answer_text.LONGEST_CHARACTERS
    self.assertEqual(answer_text.normalize(text), text.strip())


if __name__ == '__main__':
  absltest.main()

"""Tests of multiple-choice letters."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import options


class LetterTest(parameterized.TestCase):
  @parameterized.parameters('C', '(C)', '\\text{C}', '\\text{(C)}', 'C)', 'C.')
  def test_letters(self, text):
    self.assertEqual(options.letter(text), 'C')

  @parameterized.parameters('c', 'K', 'CD', '(C', 'C: 12', '12', '', 'C=5')
  def test_others(self, text):
    self.assertIsNone(options.letter(text))


class ChosenTest(parameterized.TestCase):
  @parameterized.parameters(
    'C',
    '(C)',
    '(c)',
    '\\text{c}',
    'C:12',
    '(C)12',
    'C.the third',
    'option C',
    'Choice (C)',
    '\\text{(C)}\\frac{1}{2}',
    'C:1∨2',
  )
  def test_one_choice(self, text):
    self.assertEqual(options.chosen(text), 'C')

  @parameterized.parameters(
    'c',
    'CD',
    'C D',
    'C=5',
    'C,D',
    'C∨D',
    '(C)(D)',
    '(C)∨(D)',
    'C.D',
    'C:5,D:3',
    'not C',
    '12',
  )
  def test_none_or_several(self, text):
    self.assertIsNone(options.chosen(text))

  @parameterized.parameters(
    ('(C)12', '12', '12'),
    ('\\text{(C)}\\frac{1}{2}', '12', '\\frac{1}{2}'),
    ('\\text{(C) 12}', '12', ' 12'),
    ('(C)', '12', '(C)'),
    ('12', '12', '12'),
    # A product with C, and two choices.
    ('(C)12', '12C', '(C)12'),
    ('(C)12(D)15', '12', '(C)12(D)15'),
  )
  def test_what_stands_behind_the_letter(self, text, gold, behind):
    self.assertEqual(options.without_letter(text, gold), behind)


if __name__ == '__main__':
  absltest.main()

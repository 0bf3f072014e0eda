"""Tests of the parts of a text that no bracket holds together."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import text_parts


class SplitTest(parameterized.TestCase):
  @parameterized.parameters(
    ('1,2', ['1', '2']),
    ('(1,2),3', ['(1,2)', '3']),
    ('[0,1),2', ['[0,1)', '2']),
    ('\\{1,2\\},3', ['\\{1,2\\}', '3']),
    ('\\frac{1,2}{3}', ['\\frac{1,2}{3}']),
    (
      '\\begin{matrix}1,2\\end{matrix},3',
      ['\\begin{matrix}1,2\\end{matrix}', '3'],
    ),
    ('1', ['1']),
    # Brackets that do not pair.
    ('(1,2', ['(1,2']),
    ('1),2', ['1),2']),
  )
  def test_hand_worked(self, text, expected):
    self.assertEqual(text_parts.split(text, ','), expected)

  def test_cut_keeps_the_separators(self):
    self.assertEqual(text_parts.cut('1<x≤2', '<≤'), ['1', '<', 'x', '≤', '2'])


class EnclosedTest(parameterized.TestCase):
  @parameterized.parameters(
    ('(1,2)', ('()', '1,2')),
    ('[0,9)', ('[)', '0,9')),
    ('\\{1\\}', ('{}', '1')),
    ('⟨1,2⟩', ('⟨⟩', '1,2')),
    ('((1))', ('()', '(1)')),
    ('(1)(2)', None),
    ('(1', None),
    ('x', None),
    ('', None),
    ('{1}', None),
    ('\\{1)', None),
  )
  def test_hand_worked(self, text, expected):
    self.assertEqual(text_parts.enclosed(text), expected)


if __name__ == '__main__':
  absltest.main()

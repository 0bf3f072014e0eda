"""Tests of the comparison of forms, part by part."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import form_equality, form_reader

# Formulas are equal by their text here, and lines never.
_BY_TEXT = form_equality.Oracle(
  lambda answer, gold: answer == gold, lambda *_: False
)
_UNSURE = form_equality.Oracle(lambda *_: None, lambda *_: None)


def _same(answer, gold, oracle=_BY_TEXT):
  forms = form_reader.read(answer), form_reader.read(gold)
  return form_equality.same(*forms, oracle)


class SameTest(parameterized.TestCase):
  @parameterized.parameters(
    ('3,1', '1,3'),
    ('\\{3,1\\}', '\\{1,3\\}'),
    ('\\{1,1,3\\}', '\\{1,3\\}'),
    ('1,3', '\\{1,3\\}'),
    ('(1,3)', '1,3'),
    ('1,3', '(1,3)'),
    ('[1,2,3]', '(1,2,3)'),
    ('x=1,y=3', '(1,3)'),
    ('\\begin{pmatrix}1\\\\3\\end{pmatrix}', '(1,3)'),
    ('0<x<9', '(0,9)'),
    ('(0,9)', '0<x<9'),
    ('(2,3)∪(0,1)', '(0,1)∪(2,3)'),
    ('x=5', '5'),
    ('5', 'x=5'),
    ('x=5', 'x=5'),
    ('f(x)=5', 'y=5'),
    ('East', '\\text{east}'),
    ('\\text{C}', 'C'),
    ('7:32', '7:32'),
    ('204', '204_5'),
    ('0204_5', '204_5'),
    ('204_{10}', '204'),
    ('x^{2}', 'x^2'),
  )
  def test_same(self, answer, gold):
    self.assertTrue(_same(answer, gold))

  @parameterized.parameters(
    ('1,3,3', '1,1,3'),
    ('1,3', '1,3,5'),
    ('(3,1)', '(1,3)'),
    ('3,1', '(1,3)'),
    ('[1,3]', '(1,3)'),
    ('1,3', '[1,3]'),
    ('y=1,x=3', '(1,3)'),
    ('[0,9)', '(0,9)'),
    ('0<x<9', '0<y<9'),
    ('(0,1)', '(0,1)∪(2,3)'),
    ('x=5', 'y=5'),
    ('f(x)=5', 'g(x)=5'),
    ('4=5', '5'),
    ('x=4=5', '5'),
    ('0', 'a+3z=0'),
    ('a+3z=0', '0'),
    ('\\text{not east}', '\\text{east}'),
    ('\\text{east}', '5'),
    ('X', 'x'),
    ('.5', '5'),
    ('21/4', '2 1/4'),
    ('10:45', '10:30'),
    ('204_7', '204_5'),
    ('204_5', '204'),
    ('', ''),
    (
      '\\begin{pmatrix}1&3\\end{pmatrix}',
      '\\begin{pmatrix}1\\\\3\\end{pmatrix}',
    ),
  )
  def test_different(self, answer, gold):
    self.assertFalse(_same(answer, gold))

  @parameterized.parameters(
    ('x+1', '1+x'),
    ('(1,a)', '(1,b)'),
    ('3x=1+y', 'y=3x-1'),
    ('a<b', 'c<d'),
    ('2:3', '\\frac23'),
  )
  def test_undecided(self, answer, gold):
    self.assertIsNone(_same(answer, gold, _UNSURE))

  def test_structure_decides_before_the_oracle(self):
    for answer, gold in (('(1,a)', '(1,b,c)'), ('[a,b)', '(a,b)')):
      self.assertIs(_same(answer, gold, _UNSURE), False)

  def test_lines_go_to_the_oracle_as_differences(self):
    asked = []

    def proportional(answer, gold, positive):
      asked.append((answer, gold, positive))
      return True

    oracle = form_equality.Oracle(lambda *_: False, proportional)
    self.assertTrue(_same('3x=1+y', 'y=3x-1', oracle))
    self.assertTrue(_same('x>3y', '3y<2x', oracle))
    self.assertEqual(
      asked,
      [
        ('(3x)-(1+y)', '(y)-(3x-1)', False),
        ('(3y)-(x)', '(3y)-(2x)', True),
      ],
    )


if __name__ == '__main__':
  absltest.main()

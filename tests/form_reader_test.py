"""Tests of the reading of answers' forms."""

import time

from absl.testing import absltest, parameterized

from dapo_jax.rewards import form_reader


def _shown(form):
  """A form as nested calls; formulas as they are."""
  detail = f'<{form.detail}>' if form.detail else ''
  if form.parts:
    return f'{form.kind}{detail}({"; ".join(_shown(p) for p in form.parts)})'
  return form.text if form.kind == 'formula' else f'{form.kind}:{form.text}'


class ReadTest(parameterized.TestCase):
  @parameterized.parameters(
    ('1,2', 'list(1; 2)'),
    ('1∨2', 'list(1; 2)'),
    ('n=1,2,3', 'named<n>(list(1; 2; 3))'),
    ('x=1∨x=2', 'named<x>(list(1; 2))'),
    ('x=1,y=2', 'list(named<x>(1); named<y>(2))'),
    ('±5', 'list<±>(+5; -5)'),
    ('1±\\sqrt2', 'list<±>(1+\\sqrt2; 1-\\sqrt2)'),
    ('\\{1±2,3\\}', 'set(1+2; 1-2; 3)'),
    ('\\{5\\}', 'set(5)'),
    ('\\{1\\}∪\\{2\\}', 'set(1; 2)'),
    ('(1,2)', 'tuple<()>(1; 2)'),
    ('[1,2]', 'tuple<[]>(1; 2)'),
    ('[1,2,3]', 'tuple<()>(1; 2; 3)'),
    ('⟨1,2⟩', 'tuple<()>(1; 2)'),
    ('((1))', '1'),
  )
  def test_collections(self, text, expected):
    self.assertEqual(_shown(form_reader.read(text)), expected)

  @parameterized.parameters(
    ('[0,9)', 'interval<[)>(0; 9)'),
    ('(2,∞)', 'interval<()>(2; ∞)'),
    (']0,1[', 'interval<()>(0; 1)'),
    ('0<x≤2', 'interval<(]>(0; 2)'),
    ('x∈[1,2)', 'interval<[)>(1; 2)'),
    ('\\{x|x>2\\}', 'interval<()>(2; ∞)'),
    ('\\R', 'interval<()>(-∞; ∞)'),
    ('x<1∨x>2', 'union(interval<()>(-∞; 1); interval<()>(2; ∞))'),
    ('(0,1)∪(2,3)', 'union(interval<()>(0; 1); interval<()>(2; 3))'),
    ('x≠2', 'union(interval<()>(-∞; 2); interval<()>(2; ∞))'),
  )
  def test_regions(self, text, expected):
    self.assertEqual(_shown(form_reader.read(text)), expected)

  def test_inequality_keeps_its_variable(self):
    self.assertEqual(form_reader.read('0<x<1').name, 'x')
    self.assertEqual(form_reader.read('(0,1)').name, '')

  @parameterized.parameters(
    (
      '\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}',
      'matrix(list(1; 2); list(3; 4))',
    ),
    (
      '\\begin{vmatrix}1\\\\[4pt]2\\\\\\end{vmatrix}',
      'matrix<determinant>(list(1); list(2))',
    ),
    ('\\begin{array}{cc}1&2\\end{array}', 'matrix(list(1; 2))'),
    ('5\\text{cm}', 'quantity<cm>(5)'),
    ('50%', 'quantity<%>(50)'),
    ('\\text{5 apples}', 'quantity<apples>(5)'),
    ('204_5', 'based<5>(204)'),
    ('204_{\\text{five}}', 'based<5>(204)'),
    ('204\\text{(base 5)}', 'based<5>(204)'),
    ('7:32', 'ratio(7; 32)'),
    ('3x+y=0', 'equation(3x+y; 0)'),
    ('a<b', 'inequality<<>(a; b)'),
    ('two', '2'),
    ('\\text{seven}', '7'),
    ('∅', 'words:∅'),
    ('no solution', 'words:∅'),
    ('\\text{east}', 'words:east'),
    ('Evelyn', 'words:Evelyn'),
    ('2x+1', '2x+1'),
    ('', 'nothing:'),
    ('1,,2', 'opaque:1,,2'),
  )
  def test_others(self, text, expected):
    self.assertEqual(_shown(form_reader.read(text)), expected)

  @parameterized.parameters('(', '{', '1,', '±', '(1,', '\\{', '=', 'x<', '∪')
  def test_no_text_takes_long_or_raises(self, piece):
    for count in (29, 1_900):
      start_s = time.perf_counter()
      form_reader.read((piece * count)[:1_990])
      self.assertLess(time.perf_counter() - start_s, 2.0)


if __name__ == '__main__':
  absltest.main()

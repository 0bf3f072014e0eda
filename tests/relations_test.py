"""Tests of the relation that a text states."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import relations


class ReadTest(parameterized.TestCase):
  @parameterized.parameters(
    ('x=5', ['5'], 'x'),
    ('5=x', ['5'], 'x'),
    ('f(x)=2x', ['2x'], 'f(x)'),
    ('f^{-1}(x)=2x', ['2x'], 'f^{-1}(x)'),
    ('AB=5', ['5'], 'AB'),
    ('(x,y)=(1,2)', ['(1,2)'], '(x,y)'),
    ('\\text{area}=5', ['5'], '\\text{area}'),
    ('\\angle A=30°', ['30°'], '\\angle A'),
    ('x=\\frac12=0.5', ['\\frac12', '0.5'], 'x'),
    # Numbers that are said to be equal.
    ('4=5', ['4', '5'], ''),
    ('m+n=5+6=11', ['5+6', '11'], 'm+n'),
  )
  def test_values(self, text, values, name):
    self.assertEqual(relations.read(text), ('named', values, name))

  @parameterized.parameters(
    ('3x+4y=0', ['3x+4y', '0']),
    ('x+y=11', ['x+y', '11']),
    ('x=y', ['x', 'y']),
    ('m+n=0', ['m+n', '0']),
    # A name in its own value is none.
    ('x=x^2-2', ['x', 'x^2-2']),
  )
  def test_equations(self, text, sides):
    self.assertEqual(relations.read(text), ('equation', sides, ''))

  @parameterized.parameters(
    ('x<5', ['-∞', '5'], '()x'),
    ('x≥3', ['3', '∞'], '[)x'),
    ('3<x', ['3', '∞'], '()x'),
    ('0<x≤2', ['0', '2'], '(]x'),
    ('2≥x>0', ['0', '2'], '(]x'),
  )
  def test_intervals(self, text, ends, detail):
    self.assertEqual(relations.read(text), ('interval', ends, detail))

  @parameterized.parameters(
    ('a<b', ('inequality', ['a', 'b'], '<')),
    ('2x>4', ('inequality', ['4', '2x'], '<')),
    ('x≠2', ('without', ['2'], 'x')),
    ('x∈[1,2]', ('same', ['[1,2]'], '')),
    ('=5', ('same', ['5'], '')),
    ('\\pi≈3.14', ('same', ['\\pi'], '')),
    ('x≈3.14', ('same', ['3.14'], '')),
  )
  def test_others(self, text, expected):
    self.assertEqual(relations.read(text), expected)

  @parameterized.parameters(
    '1≈8', '1<2x+3<5', 'x<', '1<x>2', 'not x=5', 'x<1=y', '2∈x'
  )
  def test_what_has_no_meaning(self, text):
    self.assertEqual(relations.read(text), ('opaque', [], ''))

  def test_no_relation(self):
    self.assertIsNone(relations.read('x+1'))
    self.assertIsNone(relations.read('(x=5)'))


class AscendingTest(absltest.TestCase):
  def test_orders_numbers(self):
    self.assertEqual(
      relations.ascending(['2', '-1', '\\frac12']), ['-1', '\\frac12', '2']
    )

  def test_one_may_be_anything(self):
    self.assertEqual(relations.ascending(['a']), ['a'])
    self.assertIsNone(relations.ascending(['a', '1']))


if __name__ == '__main__':
  absltest.main()

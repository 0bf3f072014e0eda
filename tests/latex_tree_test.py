"""Tests of the tree of a formula."""

from fractions import Fraction

from absl.testing import absltest

from dapo_jax.rewards import latex_tree


class NumberTest(absltest.TestCase):
  def test_is_an_exact_leaf(self):
    leaf = latex_tree.number(3)
    self.assertEqual(leaf, ('number', Fraction(3), ()))
    self.assertIsInstance(leaf.value, Fraction)


if __name__ == '__main__':
  absltest.main()

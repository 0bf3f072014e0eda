"""Tests of `dapo_jax.rewards.asked`."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import asked, latex_parser


class AskedTest(parameterized.TestCase):
  @parameterized.parameters(
    ('Simplify $\\sqrt{8}$.', '\\sqrt8'),
    ('Simplify \\(\\sqrt{8}\\).', '\\sqrt8'),
    ('Simplify \\[\\sqrt{8}.\\]', '\\sqrt8'),
    ('47+38=?', '38+47'),
    ('What is 3/4 as a decimal?', '\\frac{3}{4}'),
    # A side of an equation, and a part of a formula.
    ('Solve $y=x+1$.', '1+x'),
    ('Let $f(x)=3(x+1)^2$.', '(x+1)^2'),
  )
  def test_a_formula_of_a_problem_is_found(self, problem, formula):
    tree = asked.canonical(latex_parser.parse(formula))
    self.assertIn(tree, asked.formulas(problem))

  @parameterized.parameters(
    ('Simplify $\\sqrt{8}$.', '2\\sqrt{2}'),
    ('Divide $b-a$.', 'a-b'),
    ('Divide $b/a$.', 'a/b'),
  )
  def test_another_formula_is_not(self, problem, formula):
    tree = asked.canonical(latex_parser.parse(formula))
    self.assertNotIn(tree, asked.formulas(problem))

  @parameterized.parameters(
    '', '$', '$$', '$$$$', '\\[', '$' * 9_999, '(' * 50_000, '1+' * 50_000
  )
  def test_odd_problems_do_no_harm(self, problem):
    self.assertIsInstance(asked.formulas(problem), frozenset)


if __name__ == '__main__':
  absltest.main()

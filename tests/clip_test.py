"""Tests of the clip bounds."""

from absl.testing import absltest, parameterized

from dapo_jax.objective import clip


class FixedBoundsTest(parameterized.TestCase):
  @parameterized.parameters(
    # DAPO section 3.1: with 0.2 a token of probability 0.01 may grow to
    # 0.012, one of 0.9 to 1.08 (so in effect freely).
    (0.2, 0.01, 0.012),
    (0.2, 0.9, 1.08),
    # With 0.28 the unlikely token may grow to 0.0128.
    (0.28, 0.01, 0.0128),
  )
  def test_upper_bound_of_a_probability(self, eps_high, old, largest):
    _, high = clip.fixed_bounds(0.2, eps_high)
    self.assertAlmostEqual(old * high, largest, places=12)

  def test_bounds_are_decoupled(self):
    low, high = clip.fixed_bounds(0.2, 0.28)
    self.assertAlmostEqual(low, 0.8, places=15)
    self.assertAlmostEqual(high, 1.28, places=15)

  @parameterized.parameters(-0.1, 1.0, 1.28, float('nan'))
  def test_impossible_lower_epsilon_is_refused(self, eps_low):
    with self.assertRaisesRegex(ValueError, r'--config\.objective\.clip_low'):
      clip.fixed_bounds(eps_low, 0.28)

  @parameterized.parameters(-0.1, float('nan'))
  def test_impossible_upper_epsilon_is_refused(self, eps_high):
    with self.assertRaisesRegex(ValueError, r'--config\.objective\.clip_high'):
      clip.fixed_bounds(0.2, eps_high)


if __name__ == '__main__':
  absltest.main()

"""Tests of the clip bounds."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import clip

_GOLDEN = np.load(pathlib.Path(__file__).parent / 'data/golden/dac_bounds.npz')
# (recorded name, eps_low, eps_high, cap). The reference's cap is at least 10.
_CONFIGS = (
  ('paper_0.16_0.2_c10', 0.16, 0.2, 10.0),
  ('script_0.2_0.28_c10', 0.2, 0.28, 10.0),
  ('0.16_0.2_c3', 0.16, 0.2, 10.0),
  ('0.16_0.2_c20', 0.16, 0.2, 20.0),
  ('0.16_0.2_cinf', 0.16, 0.2, float('inf')),
  ('0.0_0.0_c10', 0.0, 0.0, 10.0),
  ('0.3_0.3_c10', 0.3, 0.3, 10.0),
)


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

  @parameterized.parameters(-0.1, 1.01, 1.28, float('nan'))
  def test_impossible_lower_epsilon_is_refused(self, eps_low):
    with self.assertRaisesRegex(ValueError, r'--config\.objective\.clip_low'):
      clip.fixed_bounds(eps_low, 0.28)

  @parameterized.parameters(-0.1, float('nan'))
  def test_impossible_upper_epsilon_is_refused(self, eps_high):
    with self.assertRaisesRegex(ValueError, r'--config\.objective\.clip_high'):
      clip.fixed_bounds(0.2, eps_high)


class DacBoundsTest(parameterized.TestCase):
  @parameterized.parameters(
    # 1/2 + 1/2 sqrt(1 - 0.64) = 0.8; 1/2 + 1/2 sqrt(1.8) = 1.17082.
    (1.0, 0.8, 1.17082),
    # 1 - 0.64 / 0.5 < 0; 1/2 + 1/2 sqrt(1 + 0.8 / 0.5) = 1.30623.
    (0.5, 0.5, 1.30623),
    # 1/2 + 1/2 sqrt(1 + 80) = 5.
    (0.01, 0.5, 5.0),
    # 1/2 + 1/2 sqrt(401) = 10.5, above the cap.
    (0.002, 0.5, 10.0),
  )
  def test_hand_worked_probabilities(self, probability, low, high):
    got_low, got_high = clip.dac_bounds(jnp.log(jnp.array([probability])))
    self.assertAlmostEqual(float(got_low[0]), low, delta=2e-6)
    self.assertAlmostEqual(float(got_high[0]), high, delta=2e-5)

  def test_change_at_the_bound_is_epsilon(self):
    # What the bounds solve: |r - 1| r q = eps, where neither cap acts.
    probability = np.array([0.7, 0.8, 0.9, 1.0])
    low, high = clip.dac_bounds(jnp.log(jnp.asarray(probability, jnp.float32)))
    np.testing.assert_allclose((1 - low) * low * probability, 0.16, rtol=1e-5)
    np.testing.assert_allclose((high - 1) * high * probability, 0.2, rtol=1e-5)

  @parameterized.parameters(0.1, 0.2, 0.28)
  def test_papers_alignment_with_a_fixed_epsilon(self, eps):
    # A.6: eps_high = eps and eps_low = eps (1 - eps) give 1 - eps at q = 1
    # and 1 + eps at q = 1 / (1 + eps).
    low, high = clip.dac_bounds(
      jnp.array([0.0, -np.log1p(eps)]), eps_low=eps * (1 - eps), eps_high=eps
    )
    self.assertAlmostEqual(float(low[0]), 1 - eps, delta=1e-6)
    self.assertAlmostEqual(float(high[1]), 1 + eps, delta=1e-6)

  @parameterized.parameters(-85.0, -100.0, -110.0, -1e4, -np.inf)
  def test_vanishing_probability_has_the_widest_bounds(self, logp_old):
    low, high = clip.dac_bounds(jnp.array([logp_old]))
    self.assertEqual(low.dtype, jnp.float32)
    self.assertEqual((float(low[0]), float(high[0])), (0.5, 10.0))

  @parameterized.parameters(0.0, -1.0, -100.0, -1e4)
  def test_epsilon_of_zero_allows_no_change(self, logp_old):
    low, high = clip.dac_bounds(
      jnp.array([logp_old]), eps_low=0.0, eps_high=0.0
    )
    self.assertEqual((float(low[0]), float(high[0])), (1.0, 1.0))

  @parameterized.parameters(0.0, -0.4462871, -2.0, -100.0, -1e4)
  def test_no_gradient_passes(self, logp_old):
    total = lambda x: sum(jnp.sum(bound) for bound in clip.dac_bounds(x))
    gradient = jax.grad(total)(jnp.array([logp_old]))
    np.testing.assert_array_equal(gradient, [0.0])

  @parameterized.parameters(1.0, 0.0, -3.0, float('nan'))
  def test_cap_of_one_or_less_is_refused(self, ratio_max):
    with self.assertRaisesRegex(ValueError, r'--config\.objective\.ratio_max'):
      clip.dac_bounds(jnp.zeros(1), ratio_max=ratio_max)

  @parameterized.parameters('clip_low', 'clip_high')
  def test_impossible_epsilon_is_refused(self, name):
    for eps in (-0.1, float('nan'), float('inf')):
      with self.assertRaisesRegex(ValueError, rf'--config\.objective\.{name}'):
        clip.dac_bounds(jnp.zeros(1), **{name.replace('clip', 'eps'): eps})

  @parameterized.parameters(*_CONFIGS)
  def test_golden_bounds(self, name, eps_low, eps_high, ratio_max):
    logp_old = _GOLDEN['old_log_prob']
    bounds = jax.jit(
      lambda x: clip.dac_bounds(
        x, eps_low=eps_low, eps_high=eps_high, ratio_max=ratio_max
      )
    )(jnp.asarray(logp_old))
    # Where its float64 exp does not underflow either.
    there = logp_old > -700
    for side, bound in zip(('low', 'high'), bounds, strict=True):
      expected = _GOLDEN[f'{name}/{side}/f64'][there]
      # exp(80) is the largest quotient: 1/2 + 1/2 sqrt(exp(80)).
      expected = np.minimum(expected, 0.5 + 0.5 * np.exp(40.0))
      np.testing.assert_allclose(
        np.asarray(bound)[there], expected, rtol=2e-5, atol=2e-6, err_msg=side
      )

  def test_underflow_does_not_forbid_a_decrease_as_in_the_reference(self):
    logp_old = _GOLDEN['old_log_prob']
    low, _ = clip.dac_bounds(jnp.asarray(logp_old))
    gone = np.exp(logp_old, dtype=np.float32) == 0.0
    self.assertTrue(gone.any())
    reference = _GOLDEN['paper_0.16_0.2_c10/low/f32']
    np.testing.assert_array_equal(reference[gone], 1.0)
    np.testing.assert_array_equal(np.asarray(low)[gone], 0.5)


if __name__ == '__main__':
  absltest.main()

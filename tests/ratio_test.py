"""Tests of the importance ratio."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import clip
from dapo_jax.objective import ratio as ratio_lib
from dapo_jax.objective import surrogate as surrogate_lib


def _loss(logp, logp_old, *, advantage, weight):
  """The weighted clipped loss of one token, as the update computes it."""
  ratio = ratio_lib.token_ratio(logp[None], logp_old[None])
  low, high = clip.fixed_bounds(0.2, 0.28)
  result = surrogate_lib.clipped_surrogate(
    ratio, jnp.full((1,), advantage), low, high
  )
  return jnp.sum(weight * result.loss)


class TokenRatioTest(parameterized.TestCase):
  def test_is_the_quotient_of_probabilities(self):
    # 0.3 / 0.2 = 1.5 and 0.05 / 0.1 = 0.5.
    logp = jnp.log(jnp.array([0.3, 0.05]))
    logp_old = jnp.log(jnp.array([0.2, 0.1]))
    np.testing.assert_allclose(
      ratio_lib.token_ratio(logp, logp_old), [1.5, 0.5], rtol=1e-6
    )

  def test_equal_policies_give_exactly_one(self):
    logp = jnp.array([-0.1, -7.3, -90.0])
    np.testing.assert_array_equal(
      ratio_lib.token_ratio(logp, logp), [1.0, 1.0, 1.0]
    )

  def test_clamp_bounds_both_sides(self):
    logp = jnp.array([-25.0, 25.0, 0.5])
    ratio = ratio_lib.token_ratio(logp, jnp.zeros(3), clamp=20.0)
    expected = [math.exp(-20), math.exp(20), math.exp(0.5)]
    np.testing.assert_allclose(ratio, expected, rtol=1e-6)

  def test_bound_keeps_the_square_finite_in_float32(self):
    ratio = ratio_lib.token_ratio(jnp.array([200.0]), jnp.zeros(1))
    self.assertEqual(ratio.dtype, jnp.float32)
    np.testing.assert_allclose(ratio, [math.exp(40)], rtol=1e-6)
    self.assertTrue(np.isfinite(ratio[0] * ratio[0]))

  @parameterized.product(
    log_ratio=(200.0, -200.0), advantage=(1.0, -1.0), weight=(0.0, 0.25)
  )
  def test_huge_log_ratio_has_finite_loss_and_zero_gradient(
    self, log_ratio, advantage, weight
  ):
    # The four unmasked cases: A=1, r above high: clipped. A=1, r=0: the
    # gradient is -A r = 0. A=-1, r=0 below low: clipped. A=-1, r at the
    # bound: constant.
    loss, gradient = jax.value_and_grad(_loss)(
      jnp.array(log_ratio), jnp.array(0.0), advantage=advantage, weight=weight
    )
    self.assertTrue(np.isfinite(loss))
    self.assertEqual(float(gradient), 0.0)
    if weight == 0.0:
      self.assertEqual(float(loss), 0.0)

  def test_clipped_huge_log_ratio_costs_the_bound(self):
    # -(1 + 0.28) A with A = 1.
    loss = _loss(jnp.array(0.0), jnp.array(-200.0), advantage=1.0, weight=1.0)
    self.assertAlmostEqual(float(loss), -1.28, places=6)

  def test_gradient_inside_the_bound_is_the_ratio(self):
    gradient = jax.grad(lambda x: ratio_lib.token_ratio(x, 0 * x)[0])(
      jnp.array([1.5])
    )
    np.testing.assert_allclose(gradient, [math.exp(1.5)], rtol=1e-6)


if __name__ == '__main__':
  absltest.main()

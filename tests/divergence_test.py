"""Tests of the divergence estimators."""

import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import divergence

_GOLDEN = np.load(pathlib.Path(__file__).parent / 'data/golden/kl_penalty.npz')
# The reference bounds the difference to this and then k3 to 10.
_REFERENCE_CLAMP, _REFERENCE_MOST = 20.0, 10.0


def _value_and_gradient(logp, logp_ref, **kwargs):
  def total(logp):
    value = divergence.kl(logp, jnp.asarray(logp_ref), **kwargs)
    return jnp.sum(value), value

  (_, value), gradient = jax.value_and_grad(total, has_aux=True)(
    jnp.asarray(logp)
  )
  return np.asarray(value), np.asarray(gradient)


class KlTest(parameterized.TestCase):
  @parameterized.parameters(
    # d = 1: 1, 1/2 and e^-1 - 1 + 1; slopes 1, d and 1 - e^-1.
    ('k1', 1.0, 1.0, 1.0),
    ('k2', 1.0, 0.5, 1.0),
    ('k3', 1.0, 0.367879, 0.632121),
    # d = -1: e - 1 - 1 = 0.718282; slope 1 - e.
    ('k1', -1.0, -1.0, 1.0),
    ('k2', -1.0, 0.5, -1.0),
    ('k3', -1.0, 0.718282, -1.718282),
  )
  def test_hand_worked_differences(self, estimator, d, value, gradient):
    got = _value_and_gradient([d - 2.0], [-2.0], estimator=estimator)
    np.testing.assert_allclose(np.ravel(got), [value, gradient], atol=2e-6)

  @parameterized.parameters(*divergence.ESTIMATORS)
  def test_equal_policies_have_none(self, estimator):
    value, _ = _value_and_gradient([-3.0], [-3.0], estimator=estimator)
    self.assertEqual(value[0], 0.0)

  def test_mean_of_k1_and_of_k3_is_the_divergence(self):
    p, ref = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    exact = np.sum(p * np.log(p / ref))
    for estimator in ('k1', 'k3'):
      value, _ = _value_and_gradient(
        np.log(p), np.log(ref), estimator=estimator
      )
      self.assertAlmostEqual(np.sum(p * value), exact, places=6)

  def test_mean_gradient_of_k2_is_the_divergences(self):
    logits, ref = jnp.array([0.3, -0.5, 1.0]), jnp.log(jnp.full(3, 1 / 3))

    def exact(logits):
      logp = jax.nn.log_softmax(logits)
      return jnp.sum(jnp.exp(logp) * (logp - ref))

    def sampled(logits, **kwargs):
      logp = jax.nn.log_softmax(logits)
      p = jax.lax.stop_gradient(jnp.exp(logp))
      return jnp.sum(p * divergence.kl(logp, ref, **kwargs))

    expected = jax.grad(exact)(logits)
    self.assertGreater(np.abs(expected).max(), 0.05)
    for estimator in divergence.ESTIMATORS:
      got = jax.grad(sampled)(
        logits, estimator=estimator, straight_through=True
      )
      np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_allclose(
      jax.grad(sampled)(logits, estimator='k1'), np.zeros(3), atol=1e-6
    )

  @parameterized.parameters(*divergence.ESTIMATORS)
  def test_straight_through_has_the_value_of_one_and_the_slope_of_k2(
    self, estimator
  ):
    d = np.array([-200.0, -5.0, -1e-3, 0.0, 0.7, 200.0], np.float32)
    zeros = np.zeros_like(d)
    plain, _ = _value_and_gradient(d, zeros, estimator=estimator)
    value, gradient = _value_and_gradient(
      d, zeros, estimator=estimator, straight_through=True
    )
    np.testing.assert_array_equal(value, plain)
    np.testing.assert_array_equal(gradient, d)

  def test_k3_is_bounded_where_the_policy_forgets_a_token(self):
    value, gradient = _value_and_gradient(
      np.array([-200.0, -41.0], np.float32),
      np.zeros(2, np.float32),
      estimator='k3',
    )
    np.testing.assert_allclose(value, math.exp(40) - 41, rtol=1e-6)
    np.testing.assert_array_equal(gradient, [0.0, 0.0])

  def test_k3_grows_as_the_difference_where_the_reference_forgets(self):
    value, gradient = _value_and_gradient([200.0], [0.0], estimator='k3')
    np.testing.assert_array_equal((value[0], gradient[0]), (199.0, 1.0))

  def test_small_k3_is_not_rounding(self):
    # d^2/2 - d^3/6 with d = 2^-12; exp(-d) - 1 + d is off by 1e-8 there.
    d = 2.0**-12
    value, _ = _value_and_gradient([d], [0.0], estimator='k3')
    self.assertEqual(value.dtype, np.float32)
    self.assertAlmostEqual(value[0] / (d * d / 2 - d**3 / 6), 1.0, delta=1e-3)

  def test_unknown_estimator_names_the_flag(self):
    with self.assertRaisesRegex(
      ValueError, r"'k4'.*--config\.objective\.kl_estimator.*k1, k2, k3"
    ):
      divergence.kl(jnp.zeros(1), jnp.zeros(1), estimator='k4')


class GoldenTest(parameterized.TestCase):
  def _inputs(self, case):
    logp, logp_ref = (
      _GOLDEN[f'{case}/in/{name}'] for name in ('logprob', 'ref_logprob')
    )
    difference = logp.astype(np.float64) - logp_ref
    k3 = np.expm1(-difference) + difference
    bounded = np.abs(difference) > _REFERENCE_CLAMP
    return logp, logp_ref, bounded | (k3 > _REFERENCE_MOST)

  @parameterized.product(
    case=('rand', 'tiny', 'wide', 'edge'),
    estimator=divergence.ESTIMATORS,
  )
  def test_values_and_gradients(self, case, estimator):
    logp, logp_ref, bounded = self._inputs(case)
    got = _value_and_gradient(logp, logp_ref, estimator=estimator)
    here = ~bounded if estimator == 'k3' else np.ones_like(bounded)
    self.assertTrue(here.any())
    for ours, name in zip(got, ('value', 'grad'), strict=True):
      np.testing.assert_allclose(
        ours[here],
        _GOLDEN[f'{case}/{estimator}/f64/{name}'][here],
        rtol=2e-5,
        atol=2e-6,
      )

  @parameterized.parameters('wide', 'edge')
  def test_k3_keeps_its_gradient_where_the_reference_cuts_it(self, case):
    logp, logp_ref, bounded = self._inputs(case)
    value, gradient = _value_and_gradient(logp, logp_ref, estimator='k3')
    self.assertTrue(bounded.any())
    np.testing.assert_allclose(_GOLDEN[f'{case}/k3/f64/value'][bounded], 10.0)
    np.testing.assert_array_equal(_GOLDEN[f'{case}/k3/f64/grad'][bounded], 0.0)
    self.assertGreater(value[bounded].min(), 10.0)
    there = bounded & (logp - logp_ref > -40.0)
    self.assertTrue((gradient[there] != 0.0).all())


if __name__ == '__main__':
  absltest.main()

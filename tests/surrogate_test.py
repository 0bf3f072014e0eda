"""Tests of the clipped surrogate loss."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import clip, weighting
from dapo_jax.objective import ratio as ratio_lib
from dapo_jax.objective import surrogate as surrogate_lib

_GOLDEN = np.load(
  pathlib.Path(__file__).parent / 'data/golden/policy_loss_vanilla.npz'
)
_CASES = sorted({name.split('/')[0] for name in _GOLDEN.files})
_DAC = np.load(pathlib.Path(__file__).parent / 'data/golden/dac_loss.npz')
# The reference with DAPO's bounds and the script's dual clip.
_REFERENCE = 'dapo_0.2_0.28_c10'
_LOW, _HIGH = clip.fixed_bounds(0.2, 0.28)

# The reference's aggregation modes that mean the same as one of ours.
_MODES = (
  ('token-mean', 'token_mean'),
  ('seq-mean-token-mean', 'sequence_mean'),
)


def _one_token(ratio, advantage, dual_clip=None):
  """Loss, its gradient by the log-ratio and the flags of a single token."""

  def loss(log_ratio):
    result = surrogate_lib.clipped_surrogate(
      ratio_lib.token_ratio(log_ratio, jnp.zeros(1)),
      jnp.full((1,), advantage),
      _LOW,
      _HIGH,
      dual_clip=dual_clip,
    )
    return result.loss[0], result

  log_ratio = jnp.log(jnp.full((1,), ratio))
  (value, result), gradient = jax.value_and_grad(loss, has_aux=True)(log_ratio)
  flags = (result.clipped_high, result.clipped_low, result.clipped_dual)
  return float(value), float(gradient[0]), tuple(bool(f[0]) for f in flags)


class ClippedSurrogateTest(parameterized.TestCase):
  @parameterized.parameters(
    # A=1, r=1.5 > 1.28: loss -1.28, constant.
    (1.5, 1.0, -1.28, 0.0, (True, False, False)),
    # A=1, r=0.5: below the lower bound, but it only acts for A<0: -A r.
    (0.5, 1.0, -0.5, -0.5, (False, False, False)),
    # A=-1, r=0.5 < 0.8: loss 0.8, constant.
    (0.5, -1.0, 0.8, 0.0, (False, True, False)),
    # A=-1, r=1.5: the upper bound only acts for A>0: -A r = 1.5.
    (1.5, -1.0, 1.5, 1.5, (False, False, False)),
    # Inside the bounds both signs carry -A r.
    (1.1, 2.0, -2.2, -2.2, (False, False, False)),
    (0.9, -2.0, 1.8, 1.8, (False, False, False)),
    # No advantage: nothing at all, and not "clipped".
    (1.5, 0.0, 0.0, 0.0, (False, False, False)),
    (0.5, 0.0, 0.0, 0.0, (False, False, False)),
    # Without a dual clip a large ratio keeps its gradient.
    (20.0, -1.0, 20.0, 20.0, (False, False, False)),
  )
  def test_hand_worked_tokens(self, ratio, advantage, loss, gradient, flags):
    got_loss, got_gradient, got_flags = _one_token(ratio, advantage)
    self.assertAlmostEqual(got_loss, loss, delta=2e-6 * max(1, abs(loss)))
    self.assertEqual(got_flags, flags)
    if gradient == 0.0:
      self.assertEqual(got_gradient, 0.0)
    else:
      self.assertAlmostEqual(got_gradient, gradient, delta=2e-6 * abs(gradient))

  @parameterized.parameters(
    # A=-1, r=20 > 10: loss +10, constant.
    (20.0, -1.0, 10.0, True),
    (9.0, -1.0, 9.0, False),
    # It never acts where the advantage is positive.
    (20.0, 1.0, -1.28, False),
  )
  def test_dual_clip(self, ratio, advantage, loss, clipped):
    got_loss, gradient, flags = _one_token(ratio, advantage, dual_clip=10.0)
    self.assertAlmostEqual(got_loss, loss, delta=1e-5)
    self.assertEqual(flags[2], clipped)
    self.assertEqual(gradient == 0.0, clipped or advantage > 0)

  def test_equals_the_printed_equation(self):
    # DAPO eq. 8 with the dual clip on top, written as printed.
    ratio, advantage = np.meshgrid(
      np.linspace(0.01, 12.0, 500, dtype=np.float32),
      np.linspace(-2.0, 2.0, 9, dtype=np.float32),
    )
    result = surrogate_lib.clipped_surrogate(
      jnp.asarray(ratio), jnp.asarray(advantage), 0.75, 1.25, dual_clip=10.0
    )
    printed = np.maximum(
      -advantage * ratio, -advantage * np.clip(ratio, 0.75, 1.25)
    )
    printed = np.where(
      advantage < 0, np.minimum(printed, -10 * advantage), printed
    )
    np.testing.assert_allclose(result.loss, printed, rtol=1e-6, atol=1e-7)

  def test_bounds_may_differ_by_token(self):
    ratio = jnp.array([1.5, 1.5])
    result = surrogate_lib.clipped_surrogate(
      ratio, jnp.ones(2), jnp.array([0.8, 0.5]), jnp.array([1.25, 5.0])
    )
    np.testing.assert_array_equal(result.loss, [-1.25, -1.5])
    np.testing.assert_array_equal(result.clipped_high, [True, False])

  def test_token_on_a_bound_keeps_its_gradient(self):
    def loss(ratio, advantage):
      result = surrogate_lib.clipped_surrogate(
        ratio[None], advantage[None], 0.75, 1.25
      )
      return result.loss[0]

    for ratio, advantage in ((1.25, 1.0), (0.75, -1.0)):
      gradient = jax.grad(loss)(jnp.array(ratio), jnp.array(advantage))
      self.assertEqual(float(gradient), -advantage)

  def test_dual_clip_of_one_or_less_is_refused(self):
    with self.assertRaisesRegex(ValueError, r'--config\.objective\.dual_clip'):
      _one_token(1.0, -1.0, dual_clip=1.0)

  def test_dual_clip_of_the_script_stops_the_gradient(self):
    # A=-1, r=11 > 10: loss +10; at r=9 the gradient is 9.
    loss, gradient, _ = _one_token(11.0, -1.0, dual_clip=10.0)
    self.assertAlmostEqual(loss, 10.0, delta=1e-5)
    self.assertEqual(gradient, 0.0)
    _, gradient, _ = _one_token(9.0, -1.0, dual_clip=10.0)
    self.assertAlmostEqual(gradient, 9.0, delta=2e-5)


class CispoTest(parameterized.TestCase):
  def _token(self, ratio, advantage, low=0.5, high=1.25):
    """Loss, its gradients by logp and by the ratio, and the flags."""

    def loss(logp, ratio):
      result = surrogate_lib.cispo(logp, ratio, advantage[None], low, high)
      return result.loss[0], result

    advantage = jnp.array(advantage)
    (value, result), gradients = jax.value_and_grad(
      loss, argnums=(0, 1), has_aux=True
    )(jnp.array([-2.0]), jnp.array([ratio]))
    flags = (result.clipped_high, result.clipped_low, result.clipped_dual)
    return (
      float(value),
      *(float(g[0]) for g in gradients),
      tuple(bool(f[0]) for f in flags),
    )

  @parameterized.parameters(
    # The weight is 1.25, whatever the sign: -1.25 * 1 * -2 and its slope.
    (3.0, 1.0, 2.5, -1.25, (True, False, False)),
    (3.0, -1.0, -2.5, 1.25, (True, False, False)),
    # The weight is 0.5: -0.5 * 2 * -2.
    (0.25, 2.0, 2.0, -1.0, (False, True, False)),
    # Inside the bounds it is the ratio.
    (0.75, -2.0, -3.0, 1.5, (False, False, False)),
    # The flags are the weight's: an advantage of 0 changes none.
    (3.0, 0.0, 0.0, 0.0, (True, False, False)),
  )
  def test_hand_worked_tokens(self, ratio, advantage, loss, gradient, flags):
    got = self._token(ratio, advantage)
    self.assertEqual(got, (loss, gradient, 0.0, flags))

  def test_low_of_zero_is_no_lower_bound(self):
    _, gradient, _, flags = self._token(2.0**-30, 1.0, low=0.0)
    self.assertEqual(gradient, -(2.0**-30))
    self.assertEqual(flags, (False, False, False))

  def test_ratio_of_the_same_logp_adds_no_gradient(self):
    def loss(logp):
      ratio = ratio_lib.token_ratio(logp, jnp.array([-2.0]))
      return surrogate_lib.cispo(logp, ratio, jnp.ones(1), 0.5, 1.25).loss.sum()

    # r = exp(0.125); the slope of -r logp through r would add 1.875 r.
    gradient = jax.grad(loss)(jnp.array([-1.875]))
    np.testing.assert_allclose(gradient, [-np.exp(0.125)], rtol=1e-6)

  def test_bounds_may_differ_by_token(self):
    result = surrogate_lib.cispo(
      -jnp.ones(2),
      jnp.array([3.0, 3.0]),
      jnp.ones(2),
      jnp.array([0.5, 0.5]),
      jnp.array([1.25, 5.0]),
    )
    np.testing.assert_array_equal(result.loss, [1.25, 3.0])
    np.testing.assert_array_equal(result.clipped_high, [True, False])


class GoldenTest(parameterized.TestCase):
  """Against the recorded reference, whose log-ratio bound is 20."""

  def _inputs(self, case):
    names = ('log_prob', 'old_log_prob', 'advantages', 'mask')
    return tuple(_GOLDEN[f'{case}/in/{name}'] for name in names)

  def _token_losses(self, logp, logp_old, advantage):
    ratio = ratio_lib.token_ratio(logp, logp_old, clamp=20.0)
    return surrogate_lib.clipped_surrogate(
      ratio, advantage, _LOW, _HIGH, dual_clip=10.0
    ).loss

  @parameterized.parameters(*_CASES)
  def test_token_losses(self, case):
    logp, logp_old, advantage, _ = self._inputs(case)
    got = self._token_losses(
      jnp.asarray(logp), jnp.asarray(logp_old), jnp.asarray(advantage)
    )
    expected = _GOLDEN[f'{case}/{_REFERENCE}/token-mean/f64/loss_mat']
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)

  @parameterized.product(
    case=[c for c in _CASES if c != 'all_masked'], modes=_MODES
  )
  def test_loss_and_gradient_in_float64(self, case, modes):
    reference_mode, mode = modes
    logp, logp_old, advantage, mask = self._inputs(case)
    lengths = mask.sum(axis=1).astype(np.int64)
    weights = weighting.token_weights(
      lengths, np.zeros(len(lengths), np.int64), mode=mode
    )
    with jax.enable_x64(True):
      token_weights = jnp.asarray(weights[:, None] * mask)
      logp_old, advantage = (
        jnp.asarray(x, jnp.float64) for x in (logp_old, advantage)
      )

      def loss(logp):
        losses = self._token_losses(logp, logp_old, advantage)
        return jnp.sum(token_weights * losses)

      value, gradient = jax.value_and_grad(loss)(jnp.asarray(logp, jnp.float64))
    prefix = f'{case}/{_REFERENCE}/{reference_mode}/f64'
    # The reference adds 1e-8 to a row's length in its sequence mean.
    rtol, atol = (1e-12, 1e-15) if mode == 'token_mean' else (2e-8, 2e-8)
    np.testing.assert_allclose(
      value, _GOLDEN[f'{prefix}/loss'], rtol=rtol, atol=atol
    )
    np.testing.assert_allclose(
      gradient, _GOLDEN[f'{prefix}/grad'], rtol=rtol, atol=1e-15
    )

  def test_all_masked_is_zero_where_the_reference_is_nan(self):
    logp, logp_old, advantage, mask = self._inputs('all_masked')
    lengths = mask.sum(axis=1).astype(np.int64)
    weights = weighting.token_weights(
      lengths, np.zeros(len(lengths), np.int64), mode='token_mean'
    )
    losses = self._token_losses(
      jnp.asarray(logp), jnp.asarray(logp_old), jnp.asarray(advantage)
    )
    self.assertEqual(float(jnp.sum(weights[:, None] * losses)), 0.0)
    reference = _GOLDEN[f'all_masked/{_REFERENCE}/token-mean/f64/loss']
    self.assertTrue(np.isnan(reference))


class GoldenDacTest(parameterized.TestCase):
  """DCPO's token loss against the recorded reference."""

  def _run(self, case, dtype, bounds, dual_clip):
    logp, logp_old, advantage, mask = (
      _DAC[f'{case}/in/{name}']
      for name in ('log_prob', 'old_log_prob', 'advantages', 'mask')
    )
    lengths = mask.sum(axis=1).astype(np.int64)
    weights = weighting.token_weights(
      lengths, np.zeros(len(lengths), np.int64), mode='token_mean'
    )
    with jax.enable_x64(dtype == np.float64):
      logp, logp_old, advantage, weights = (
        jnp.asarray(x, dtype)
        for x in (logp, logp_old, advantage, weights[:, None] * mask)
      )

      def loss(logp):
        ratio = ratio_lib.token_ratio(logp, logp_old)
        s = surrogate_lib.clipped_surrogate(
          ratio, advantage, *bounds(logp_old), dual_clip=dual_clip
        )
        return jnp.sum(s.loss * weights), s.loss

      (value, losses), gradient = jax.value_and_grad(loss, has_aux=True)(logp)
    return float(value), np.asarray(losses), np.asarray(gradient)

  def _on_bound(self, case, bounds, dual_clip):
    logp, logp_old = (
      _DAC[f'{case}/in/{name}'].astype(np.float64)
      for name in ('log_prob', 'old_log_prob')
    )
    ratio = np.exp(logp - logp_old)
    with jax.enable_x64(True):
      limits = (*bounds(jnp.asarray(logp_old)), dual_clip or np.inf)
    near = [np.abs(ratio / np.asarray(x) - 1) < 1e-6 for x in limits]
    return np.any(near, axis=0)

  def _check(self, case, name, dtype, bounds, *, dual_clip=10.0):
    value, losses, gradient = self._run(case, dtype, bounds, dual_clip)
    prefix = f'{case}/{name}/token-mean/f64'
    expected = _DAC[f'{prefix}/grad']
    if dtype == np.float32:
      # On a bound, to rounding, rounding decides whether there is a gradient.
      on_bound = self._on_bound(case, bounds, dual_clip)
      self.assertLess(on_bound.mean(), 0.2)
      gradient = np.where(on_bound, expected, gradient)
    np.testing.assert_allclose(
      losses, _DAC[f'{prefix}/loss_mat'], rtol=2e-5, atol=2e-6
    )
    np.testing.assert_allclose(gradient, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(gradient[expected == 0.0], 0.0)
    if case != 'all_masked':
      rtol = 1e-4 if case.startswith('extreme') else 2e-5
      np.testing.assert_allclose(
        value, _DAC[f'{prefix}/loss'], rtol=rtol, atol=2e-6
      )

  @parameterized.product(
    case=_CASES,
    config=(('0.16_0.2', 0.16, 0.2), ('0.2_0.28', 0.2, 0.28)),
    dtype=(np.float32, np.float64),
  )
  def test_dynamic_bounds(self, case, config, dtype):
    name, eps_low, eps_high = config
    self._check(
      case,
      f'dac_{name}_c10',
      dtype,
      lambda x: clip.dac_bounds(x, eps_low=eps_low, eps_high=eps_high),
    )

  @parameterized.product(case=_CASES, dtype=(np.float32, np.float64))
  def test_fixed_bounds_with_a_dual_clip(self, case, dtype):
    fixed = lambda _: clip.fixed_bounds(0.2, 0.28)
    self._check(case, 'dual_0.2_0.28_c10', dtype, fixed)

  @parameterized.product(case=_CASES, dtype=(np.float32, np.float64))
  def test_fixed_bounds_without_one(self, case, dtype):
    fixed = lambda _: clip.fixed_bounds(0.2, 0.2)
    self._check(case, 'origin_0.2_0.2', dtype, fixed, dual_clip=None)

  def test_published_only_token_mean_is_its_token_mean(self):
    # Not the paper's eq. 8, so no target of the weighting.
    for case in ('small', 'wide', 'extreme_neg'):
      prefix = f'{case}/dac_0.16_0.2_c10'
      self.assertEqual(
        _DAC[f'{prefix}/only-token-mean/f64/loss'],
        _DAC[f'{prefix}/token-mean/f64/loss'],
      )


if __name__ == '__main__':
  absltest.main()

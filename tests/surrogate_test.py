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


if __name__ == '__main__':
  absltest.main()

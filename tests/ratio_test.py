"""Tests of the importance ratio."""

import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import clip, weighting
from dapo_jax.objective import ratio as ratio_lib
from dapo_jax.objective import surrogate as surrogate_lib

_GOLDEN = np.load(pathlib.Path(__file__).parent / 'data/golden/gspo_loss.npz')
_CASES = sorted({name.split('/')[0] for name in _GOLDEN.files})
_CONFIGS = (('gspo_3e-4_4e-4', 3e-4, 4e-4), ('gspo_0.2_0.28', 0.2, 0.28))


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


class SequenceRatioTest(parameterized.TestCase):
  def test_is_the_geometric_mean_of_the_token_ratios(self):
    # Response 2: mean of 0.1 and 0.3; response 1: mean of -0.2 alone.
    logp = jnp.array([0.1, -0.2, 0.3, 5.0]) - 1.0
    ratio = ratio_lib.sequence_ratio(
      logp, jnp.full(4, -1.0), jnp.array([2, 1, 2, 0]), 2
    )
    expected = [math.exp(0.2), math.exp(-0.2), math.exp(0.2), 1.0]
    np.testing.assert_allclose(ratio, expected, rtol=1e-6)

  def test_gradient_of_a_token_is_the_responses_ratio(self):
    weights = jnp.array([2.0, 3.0, 5.0, 7.0])

    def total(logp):
      ratio = ratio_lib.sequence_ratio(
        logp, jnp.zeros(4), jnp.array([1, 1, 2, 0]), 2
      )
      return jnp.sum(weights * ratio)

    gradient = jax.grad(total)(jnp.array([0.1, 0.3, -0.2, 1.0]))
    expected = [2 * math.exp(0.2), 3 * math.exp(0.2), 5 * math.exp(-0.2), 0.0]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    self.assertEqual(gradient[3], 0.0)

  def test_equal_policies_give_exactly_one(self):
    logp = jnp.array([[-0.1, -7.3, -90.0]])
    ratio = ratio_lib.sequence_ratio(logp, logp, jnp.array([[1, 1, 3]]), 3)
    np.testing.assert_array_equal(ratio, [[1.0, 1.0, 1.0]])

  @parameterized.product(
    junk=(np.nan, np.inf, -np.inf, 1e30), place=('logp', 'logp_old', 'both')
  )
  def test_padding_reaches_nothing(self, junk, place):
    ids = jnp.array([[1, 1, 0], [0, 2, 2]])

    def run(junk):
      rng = np.random.default_rng(0)
      logp, logp_old = rng.normal(size=(2, 2, 3)).astype(np.float32)
      if place != 'logp_old':
        logp[ids == 0] = junk
      if place != 'logp':
        logp_old[ids == 0] = junk

      def total(logp, logp_old):
        ratio = ratio_lib.sequence_ratio(logp, logp_old, ids, 2)
        return jnp.sum(ratio), ratio

      return jax.grad(total, argnums=(0, 1), has_aux=True)(
        jnp.asarray(logp), jnp.asarray(logp_old)
      )

    (clean, clean_old), clean_ratio = run(0.0)
    (dirty, dirty_old), dirty_ratio = run(junk)
    np.testing.assert_array_equal(dirty_ratio, clean_ratio)
    np.testing.assert_array_equal(dirty_ratio[ids == 0], 1.0)
    np.testing.assert_array_equal(dirty, clean)
    np.testing.assert_array_equal(dirty[ids == 0], 0.0)
    self.assertTrue((dirty[ids > 0] > 0).all())
    np.testing.assert_array_equal(dirty_old, clean_old)
    np.testing.assert_array_equal(dirty_old, 0.0)

  @parameterized.parameters((200.0, math.exp(40), 0.0), (-200.0, 0.0, 0.0))
  def test_huge_log_ratio_is_bounded(self, log_ratio, expected, gradient):
    ids = jnp.ones(8, jnp.int32)
    run = lambda x: ratio_lib.sequence_ratio(x, jnp.zeros(8), ids, 1)
    logp = jnp.full(8, log_ratio)
    np.testing.assert_allclose(run(logp), np.full(8, expected), rtol=1e-6)
    got = jax.grad(lambda x: run(x).sum())(logp)
    np.testing.assert_array_equal(got, np.full(8, gradient))

  def test_rows_with_ids_of_their_own_are_mapped(self):
    rng = np.random.default_rng(1)
    logp, logp_old = rng.normal(size=(2, 3, 5)).astype(np.float32)
    ids = np.array([[1, 1, 2, 2, 0], [1, 2, 2, 2, 2], [0, 0, 1, 1, 1]])
    unique = np.where(ids > 0, ids + 2 * np.arange(3)[:, None], 0)
    mapped = jax.vmap(ratio_lib.sequence_ratio, in_axes=(0, 0, 0, None))(
      jnp.asarray(logp), jnp.asarray(logp_old), jnp.asarray(ids), 2
    )
    whole = ratio_lib.sequence_ratio(
      jnp.asarray(logp), jnp.asarray(logp_old), jnp.asarray(unique), 6
    )
    np.testing.assert_allclose(mapped, whole, rtol=1e-6)

  def test_id_beyond_the_count_is_not_another_responses_ratio(self):
    ratio = ratio_lib.sequence_ratio(
      jnp.array([0.5, 0.1]), jnp.zeros(2), jnp.array([1, 3]), 2
    )
    self.assertTrue(np.isnan(ratio[1]))
    self.assertFalse(np.isnan(ratio[0]))


class GoldenTest(parameterized.TestCase):
  """GSPO against the recorded reference, whose rows are the responses."""

  def _run(self, case, eps_low, eps_high, dtype):
    names = ('log_prob', 'old_log_prob', 'advantages', 'mask')
    logp, logp_old, advantage, mask = (
      _GOLDEN[f'{case}/in/{name}'] for name in names
    )
    rows = len(mask)
    ids = np.where(mask > 0, np.arange(1, rows + 1)[:, None], 0)
    lengths = mask.sum(axis=1).astype(np.int64)
    weights = weighting.token_weights(
      lengths, np.zeros(rows, np.int64), mode='sequence_mean'
    )
    with jax.enable_x64(dtype == np.float64):
      logp, logp_old, advantage, weights = (
        jnp.asarray(x, dtype)
        for x in (logp, logp_old, advantage, weights[:, None] * mask)
      )
      low, high = clip.fixed_bounds(eps_low, eps_high)

      def loss(logp):
        ratio = ratio_lib.sequence_ratio(logp, logp_old, jnp.asarray(ids), rows)
        s = surrogate_lib.clipped_surrogate(ratio, advantage, low, high)
        return jnp.sum(s.loss * weights), s.loss

      (value, losses), gradient = jax.value_and_grad(loss, has_aux=True)(logp)
    return float(value), np.asarray(losses), np.asarray(gradient), mask > 0

  @parameterized.product(
    case=[c for c in _CASES if c != 'all_masked'],
    config=_CONFIGS,
    dtype=(np.float32, np.float64),
  )
  def test_losses_and_gradients(self, case, config, dtype):
    value, losses, gradient, mask = self._run(case, *config[1:], dtype)
    prefix = f'{case}/{config[0]}/verl/f64'
    expected = _GOLDEN[f'{prefix}/loss_mat'][mask]
    np.testing.assert_allclose(losses[mask], expected, rtol=2e-5, atol=2e-6)
    rtol = 1e-4 if case.startswith('extreme') else 2e-5
    np.testing.assert_allclose(
      value, _GOLDEN[f'{prefix}/loss'], rtol=rtol, atol=2e-6
    )
    np.testing.assert_allclose(
      gradient, _GOLDEN[f'{prefix}/grad'], rtol=2e-5, atol=2e-6
    )
    clipped = mask & (_GOLDEN[f'{prefix}/grad'] == 0.0)
    np.testing.assert_array_equal(gradient[clipped], 0.0)

  def test_all_masked_is_zero(self):
    value, _, gradient, _ = self._run('all_masked', 0.2, 0.28, np.float32)
    self.assertEqual(value, 0.0)
    np.testing.assert_array_equal(gradient, 0.0)

  def test_ratio_is_not_of_the_whole_batch_as_in_the_dcpo_baseline(self):
    # One row: the same. Several rows: its mean runs over all of them.
    key = 'gspo_0.2_0.28/dcpo_sequence_token/f64/loss'
    value, _, _, _ = self._run('one_by_one', 0.2, 0.28, np.float64)
    np.testing.assert_allclose(value, _GOLDEN[f'one_by_one/{key}'], rtol=1e-6)
    value, _, _, _ = self._run('wide', 0.2, 0.28, np.float64)
    self.assertGreater(abs(value - _GOLDEN[f'wide/{key}']), 1e-3)


if __name__ == '__main__':
  absltest.main()

"""Tests of `training.losses`: each flag's part of a token's loss."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl.testing import absltest, parameterized

from configs import base
from dapo_jax.objective import diagnostics
from dapo_jax.training import losses, packing


def _config(changes):
  config = base.get_config()
  for name, value in changes.items():
    config.objective[name] = value
  return ml_collections.FrozenConfigDict(config)


def _tokens(**changes):
  """Two responses of two and three tokens in a row, and a place of padding.

  Ratios 1, 1.5, 0.5, 1, 4 against the old policy; the sampler's and the
  reference's log-probs are a little off.
  """
  f = lambda *x: jnp.array([x], jnp.float32)
  logp_old = np.log([[0.2, 0.1, 0.6, 0.9, 0.05, 1.0]]).astype(np.float32)
  ratio = np.array([[1.0, 1.5, 0.5, 1.0, 4.0, 1.0]], np.float32)
  tokens = losses.Tokens(
    logp=jnp.array(logp_old + np.log(ratio)),
    logp_old=jnp.array(logp_old),
    logp_sampler=jnp.array(logp_old) + f(0.1, -0.2, 0.0, -1.0, 0.3, 0.0),
    advantage=f(1.0, 1.0, -1.0, -1.0, -1.0, 0.0),
    logp_ref=jnp.array(logp_old) + f(0.0, 0.5, -0.5, 0.1, 0.0, 0.0),
    entropy=f(0.5, 1.0, 0.2, 0.1, 2.0, 0.0),
    counts=jnp.array([[True] * 5 + [False]]),
    segment_ids=jnp.array([[1, 1, 2, 2, 2, 0]]),
  )
  return tokens._replace(**changes)


def _loss(tokens=None, **changes):
  """Returns the five tokens' losses under a changed objective."""
  token_loss = losses.policy_loss(_config(changes))
  loss, _ = token_loss(_tokens() if tokens is None else tokens)
  return np.asarray(loss)[0, :5]


class TermsTest(parameterized.TestCase):
  def assert_losses(self, found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)

  def test_dapo(self):
    # -min(r A, clip(r, 0.8, 1.28) A): 1.5 is cut to 1.28, 0.5 to 0.8.
    self.assert_losses(_loss(), [-1.0, -1.28, 0.8, 1.0, 4.0])

  def test_dual_clip(self):
    self.assert_losses(_loss(dual_clip=3.0), [-1.0, -1.28, 0.8, 1.0, 3.0])

  def test_log_ratio_clamp(self):
    clamp = float(np.log(2.0))
    self.assert_losses(
      _loss(log_ratio_clamp=clamp), [-1.0, -1.28, 0.8, 1.0, 2.0]
    )

  def test_bounds_of_the_old_probability(self):
    # q = 0.1: high = 0.5 + 0.5 sqrt(1 + 4 * 0.2 / 0.1) = 2, so 1.5 is free;
    # q = 0.6: 1 - 4 * 0.16 / 0.6 < 0, low = 0.5, and 0.5 is not below it.
    found = _loss(bounds='dac', clip_low=0.16, clip_high=0.2)
    self.assert_losses(found, [-1.0, -1.5, 0.5, 1.0, 4.0])

  def test_the_largest_upper_bound(self):
    found = _loss(bounds='dac', clip_low=0.16, clip_high=0.2, ratio_max=1.1)
    self.assert_losses(found, [-1.0, -1.1, 0.5, 1.0, 4.0])

  def test_ratio_of_a_response(self):
    # exp of the means: (0 + ln 1.5) / 2 and (ln 0.5 + 0 + ln 4) / 3.
    first, second = 1.5**0.5, 2 ** (1 / 3)
    found = _loss(ratio='sequence')
    self.assert_losses(found, [-first, -first, second, second, second])

  def test_cispo_weighs_every_token_by_its_clipped_ratio(self):
    logp = np.asarray(_tokens().logp)[0, :5]
    weights = np.array([1.0, 1.28, 0.8, 1.0, 1.28])
    signs = np.array([1, 1, -1, -1, -1])
    self.assert_losses(_loss(surrogate='cispo'), -weights * signs * logp)

  def test_the_divergence_is_added(self):
    t = _tokens()
    gap = np.asarray(t.logp - t.logp_ref)[0, :5]
    for estimator, kl in (
      ('k1', gap),
      ('k2', gap**2 / 2),
      ('k3', np.exp(-gap) - 1 + gap),
    ):
      found = _loss(kl_coef=0.5, kl_estimator=estimator)
      self.assert_losses(found, _loss() + 0.5 * kl)

  def test_straight_through_changes_the_gradient_alone(self):
    def gradient(**changes):
      token_loss = losses.policy_loss(
        _config({'kl_coef': 1.0, 'kl_estimator': 'k1'} | changes)
      )
      zero = jnp.zeros((1, 6))
      one = lambda logp: token_loss(_tokens(logp=logp, advantage=zero))[0].sum()
      return jax.value_and_grad(one)(_tokens().logp)

    value, grad = gradient()
    other_value, other_grad = gradient(kl_straight_through=True)
    self.assertEqual(float(value), float(other_value))
    # k1 pushes every token down alike, k2 by how far it is off.
    t = _tokens()
    np.testing.assert_allclose(grad, np.ones((1, 6)), rtol=1e-6)
    np.testing.assert_allclose(other_grad, t.logp - t.logp_ref, rtol=1e-5)

  def test_a_divergence_in_the_reward_is_no_loss(self):
    self.assert_losses(_loss(kl_coef=0.5, kl_place='reward'), _loss())

  def test_entropy_is_a_bonus(self):
    entropy = np.array([0.5, 1.0, 0.2, 0.1, 2.0])
    self.assert_losses(_loss(entropy_coef=0.1), _loss() - 0.1 * entropy)

  @parameterized.parameters(
    # exp(old - sampler): e^-0.1, e^0.2, 1, e^1 = 2.7, e^-0.3.
    ('token_truncate', [np.exp(-0.1), np.exp(0.2), 1, 2.0, np.exp(-0.3)]),
    ('token_mask', [np.exp(-0.1), np.exp(0.2), 1, 0.0, np.exp(-0.3)]),
    # Of the responses: e^0.1 and e^0.7 = 2.01.
    ('sequence_truncate', [np.exp(0.1)] * 2 + [2.0] * 3),
    ('sequence_mask', [np.exp(0.1)] * 2 + [0.0] * 3),
  )
  def test_the_sampler_is_corrected(self, correction, weights):
    self.assert_losses(
      _loss(sampler_correction=correction, sampler_correction_limit=2.0),
      _loss() * np.array(weights),
    )

  @parameterized.parameters(
    # Weights e^-0.1, e^0.2, 1, 0, e^-0.3; e^0.1 twice and 0 three times.
    ('token_mask', 0.2, (np.exp(-0.1) + np.exp(0.2) + 1 + np.exp(-0.3)) / 5),
    ('sequence_mask', 0.6, 2 * np.exp(0.1) / 5),
    ('sequence_truncate', 0.0, (2 * np.exp(0.1) + 3 * 2.0) / 5),
  )
  def test_what_the_correction_does_is_measured(
    self, correction, left_out, mean
  ):
    token_loss = losses.policy_loss(_config({'sampler_correction': correction}))
    metrics = diagnostics.metrics(token_loss(_tokens())[1])
    self.assertAlmostEqual(metrics['policy/sampler_left_out_frac'], left_out)
    self.assertAlmostEqual(metrics['policy/sampler_weight_mean'], mean, 5)

  def test_without_a_correction_there_is_nothing_to_measure(self):
    _, stats = losses.policy_loss(_config({}))(_tokens())
    self.assertNotIn('policy/sampler_weight_mean', diagnostics.metrics(stats))

  @parameterized.parameters(
    {'ratio': 'sequence'}, {'sampler_correction': 'sequence_truncate'}
  )
  def test_a_row_of_one_token_blocks_has_an_id_for_each(self, **changes):
    # Prompts of one token: a response of one token is a block of one place.
    one = np.ones(1, np.int32)
    segments = [
      packing.Segment(i // 2, one, one, np.zeros(1, np.float32), 1.0)
      for i in range(6)
    ]
    rows = packing.pack(
      segments,
      row_tokens=6,
      micro_batch_rows=1,
      max_segments=1,
      share_prompts=True,
    ).rows
    field = jnp.zeros((1, 6))
    tokens = losses.Tokens(
      *(field, field, field, field + 1.0, None, None),
      counts=field == 0,
      segment_ids=jnp.array(rows.segment_ids[0]),
    )
    loss, stats = losses.policy_loss(_config(changes))(tokens)
    np.testing.assert_array_equal(loss, -np.ones((1, 6)))
    self.assertEqual(int(stats.response_count), 6)

  def test_supervised(self):
    loss, _ = losses.supervised_loss(_tokens())
    np.testing.assert_array_equal(loss, -_tokens().logp)


class NeedsTest(absltest.TestCase):
  def test_a_reference_is_wanted_where_its_coefficient_is_above_0(self):
    self.assertFalse(losses.needs_reference(_config({})))
    self.assertTrue(losses.needs_reference(_config({'kl_coef': 0.01})))
    # Then the loss does without.
    _loss(_tokens(logp_ref=None, entropy=None))


if __name__ == '__main__':
  absltest.main()

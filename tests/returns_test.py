"""Tests of generalised advantage estimation."""

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import returns


def _printed(rewards, values, gamma, lam):
  """The sum that the recursion is: sum_k (gamma lam)^k delta_{t+k}."""
  length = len(rewards)
  after = np.append(values[1:], 0.0)
  deltas = rewards + gamma * after - values
  return np.array(
    [
      sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, length))
      for t in range(length)
    ]
  )


class GaeTest(parameterized.TestCase):
  def test_recursion_by_hand(self):
    # gamma 1/2, lam 1/2; V = 1, 2, 4, r = 0, 1, 3.
    # delta = 0 + 1 - 1 = 0; 1 + 2 - 2 = 1; 3 + 0 - 4 = -1.
    # A_3 = -1; A_2 = 1 - 1/4 = 3/4; A_1 = 0 + 3/16; R = A + V.
    advantages, targets = returns.gae(
      np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0, 4.0]), gamma=0.5, lam=0.5
    )
    np.testing.assert_array_equal(advantages, [0.1875, 0.75, -1.0])
    np.testing.assert_array_equal(targets, [1.1875, 2.75, 3.0])

  def test_one_reward_at_the_end_without_discount(self):
    rewards = np.array([0.0, 0.0, 1.0])
    values = np.array([0.25, 0.5, 0.75])
    advantages, targets = returns.gae(rewards, values, gamma=1.0, lam=1.0)
    np.testing.assert_array_equal(targets, [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(advantages, [0.75, 0.5, 0.25])

  def test_lam_of_zero_is_one_step(self):
    advantages, _ = returns.gae(
      np.array([0.0, 1.0]), np.array([0.25, 0.5]), gamma=1.0, lam=0.0
    )
    np.testing.assert_array_equal(advantages, [0.25, 0.5])

  @parameterized.product(gamma=(0.0, 0.9, 1.0), lam=(0.0, 0.95, 1.0))
  def test_equals_the_printed_sum(self, gamma, lam):
    rewards, values = np.random.default_rng(0).normal(size=(2, 30))
    advantages, targets = returns.gae(rewards, values, gamma=gamma, lam=lam)
    expected = _printed(rewards, values, gamma, lam)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(targets, expected + values, atol=1e-12)

  @parameterized.parameters(0, 1)
  def test_short_responses(self, length):
    rewards, values = np.full(length, 2.0), np.full(length, 0.5)
    advantages, targets = returns.gae(rewards, values, gamma=0.9, lam=0.9)
    np.testing.assert_array_equal(advantages, np.full(length, 1.5))
    np.testing.assert_array_equal(targets, rewards)

  def test_float32_is_added_in_float64_and_left_as_it_was(self):
    rewards = np.full(1000, 0.1, np.float32)
    values = np.zeros(1000, np.float32)
    advantages, targets = returns.gae(rewards, values, gamma=1.0, lam=1.0)
    self.assertEqual((advantages.dtype, targets.dtype), (np.float64,) * 2)
    self.assertAlmostEqual(advantages[0], 1000 * float(np.float32(0.1)), 9)
    np.testing.assert_array_equal(rewards, np.full(1000, 0.1, np.float32))

  @parameterized.product(name=('gamma', 'lam'), value=(-0.1, 1.1, float('nan')))
  def test_impossible_factor_names_its_flag(self, name, value):
    factors = {'gamma': 1.0, 'lam': 1.0, name: value}
    with self.assertRaisesRegex(ValueError, rf'--config\.advantage\.{name}'):
      returns.gae(np.zeros(1), np.zeros(1), **factors)


class WhitenTest(absltest.TestCase):
  def test_by_hand(self):
    # Mean 2, squares 1 + 1 + 0 + 0 over 4: std sqrt(1/2).
    got = returns.whiten([np.array([1.0, 3.0, 2.0]), np.array([2.0])])
    root = 2**0.5
    np.testing.assert_allclose(got[0], [-root, root, 0.0], rtol=1e-14)
    np.testing.assert_array_equal(got[1], [0.0])

  def test_tokens_weigh_alike_whatever_their_response(self):
    rng = np.random.default_rng(1)
    parts = [rng.normal(3.0, 5.0, size=n) for n in (1, 0, 40, 7)]
    got = returns.whiten(parts)
    self.assertEqual([len(part) for part in got], [1, 0, 40, 7])
    tokens = np.concatenate(got)
    self.assertAlmostEqual(tokens.mean(), 0.0, places=13)
    self.assertAlmostEqual(tokens.std(), 1.0, places=13)
    # Order is kept.
    np.testing.assert_allclose(
      np.corrcoef(tokens, np.concatenate(parts))[0, 1], 1.0, rtol=1e-12
    )

  def test_uniform_is_exactly_zero(self):
    got = returns.whiten([np.full(3, 0.7), np.array([0.7 + 1e-9])])
    np.testing.assert_array_equal(np.concatenate(got), np.zeros(4))

  def test_no_tokens(self):
    self.assertEqual(returns.whiten([]), [])
    self.assertEqual([len(x) for x in returns.whiten([np.zeros(0)])], [0])


if __name__ == '__main__':
  absltest.main()

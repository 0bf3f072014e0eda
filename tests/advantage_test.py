"""Tests of the group-normalised advantage."""

import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import advantage

_GOLDEN = np.load(
  pathlib.Path(__file__).parent / 'data/golden/grpo_advantages.npz'
)
_CASES = sorted({name.split('/')[0] for name in _GOLDEN.files})
# Cases where the reference differs on purpose, each with its own test.
_DEVIATIONS = (
  'singleton_groups',
  'bs1',
  'fractional_equal_5',
  'fractional_equal_7',
)


def _golden_advantages(case, *, scale):
  """Ours, the reference's, and whether a response has a group to compare."""
  scores = _GOLDEN[f'{case}/in/token_level_rewards'].sum(axis=1)
  mask = _GOLDEN[f'{case}/in/mask']
  uid = _GOLDEN[f'{case}/in/uid']
  kind = 'norm' if scale == 'group' else 'nonorm'
  # A response's advantage is on each of its tokens; the first is never masked.
  assert (mask[:, 0] == 1).all()
  reference = _GOLDEN[f'{case}/{kind}/f64'][:, 0]
  ours, grouped = np.zeros(len(scores)), np.zeros(len(scores), bool)
  for group in np.unique(uid):
    members = uid == group
    ours[members] = advantage.group_advantage(
      scores[None, members], scale=scale
    )[0]
    grouped[members] = members.sum() > 1
  return ours, reference, grouped


class GroupAdvantageTest(parameterized.TestCase):
  def test_sample_std_is_the_default(self):
    # Mean 1/4; squares 9/16 + 3/16 = 3/4; std sqrt((3/4) / 3) = 1/2.
    got = advantage.group_advantage(np.array([[1.0, 0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(got, [[1.5, -0.5, -0.5, -0.5]], rtol=1e-15)

  def test_population_std(self):
    # std sqrt((3/4) / 4) = sqrt(3)/4: 3/sqrt(3) and -1/sqrt(3).
    got = advantage.group_advantage(np.array([[1.0, 0.0, 0.0, 0.0]]), ddof=0)
    expected = [[3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]]
    np.testing.assert_allclose(got, expected, rtol=1e-14)

  def test_no_scale_only_centres(self):
    got = advantage.group_advantage(np.array([[1.0, 0.0]]), scale='none')
    np.testing.assert_array_equal(got, [[0.5, -0.5]])

  @parameterized.parameters(1, 8, 15)
  def test_right_and_wrong_in_closed_form(self, right):
    # A+ = sqrt((G-k)(G-1)/(k G)), A- = -sqrt(k (G-1)/((G-k) G)), G = 16.
    rewards = np.where(np.arange(16) < right, 1.0, -1.0)[None]
    got = advantage.group_advantage(rewards)[0]
    wrong = 16 - right
    self.assertAlmostEqual(got[0], (wrong * 15 / (right * 16)) ** 0.5, 12)
    self.assertAlmostEqual(got[-1], -((right * 15 / (wrong * 16)) ** 0.5), 12)

  def test_groups_do_not_see_each_other(self):
    got = advantage.group_advantage(np.array([[1.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(got[0], [0.5**0.5, -(0.5**0.5)], rtol=1e-15)
    np.testing.assert_array_equal(got[1], [0.0, 0.0])

  @parameterized.product(
    values=((0.7, 8), (0.1, 16), (1 / 3, 7), (1.0, 4), (-3e6, 5)),
    dtype=(np.float32, np.float64),
    scale=('group', 'none'),
  )
  def test_uniform_group_is_exactly_zero(self, values, dtype, scale):
    reward, size = values
    rewards = np.full((1, size), reward, dtype)
    # As a running float32 sum of parts would leave them.
    rewards[0, 0] = np.nextafter(rewards[0, 0], dtype(np.inf), dtype=dtype)
    got = advantage.group_advantage(rewards, scale=scale)
    np.testing.assert_array_equal(got, np.zeros((1, size)))

  def test_smallest_overlong_step_is_not_uniform(self):
    # One token into DAPO's 4096-token interval costs 1/4096.
    got = advantage.group_advantage(np.array([[1.0, 1.0 - 1 / 4096]]))
    np.testing.assert_allclose(got, [[0.5**0.5, -(0.5**0.5)]], rtol=1e-9)

  @parameterized.parameters(0, 1)
  def test_group_of_one_is_zero(self, ddof):
    got = advantage.group_advantage(np.array([[3.0], [-1.0]]), ddof=ddof)
    np.testing.assert_array_equal(got, [[0.0], [0.0]])

  def test_no_groups_give_no_advantages(self):
    self.assertEqual(advantage.group_advantage(np.zeros((0, 4))).shape, (0, 4))

  def test_rewards_are_left_as_they_were(self):
    rewards = np.array([[1.0, 0.0]])
    advantage.group_advantage(rewards)
    np.testing.assert_array_equal(rewards, [[1.0, 0.0]])

  @parameterized.parameters(float('nan'), float('inf'))
  def test_non_finite_reward_is_refused_with_its_place(self, value):
    rewards = np.zeros((2, 3))
    rewards[1, 2] = value
    with self.assertRaisesRegex(ValueError, 'response 2 of group 1'):
      advantage.group_advantage(rewards)

  def test_unknown_options_name_their_flags(self):
    with self.assertRaisesRegex(ValueError, r'--config\.advantage\.scale'):
      advantage.group_advantage(np.zeros((1, 2)), scale='batch')
    with self.assertRaisesRegex(ValueError, r'--config\.advantage\.ddof'):
      advantage.group_advantage(np.zeros((1, 2)), ddof=2)


class GoldenTest(parameterized.TestCase):
  @parameterized.product(
    case=[c for c in _CASES if c not in _DEVIATIONS],
    scale=('group', 'none'),
  )
  def test_advantages(self, case, scale):
    ours, reference, grouped = _golden_advantages(case, scale=scale)
    # The reference adds 1e-6 to the std.
    np.testing.assert_allclose(
      ours[grouped], reference[grouped], rtol=1e-5, atol=1e-9
    )

  @parameterized.parameters('fractional_equal_5', 'fractional_equal_7')
  def test_equal_fractions_are_zero_where_the_reference_rounds(self, case):
    ours, reference, _ = _golden_advantages(case, scale='group')
    np.testing.assert_array_equal(ours, np.zeros_like(ours))
    np.testing.assert_allclose(reference, 0.0, atol=0.1)

  @parameterized.parameters('singleton_groups', 'bs1', 'mixed_sizes')
  def test_group_of_one_is_zero_where_the_reference_keeps_reward(self, case):
    ours, reference, grouped = _golden_advantages(case, scale='none')
    alone = ~grouped
    self.assertTrue(alone.any())
    np.testing.assert_array_equal(ours[alone], 0.0)
    scores = _GOLDEN[f'{case}/in/token_level_rewards'].sum(axis=1)
    np.testing.assert_allclose(reference[alone], scores[alone], rtol=1e-6)


if __name__ == '__main__':
  absltest.main()

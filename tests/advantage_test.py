"""Tests of the advantages within a group and over visits."""

import json
import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import advantage

_GOLDEN = np.load(
  pathlib.Path(__file__).parent / 'data/golden/grpo_advantages.npz'
)
_SAS = {
  s['name']: s
  for s in json.loads(
    (
      pathlib.Path(__file__).parent / 'data/golden/sas_single_prompt.json'
    ).read_text(encoding='utf-8')
  )['scenarios']
}
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

  @parameterized.parameters(
    # Centred 1/2, -1/2, 0, 0: squares add up to 1/2, over 3 or over 4.
    (1, 0.5 / (0.5 / 3) ** 0.5),
    (0, 0.5 / (0.5 / 4) ** 0.5),
  )
  def test_batch_scale_is_the_std_of_all_centred_rewards(self, ddof, expected):
    rewards = np.array([[1.0, 0.0], [7.0, 7.0]])
    got = advantage.group_advantage(rewards, scale='batch', ddof=ddof)
    np.testing.assert_allclose(got[0], [expected, -expected], rtol=1e-15)
    np.testing.assert_array_equal(got[1], [0.0, 0.0])

  def test_batch_scale_keeps_the_proportion_of_groups(self):
    rewards = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    got = advantage.group_advantage(rewards, scale='batch')
    centred = advantage.group_advantage(rewards, scale='none')
    self.assertAlmostEqual(got.std(ddof=1), 1.0, places=14)
    np.testing.assert_allclose(got / got[0, 0], centred / 0.75, rtol=1e-14)

  def test_leave_one_out_by_hand(self):
    # 1 less the mean of three zeros; 0 less the mean of 1, 0, 0.
    got = advantage.group_advantage(
      np.array([[1.0, 0.0, 0.0, 0.0]]), scale='none', baseline='leave_one_out'
    )
    np.testing.assert_allclose(got, [[1, -1 / 3, -1 / 3, -1 / 3]], rtol=1e-15)

  @parameterized.parameters('group', 'batch', 'none')
  def test_leave_one_out_takes_off_the_mean_of_the_others(self, scale):
    rewards = np.random.default_rng(0).normal(size=(3, 5))
    got = advantage.group_advantage(
      rewards, scale=scale, baseline='leave_one_out'
    )
    others = (rewards.sum(axis=1, keepdims=True) - rewards) / 4
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    divisor = {
      'group': rewards.std(axis=1, ddof=1, keepdims=True),
      'batch': centred.std(ddof=1),
      'none': 1.0,
    }
    np.testing.assert_allclose(
      got, (rewards - others) / divisor[scale], rtol=1e-12, atol=1e-14
    )

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
    scale=('group', 'batch', 'none'),
    baseline=('mean', 'leave_one_out'),
  )
  def test_uniform_group_is_exactly_zero(self, values, dtype, scale, baseline):
    reward, size = values
    rewards = np.full((1, size), reward, dtype)
    # As a running float32 sum of parts would leave them.
    rewards[0, 0] = np.nextafter(rewards[0, 0], dtype(np.inf), dtype=dtype)
    got = advantage.group_advantage(rewards, scale=scale, baseline=baseline)
    np.testing.assert_array_equal(got, np.zeros((1, size)))

  def test_smallest_overlong_step_is_not_uniform(self):
    # One token into DAPO's 4096-token interval costs 1/4096.
    got = advantage.group_advantage(np.array([[1.0, 1.0 - 1 / 4096]]))
    np.testing.assert_allclose(got, [[0.5**0.5, -(0.5**0.5)]], rtol=1e-9)

  @parameterized.product(
    ddof=(0, 1), scale=('group', 'batch'), baseline=('mean', 'leave_one_out')
  )
  def test_group_of_one_is_zero(self, ddof, scale, baseline):
    got = advantage.group_advantage(
      np.array([[3.0], [-1.0]]), ddof=ddof, scale=scale, baseline=baseline
    )
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
      advantage.group_advantage(np.zeros((1, 2)), scale='std')
    with self.assertRaisesRegex(
      ValueError, r'mean, leave_one_out.*--config\.advantage\.baseline'
    ):
      advantage.group_advantage(np.zeros((1, 2)), baseline='rloo')
    with self.assertRaisesRegex(ValueError, r'--config\.advantage\.ddof'):
      advantage.group_advantage(np.zeros((1, 2)), ddof=2)


def _no_history(prompts=1):
  zeros = np.zeros(prompts)
  return advantage.RewardHistory(zeros.astype(np.int64), zeros, zeros, zeros)


def _history(*visits):
  """The history of one prompt that earned the rewards of each visit."""
  history = _no_history()
  for rewards in visits:
    history = advantage.updated_history(history, np.asarray(rewards)[None])
  return history


class SmoothAdvantageTest(parameterized.TestCase):
  @parameterized.parameters(0, 1)
  def test_first_visit_is_the_plain_advantage(self, ddof):
    rewards = np.array([[1.0, 0.0, 0.3, 0.0], [0.7, 0.7, 0.7, 0.7]])
    np.testing.assert_array_equal(
      advantage.smooth_advantage(rewards, _no_history(2), ddof=ddof),
      advantage.group_advantage(rewards, ddof=ddof),
    )

  def test_second_visit_by_hand(self):
    # Before: 0, 0; now 1, 0. A_new = +-1 (mean and std 1/2). The pool is
    # 0, 0, 1, 0: mean 1/4, std sqrt(3)/4, A_total = sqrt(3), -1/sqrt(3).
    # i = 2: both mixtures are (A_new + A_total) / 2.
    got = advantage.smooth_advantage(np.array([[1.0, 0.0]]), _history([0, 0.0]))
    expected = [[(1 + 3**0.5) / 2, -(1 + 3**-0.5) / 2]]
    np.testing.assert_allclose(got, expected, rtol=1e-14)

  def test_smaller_of_the_mixtures_by_hand(self):
    # Before: 0 0, 0 0; now 1, 0: pool mean 1/6, variance 1/6 - 1/36 = 5/36.
    # A_new = +-1; A_total = (5/6) 6/sqrt(5) = sqrt(5) and -1/sqrt(5).
    # i = 3: SA_new = 2/3 + sqrt(5)/3 = 1.412, SA_total = 1/3 + 2 sqrt(5)/3 =
    # 1.824; for the other -(2/3 + 1/(3 sqrt(5))) = -0.816 and
    # -(1/3 + 2/(3 sqrt(5))) = -0.631.
    got = advantage.smooth_advantage(
      np.array([[1.0, 0.0]]), _history([0.0, 0.0], [0.0, 0.0])
    )
    expected = [[(2 + 5**0.5) / 3, -(1 + 2 / 5**0.5) / 3]]
    np.testing.assert_allclose(got, expected, rtol=1e-14)

  def test_tie_of_opposite_signs_goes_to_the_total(self):
    # Pool 3, 4, 3, 4, 1, 0: mean 5/2, variance 51/6 - 25/4 = 9/4. For the 1
    # A_new = 1 and A_total = -1: SA_new = 1/3, SA_total = -1/3. For the 0
    # A_new = -1 and A_total = -5/3: SA_new = -11/9, SA_total = -13/9.
    got = advantage.smooth_advantage(
      np.array([[1.0, 0.0]]), _history([3.0, 4.0], [3.0, 4.0])
    )
    np.testing.assert_allclose(got, [[-1 / 3, -11 / 9]], rtol=1e-14)

  def test_equal_rewards_have_a_share_of_the_pools_advantage(self):
    # Pool 1, -1, 1, 1: mean 1/2, std sqrt(3)/2; A_total = 1/sqrt(3), over 2.
    got = advantage.smooth_advantage(
      np.array([[1.0, 1.0]]), _history([1.0, -1.0])
    )
    np.testing.assert_allclose(got, np.full((1, 2), 3**-0.5 / 2), rtol=1e-14)
    # i = 3: pool mean 2/3, variance 1 - 4/9 = 5/9: (1/3) 3/sqrt(5), over 3.
    got = advantage.smooth_advantage(
      np.array([[1.0, 1.0]]), _history([1.0, -1.0], [1.0, 1.0])
    )
    np.testing.assert_allclose(got, np.full((1, 2), 5**-0.5 / 3), rtol=1e-14)

  def test_sample_std_is_of_the_pool(self):
    # As by hand above, with std sqrt(1/2) now and sqrt((3/4) / 3) = 1/2.
    got = advantage.smooth_advantage(
      np.array([[1.0, 0.0]]), _history([0.0, 0.0]), ddof=1
    )
    expected = [[(0.5**0.5 + 1.5) / 2, -(0.5**0.5 + 0.5) / 2]]
    np.testing.assert_allclose(got, expected, rtol=1e-14)

  def test_group_of_one_has_only_its_history(self):
    # Pool 0, 1: mean and std 1/2; A_total = 1, over i = 2.
    got = advantage.smooth_advantage(np.array([[1.0]]), _history([0.0]))
    np.testing.assert_allclose(got, [[0.5]], rtol=1e-15)

  @parameterized.product(
    values=((0.7, 8), (0.1, 16), (1 / 3, 7), (-3e6, 5)),
    dtype=(np.float32, np.float64),
    visits=(1, 2, 500),
    ddof=(0, 1),
  )
  def test_constant_reward_is_exactly_zero(self, values, dtype, visits, ddof):
    reward, size = values
    rewards = np.full((1, size), reward, dtype)
    rewards[0, 0] = np.nextafter(rewards[0, 0], dtype(np.inf), dtype=dtype)
    history = _history(*[rewards[0]] * visits)
    got = advantage.smooth_advantage(rewards, history, ddof=ddof)
    np.testing.assert_array_equal(got, np.zeros((1, size)))

  def test_one_other_reward_among_many_is_not_rounding(self):
    # 7999 times 0.7 and once one overlong step less: the std of the pool is
    # (1/4096) sqrt(7999)/8000, about 2.7e-6.
    rewards = np.full((1, 16), 0.7)
    rewards[0, 0] -= 1 / 4096
    history = _history(*[np.full(16, 0.7)] * 499)
    got = advantage.smooth_advantage(rewards, history)
    # SA_total = (A_new + 499 A_total) / 500 with A_new = -sqrt(15) and
    # A_total = -sqrt(7999); SA_new = (499 A_new + A_total) / 500 is smaller.
    expected = -(499 * 15**0.5 + 7999**0.5) / 500
    self.assertAlmostEqual(got[0, 0], expected, places=6)

  def test_groups_of_unequal_size_pool_by_their_rewards(self):
    # Pool 0, 0, 1, 0 as by hand above, seen as one visit of 3 and one of 1.
    got = advantage.smooth_advantage(
      np.array([[1.0]]), _history([0.0, 0.0, 0.0])
    )
    # A_new of one response is 0; A_total = sqrt(3), over i = 2.
    np.testing.assert_allclose(got, [[3**0.5 / 2]], rtol=1e-14)

  def test_prompts_do_not_see_each_other(self):
    rng = np.random.default_rng(3)
    history = _no_history(3)
    for _ in range(4):
      rewards = rng.choice([-1.0, 0.0, 1.0], size=(3, 6))
      whole = advantage.smooth_advantage(rewards, history)
      for p in range(3):
        own = advantage.RewardHistory(*(field[p : p + 1] for field in history))
        alone = advantage.smooth_advantage(rewards[p : p + 1], own)
        np.testing.assert_array_equal(whole[p : p + 1], alone)
      history = advantage.updated_history(history, rewards)

  def test_non_finite_reward_and_unknown_ddof_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'response 0 of group 0'):
      advantage.smooth_advantage(np.array([[np.nan, 0.0]]), _no_history())
    with self.assertRaisesRegex(ValueError, r'--config\.advantage\.ddof'):
      advantage.smooth_advantage(np.zeros((1, 2)), _no_history(), ddof=2)


class UpdatedHistoryTest(absltest.TestCase):
  def test_adds_a_visit_and_its_sums(self):
    before = _history([1.0, 0.5])
    after = advantage.updated_history(before, np.array([[2.0, 0.0, -1.0]]))
    # 1.5 + 1 and 1.25 + 5.
    self.assertEqual([float(f[0]) for f in after], [2.0, 5.0, 2.5, 6.25])
    self.assertEqual(after.visits.dtype, np.int64)
    for sums in after[1:]:
      self.assertEqual(sums.dtype, np.float64)
    self.assertEqual([float(f[0]) for f in before], [1.0, 2.0, 1.5, 1.25])

  def test_float32_rewards_are_added_in_float64(self):
    history = _history(*[np.full(8, 0.1, np.float32)] * 1000)
    self.assertAlmostEqual(
      history.total[0], 8000 * float(np.float32(0.1)), places=8
    )

  def test_non_finite_reward_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'response 1 of group 0'):
      advantage.updated_history(_no_history(), np.array([[0.0, np.inf]]))


class GoldenSmoothTest(parameterized.TestCase):
  """SAS against the recorded visits of single prompts."""

  def _visits(self, name):
    """Ours at each visit, and what is recorded of it."""
    history = _no_history()
    scenario = _SAS[name]
    for rewards, visit in zip(
      scenario['rewards'], scenario['visits'], strict=True
    ):
      rewards = np.array([rewards])
      yield advantage.smooth_advantage(rewards, history)[0], visit
      history = advantage.updated_history(history, rewards)

  @parameterized.parameters(
    *[name for name, s in _SAS.items() if s['norm_adv_by_std']]
  )
  def test_papers_equations(self, name):
    for ours, visit in self._visits(name):
      expected = visit['derived_paper_ddof0']['A']
      np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)

  def test_published_mixture_of_stds_is_another_number(self):
    ours, published = zip(
      *[
        (got, np.array(visit['code_f64']['advantage']))
        for got, visit in self._visits('binary_pm1_G16_8visits')
      ],
      strict=True,
    )
    # First visit: the sample std alone, sqrt(15/16) of ours. Later it is
    # not even one factor for all responses.
    np.testing.assert_allclose(
      published[0], ours[0] * (15 / 16) ** 0.5, rtol=1e-12
    )
    factors = published[4] / ours[4]
    self.assertGreater(np.abs(1 - factors).min(), 1e-3)
    self.assertGreater(np.ptp(factors), 1e-3)

  @parameterized.parameters('code_f32', 'code_f64')
  def test_rounding_is_no_advantage_as_it_is_in_the_reference(self, code):
    for ours, visit in self._visits('hazard_fractional_equal_7'):
      np.testing.assert_array_equal(ours, 0.0)
      published = np.abs(visit[code]['advantage'])
      self.assertGreater(published.max(), 0.3)


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

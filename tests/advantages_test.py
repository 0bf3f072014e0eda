"""Tests of `training.advantages`, with groups made by hand."""

import numpy as np
from absl.testing import absltest, parameterized

import tiny_groups
import tiny_run
from dapo_jax.data import records
from dapo_jax.training import advantages


def _rewards(groups):
  return np.stack([records.group_rewards(g) for g in groups])


def _values(groups, known=None, **changes):
  """Returns the advantages under a changed configuration."""
  found = advantages.of_groups(
    groups, _rewards(groups), known or {}, tiny_run.config(changes)
  )
  return found.values


class ValuesTest(parameterized.TestCase):
  @parameterized.parameters(
    # Rewards 1, -1, -1, -1: mean -0.5, sample std 1, population std 0.75^0.5.
    ({}, [1.5, -0.5, -0.5, -0.5]),
    ({'advantage.ddof': 0}, [3**0.5, *[-(3**-0.5)] * 3]),
    ({'advantage.scale': 'none'}, [1.5, -0.5, -0.5, -0.5]),
    # Less the mean of the three others: 1 + 1 and -1 + 1/3.
    (
      {'advantage.scale': 'none', 'advantage.baseline': 'leave_one_out'},
      [2, -2 / 3, -2 / 3, -2 / 3],
    ),
  )
  def test_one_right_in_four(self, changes, expected):
    found = _values([tiny_groups.group((1, 0, 0, 0))], **changes)
    np.testing.assert_allclose(found, [expected], atol=1e-12)

  def test_they_are_those_of_each_group_alone(self):
    groups = [
      tiny_groups.group((1, 0), ordinal=0),
      tiny_groups.group((1, 0), ordinal=1, overlong=[-0.5, -0.5]),
      tiny_groups.group((0, 0), ordinal=2),
    ]
    # (1 - 0) / sqrt(2), and nothing of a group whose rewards are alike.
    half = 0.5**0.5
    np.testing.assert_allclose(
      _values(groups), [[half, -half], [half, -half], [0, 0]], atol=1e-12
    )

  def test_the_length_counts_among_right_answers(self):
    # Rewards 1, 0.5, -1: mean 1/6, so the shorter right one gains more.
    group = tiny_groups.group((1, 1, 0), overlong=[0.0, -0.5, 0.0])
    [found] = _values([group])
    self.assertGreater(found[0], found[1])
    self.assertAlmostEqual(sum(found), 0.0, places=12)

  def test_a_uniform_group_that_fills_up_has_advantage_0(self):
    group = tiny_groups.group((0, 0, 0, 0), overlong=[0.0, -0.5, -0.75, -1.0])
    mixed = tiny_groups.group((1, 0, 0, 0), ordinal=1)
    found = _values([group, mixed])
    self.assertEqual(found.tolist(), [[0] * 4, [1.5, -0.5, -0.5, -0.5]])
    # Without dynamic sampling its lengths are what it is trained on.
    found = _values([group, mixed], **{'filter.enabled': False})
    self.assertGreater(found[0, 0], 0.5)

  def test_no_groups_have_no_advantages(self):
    found = advantages.of_groups([], np.zeros((0, 4)), {}, tiny_run.config())
    self.assertEqual(found.values.size, 0)


class SmoothTest(absltest.TestCase):
  _SMOOTH = {
    'advantage.estimator': 'smooth',
    'advantage.ddof': 0,
    'filter.enabled': False,
  }

  def _visit(self, known, *groups):
    config = tiny_run.config(self._SMOOTH)
    return advantages.of_groups(groups, _rewards(groups), known, config)

  def test_an_all_right_group_learns_from_the_visit_before(self):
    # First 1, -1, -1, -1; then four of 1: of all eight, mean 0.25, variance
    # (5 - 8/16) / 8... = 1 - 0.0625 = 0.9375; A_total = 0.75 / 0.9375^0.5,
    # and A is half of it at the second visit.
    first = self._visit({}, tiny_groups.group((1, 0, 0, 0)))
    second = self._visit(first.history, tiny_groups.group((1, 1, 1, 1)))
    expected = 0.75 / 0.9375**0.5 / 2
    np.testing.assert_allclose(second.values, [[expected] * 4], rtol=1e-12)

  def test_a_prompt_drawn_twice_in_a_step_is_two_visits_in_draw_order(self):
    pair = (tiny_groups.group((1, 0, 0, 0)), tiny_groups.group((1, 1, 1, 1)))
    pair = (pair[0], pair[1]._replace(draw=pair[0].draw))
    both = self._visit({}, *pair)
    one = self._visit({}, pair[0])
    other = self._visit(one.history, pair[1])
    np.testing.assert_array_equal(both.values[0], one.values[0])
    np.testing.assert_array_equal(both.values[1], other.values[0])
    self.assertEqual(both.history, other.history)

  def test_other_estimators_remember_nothing(self):
    group = tiny_groups.group((1, 0, 0, 0))
    found = advantages.of_groups(
      [group], _rewards([group]), {}, tiny_run.config()
    )
    self.assertEqual(found.history, {})


_GAE = {'advantage.estimator': 'gae', 'filter.enabled': False}


class OfTokensTest(absltest.TestCase):
  # Of two groups of two: tokens 1, 3 | 2 and 50, 70 | -50.
  _ESTIMATED = [[1.0, 3.0], [2.0], [50.0, 70.0], [-50.0]]

  def _found(self, second, **changes):
    groups = [tiny_groups.group((1, 0)), second]
    estimated = [np.array(a) for a in self._ESTIMATED]
    config = tiny_run.config(
      _GAE | {'rollout.responses_per_prompt': 2} | changes
    )
    found = advantages.of_tokens(estimated, groups, config)
    return found, advantages.sizes(found, groups)

  def test_they_have_mean_0_and_deviation_1_over_all_tokens(self):
    found, sizes = self._found(tiny_groups.group((1, 0), ordinal=1))
    flat = np.concatenate(found)
    self.assertAlmostEqual(flat.mean(), 0.0, places=12)
    self.assertAlmostEqual(flat.std(), 1.0, places=12)
    np.testing.assert_allclose(sizes[1, 0], np.abs(found[2]).mean())

  def test_unwhitened_they_are_the_estimates(self):
    second = tiny_groups.group((1, 0), ordinal=1)
    found, sizes = self._found(second, **{'advantage.whiten': False})
    self.assertEqual([a.tolist() for a in found], self._ESTIMATED)
    self.assertEqual(sizes.tolist(), [[2.0, 2.0], [60.0, 50.0]])

  def assert_first_alone(self, found, sizes):
    # Mean 2, squares 1 + 1 + 0 over 3 tokens: 1.5^0.5 of the deviation.
    root = 1.5**0.5
    np.testing.assert_allclose(found[0], [-root, root], rtol=1e-12)
    np.testing.assert_allclose(found[1], [0.0], atol=1e-12)
    self.assertEqual([a.tolist() for a in found[2:]], [[0.0, 0.0], [0.0]])
    np.testing.assert_allclose(sizes, [[root, 0.0], [0.0, 0.0]], atol=1e-12)

  def test_what_is_masked_is_0_and_in_no_mean(self):
    cut = tiny_groups.group((1, 0), ordinal=1, finish=['length'] * 2)
    self.assert_first_alone(
      *self._found(cut, **{'overlong.truncated': 'masked'})
    )

  def test_a_uniform_group_that_fills_up_is_0_and_in_no_mean(self):
    uniform = tiny_groups.group((1, 1), ordinal=1)
    self.assert_first_alone(*self._found(uniform, **{'filter.enabled': True}))

  def test_no_groups_have_none(self):
    config = tiny_run.config(_GAE)
    self.assertEqual(advantages.of_tokens([], [], config), [])
    self.assertEqual(advantages.sizes([], []).shape, (0, 0))


class IdleHistoryTest(absltest.TestCase):
  def _warning(self, prompts_count, estimator='smooth'):
    # 6 steps of 4 prompts.
    config = tiny_run.config({'advantage.estimator': estimator})
    return advantages.idle_history(config, prompts_count)

  def test_prompts_that_hardly_come_back_are_warned_of(self):
    self.assertIn(
      '24 draws of 96 prompts are 0.25 visits of each', self._warning(96)
    )
    self.assertIn('1.8 visits', self._warning(13))

  def test_two_visits_are_enough(self):
    self.assertEqual(self._warning(12), '')

  def test_other_estimators_need_none(self):
    self.assertEqual(self._warning(96, 'group'), '')


class MetricsTest(absltest.TestCase):
  def test_shares_and_sizes(self):
    groups = [
      tiny_groups.group((1, 0, 0, 0), ordinal=0),
      tiny_groups.group((1, 1, 1, 1), ordinal=1),
    ]
    found = advantages.of_groups(
      groups,
      _rewards(groups),
      {},
      tiny_run.config({'filter.enabled': False}),
    )
    # Four of 20 sampled, of 8 trained; sizes 1.5, 0.5 three times, 0 four.
    self.assertEqual(
      advantages.metrics(found, groups, generated_count=20),
      {
        'advantage/used_frac': 0.2,
        'advantage/used_of_trained_frac': 0.5,
        'advantage/used_groups_frac': 0.5,
        'advantage/abs_mean': 0.375,
      },
    )

  def test_a_response_left_out_of_the_loss_is_not_used(self):
    group = tiny_groups.group((1, 0, 0, 0), finish=['length'] + ['eos'] * 3)
    config = tiny_run.config({'overlong.truncated': 'masked'})
    found = advantages.of_groups([group], _rewards([group]), {}, config)
    # Its reward is in the mean of the group: 0 - 0.5 for each of the others.
    self.assertEqual(found.values.tolist(), [[0.0, -0.5, -0.5, -0.5]])
    metrics = advantages.metrics(found, [group], generated_count=4)
    self.assertEqual(metrics['advantage/used_frac'], 0.75)
    self.assertEqual(metrics['advantage/abs_mean'], 0.375)

  def test_a_response_ended_by_a_stop_string_is_not_left_out(self):
    ends = ['stop', 'eos', 'length', 'stop']
    group = tiny_groups.group((1, 0, 0, 0), finish=ends)
    config = tiny_run.config({'overlong.truncated': 'masked'})
    found = advantages.of_groups([group], _rewards([group]), {}, config)
    self.assertEqual(found.values.tolist(), [[1.5, -0.5, 0.0, -0.5]])

  def test_visits_are_counted_of_the_trained_prompts(self):
    group = tiny_groups.group((1, 0, 0, 0))
    config = tiny_run.config({'advantage.estimator': 'smooth'})
    known = {}
    for visit in (1, 2):
      found = advantages.of_groups([group], _rewards([group]), known, config)
      known = found.history
      metrics = advantages.metrics(found, [group], generated_count=4)
      self.assertEqual(metrics['advantage/visits_mean_count'], visit)

  def test_a_step_without_groups_uses_nothing(self):
    none = advantages.Advantages(np.zeros((0, 4)), {})
    self.assertEqual(
      advantages.metrics(none, [], generated_count=16),
      {'advantage/used_frac': 0.0},
    )


if __name__ == '__main__':
  absltest.main()

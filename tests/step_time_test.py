"""Tests of `planning.step_time`."""

from absl.testing import absltest

import planned
from dapo_jax.planning import estimate, step_programs, step_time


class TimeTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.plan = planned.plan(compiles=False)
    cls.time = step_time.of_plan(cls.plan)

  def test_a_step_is_all_of_its_programs(self):
    total = estimate.Range(0.0, 0.0)
    for one in self.time.programs.values():
      total += one
    self.assertAlmostEqual(self.time.step.low_s, total.low_s)
    self.assertAlmostEqual(self.time.step.high_s, total.high_s)

  def test_an_update_counts_as_often_as_there_are_minibatches_and_passes(self):
    # 4 prompts in minibatches of 2.
    self.assertEqual(step_time.updates(self.plan), 2)
    twice = planned.plan({'learner.epochs': 2}, compiles=False)
    self.assertEqual(step_time.updates(twice), 4)
    found = step_time.of_plan(twice).programs
    self.assertAlmostEqual(
      found['update'].low_s, 2 * self.time.programs['update'].low_s
    )
    self.assertAlmostEqual(
      found['old log-probs'].low_s, self.time.programs['old log-probs'].low_s
    )

  def test_a_decode_step_reads_the_weights(self):
    steps = self.plan.sampling.steps
    chip = self.plan.slices.chip
    least = self.plan.held['engine params'] * steps / chip.hbm_bytes_per_s
    found = self.time.programs[step_programs.DECODE]
    self.assertGreaterEqual(found.low_s, least)

  def test_a_prefill_reads_the_weights_too(self):
    # Prompts of 4 tokens at most: reading takes longer than computing.
    one = (
      self.plan.held['engine params'] / self.plan.slices.chip.hbm_bytes_per_s
    )
    found = self.time.programs[step_programs.prefill_name(4)]
    self.assertGreaterEqual(found.low_s, self.plan.sampling.prompts * one)

  def test_chip_hours_are_of_all_chips_and_steps(self):
    low, _ = step_time.chip_hours(self.plan, self.time)
    # 4 chips, 6 steps.
    self.assertAlmostEqual(low, self.time.step.low_s * 6 * 4 / 3600)

  def test_a_model_needs_6_for_each_parameter_and_token(self):
    found = step_time.model_flops(self.plan)
    tokens = self.plan.learning.real_tokens
    # 2 layers, 4 heads of 8: 4 N H for a pair, and twice that backward.
    attention = 2 * 3 * 4 * 32 * self.plan.learning.attended_tokens
    params = (
      2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 32 + 16 + 16 + 2 * 32)
      + 320 * 32
      + 32
    )
    self.assertAlmostEqual(found, 6 * params * tokens + attention, delta=1)


class SlowerTest(absltest.TestCase):
  def _time(self, rollout_s, update_s):
    return step_time.StepTime(
      {},
      estimate.Range(rollout_s, 4 * rollout_s),
      estimate.Range(update_s, 4 * update_s),
      None,
      (0.0, 0.0),
    )

  def test_it_is_named_where_it_is_clear(self):
    self.assertEqual(step_time.slower_phase(self._time(2.0, 1.0)), 'rollout')
    self.assertEqual(step_time.slower_phase(self._time(1.0, 2.0)), 'update')
    self.assertIsNone(step_time.slower_phase(self._time(1.0, 1.4)))


if __name__ == '__main__':
  absltest.main()

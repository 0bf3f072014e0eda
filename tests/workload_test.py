"""Tests of `planning.workload`."""

import ml_collections
import numpy as np
from absl.testing import absltest, parameterized

from configs import base
from dapo_jax.planning import workload

_LENGTHS = workload.Lengths(
  prompt_tokens=10,
  response_tokens=100.0,
  sigma=0.0,
  longest_tokens=400,
  kept_frac=0.5,
)


def _config(changes=None):
  config = base.get_config()
  config.update_from_flattened_dict(
    {
      'rollout.prompts_per_step': 8,
      'rollout.responses_per_prompt': 4,
      'learner.minibatch_prompts': 4,
      **(changes or {}),
    }
  )
  return ml_collections.FrozenConfigDict(config)


class LengthsTest(parameterized.TestCase):
  def test_a_mean_that_is_not_given_is_a_seventh_of_the_longest(self):
    found = workload.of_config(
      _config(
        {'rollout.max_response_tokens': 700, 'data.max_prompt_tokens': 70}
      )
    )
    self.assertEqual((found.response_tokens, found.prompt_tokens), (100, 10))

  def test_prompts_are_not_longer_than_the_longest(self):
    config = _config(
      {'plan.prompt_tokens_mean': 71, 'data.max_prompt_tokens': 70}
    )
    with self.assertRaisesRegex(ValueError, r'prompt_tokens_mean \(71\)'):
      workload.of_config(config)

  def test_responses_are_not_longer_than_the_longest(self):
    config = _config(
      {'plan.response_tokens_mean': 701, 'rollout.max_response_tokens': 700}
    )
    with self.assertRaisesRegex(ValueError, r'response_tokens_mean \(701\)'):
      workload.of_config(config)

  def test_without_the_filter_all_are_kept(self):
    self.assertLess(workload.of_config(_config()).kept_frac, 1)
    found = workload.of_config(_config({'filter.enabled': False}))
    self.assertEqual(found.kept_frac, 1)

  def test_drawn_lengths_have_the_mean_and_end_at_the_longest(self):
    lengths = _LENGTHS._replace(sigma=0.5, longest_tokens=10_000)
    drawn = workload.draw(lengths, 100_000)
    self.assertAlmostEqual(drawn.mean(), 100, delta=1)
    cut = workload.draw(lengths._replace(longest_tokens=120), 1000)
    self.assertEqual(cut.max(), 120)
    np.testing.assert_array_equal(drawn, workload.draw(lengths, 100_000))

  # ln 20,480 - ln 12,000 is half a sigma: a third of all would be cut.
  @parameterized.parameters(
    (12_000.0, 1.0), (3_000.0, 1.0), (15_000.0, 2.0), (20_480.0, 1.0)
  )
  def test_the_mean_is_that_of_what_is_cut(self, mean, sigma):
    lengths = _LENGTHS._replace(
      response_tokens=mean, sigma=sigma, longest_tokens=20_480
    )
    drawn = workload.draw(lengths, 100_000)
    self.assertAlmostEqual(drawn.mean() / mean, 1.0, delta=0.01)


class SamplingTest(parameterized.TestCase):
  def test_rows_of_one_length(self):
    # A kept share of a half: 2 rounds of 8 prompts over 2 engines are 8
    # prompts, 32 responses of 100 tokens; 16 slots take them in two goes.
    found = workload.sampling(_config(), _LENGTHS, engines=2, slots=16)
    self.assertEqual((found.prompts, found.responses), (8, 32))
    self.assertEqual(found.steps, 200)
    self.assertEqual(found.live_slots, 16)
    # Each token n of a row attends to 10 of the prompt and to n.
    self.assertEqual(found.attended_tokens, 32 * (10 * 100 + 100 * 101 / 2))

  def test_a_round_waits_for_its_last_response(self):
    # Of two rounds of 16 responses in 32 slots, the second does not begin
    # before the first is judged: 100 steps, and 100 more.
    found = workload.sampling(_config(), _LENGTHS, engines=2, slots=32)
    self.assertEqual((found.rounds, found.steps), (2, 200))
    self.assertEqual(found.live_slots, 16)

  @parameterized.parameters(
    # Kept of a round of 16: 8, just what a step takes.
    (2.0, 0.5, 16),
    # 12 of a round of 24, and no second one.
    (3.0, 0.5, 24),
    # 4 of 16: two rounds.
    (2.0, 0.25, 32),
    # A run gives up after 10 rounds (filter.max_rounds).
    (2.0, 0.01, 160),
  )
  def test_rounds_are_whole(self, oversample, kept, prompts):
    found = workload.sampling(
      _config({'rollout.oversample': oversample}),
      _LENGTHS._replace(kept_frac=kept),
      engines=1,
      slots=1000,
    )
    self.assertEqual(found.prompts, prompts)

  def test_a_window_is_the_most_that_one_attends_to(self):
    # 16 responses of 100 behind a prompt of 10: the first 20 tokens attend to
    # 11, ..., 30, the other 80 to 30.
    found = workload.sampling(
      _config({'filter.enabled': False, 'rollout.prompts_per_step': 4}),
      _LENGTHS,
      engines=1,
      slots=16,
      window_tokens=30,
    )
    self.assertEqual(found.responses, 16)
    self.assertEqual(
      found.attended_tokens, 16 * (20 * 10 + 20 * 21 / 2 + 80 * 30)
    )

  def test_a_slot_that_is_free_takes_the_next_row(self):
    # Slot 1: 5, then 1 (from 5 on), slot 2: 3, then 4 (from 3 on).
    self.assertEqual(workload._last_end([5, 3, 4, 1], 2), 7)


class LearningTest(absltest.TestCase):
  def test_rows_of_one_length(self):
    # A minibatch: 4 prompts of 4 responses, each 9 + 100 places alone. A row
    # of 436 holds four of them; two rows a micro-batch: two micro-batches.
    found = workload.learning(
      _config(),
      _LENGTHS,
      row_tokens=436,
      micro_batch_rows=2,
      share_prompts=False,
    )
    self.assertEqual(found.minibatches, 2)
    self.assertEqual(found.micro_batches, (2, 0))
    self.assertEqual(found.real_tokens, 16 * 109)
    self.assertEqual(found.row_tokens, 2 * 2 * 436)
    # The prompt's tokens attend to 1, ..., 10, the response's to 11, ..., 110.
    self.assertEqual(found.attended_tokens, 16 * 110 * 111 / 2)


class ContextTest(absltest.TestCase):
  def test_a_row_has_half_of_its_tokens_on_average(self):
    self.assertEqual(workload.live_context_tokens(_LENGTHS), 10 + 50)


if __name__ == '__main__':
  absltest.main()

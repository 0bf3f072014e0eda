"""Tests of `training.gather`, with a policy of random weights."""

import functools
import json
import pathlib
import tempfile
import threading

import ml_collections
import numpy as np
from absl.testing import absltest, parameterized

import tiny_run
from dapo_jax.rewards import verifiers
from dapo_jax.rollout import dynamic_sampling, grading, meter
from dapo_jax.training import assemble, gather, interrupt, losses, trainer


class RuleTest(parameterized.TestCase):
  @parameterized.parameters(
    # prompts of a step, oversample, prompts of a round
    (4, 1.0, 4),
    (4, 1.5, 6),
    (4, 1.1, 5),
    (32, 1.25, 40),
  )
  def test_a_round_draws_more_than_is_wanted(self, want, oversample, batch):
    rule = gather.rule(
      tiny_run.config(
        {
          'rollout.prompts_per_step': want,
          'rollout.oversample': oversample,
          'filter.max_rounds': 7,
          'filter.on_limit': 'accept_uniform',
        }
      )
    )
    self.assertEqual(
      rule,
      dynamic_sampling.Rule(
        enabled=True,
        want=want,
        batch=batch,
        max_rounds=7,
        on_limit='accept_uniform',
      ),
    )

  @parameterized.parameters(0, 9)
  def test_without_the_filter_nothing_is_drawn_in_excess(self, max_rounds):
    # The options of a filter that is off say nothing.
    rule = gather.rule(
      tiny_run.config(
        {
          'rollout.oversample': 3.0,
          'filter.enabled': False,
          'filter.max_rounds': max_rounds,
        }
      )
    )
    self.assertFalse(rule.enabled)
    self.assertEqual(rule.batch, 4)
    self.assertEqual(rule.max_rounds, 1)


@functools.cache
def _trainer():
  """Returns a trainer whose only problem is drawn again and again."""
  folder = pathlib.Path(tempfile.mkdtemp(dir=tiny_run.folder()))
  source = folder / 'one.jsonl'
  source.write_text(json.dumps({'problem': '1+1=?', 'answer': '2'}) + '\n')
  config = tiny_run.config(
    {
      'data.source': str(source),
      'eval.source': str(source),
      'eval.prompts': 1,
      'filter.max_rounds': 2,
    }
  )
  with tiny_run.devices(1):
    parts = assemble.build(config, folder)
  return trainer.make_trainer(
    config,
    parts,
    losses.supervised_loss,
    temperature=1.0,
    with_critic=False,
  )


def _with(config, path, value):
  """Returns a configuration with one key changed."""
  changed = ml_collections.ConfigDict(config)
  changed.update_from_flattened_dict({path: value})
  return ml_collections.FrozenConfigDict(changed)


class GatherTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.trainer = _trainer()
    params = assemble.initial_params(self.trainer.config, self.trainer.parts)
    self.params = self.trainer.parts.to_engine(params)
    self.metered = meter.Meter(lambda: verifiers.Counts(0, 0))
    self.chunks = []

  def _gather(self, first_ordinal=0, **changes):
    return gather.gather(
      self.trainer._replace(**changes),
      self.params,
      first_ordinal=first_ordinal,
      metered=self.metered,
      on_chunk=lambda *chunk: self.chunks.append(chunk),
      check=lambda: None,
    )

  def _texts(self, filled):
    return {
      g.draw.ordinal: [tuple(r.tokens) for r in g.responses]
      for g in filled.first_round
    }

  def test_stop_strings_end_responses_and_their_texts(self):
    plain = self._gather().first_round[0].responses
    # A letter within what the policy says at random.
    letter = next(r.text[2] for r in plain if len(r.text) > 3)
    path = 'rollout.stop_strings'
    config = _with(self.trainer.config, path, ('never said', letter))
    stopped = self._gather(config=config).first_round[0].responses
    for a, b in zip(stopped, plain, strict=True):
      count = len(a.tokens)
      np.testing.assert_array_equal(a.tokens, b.tokens[:count])
      self.assertEqual(a.finish == 'stop', letter in b.text)
      self.assertEqual(a.text, b.text.partition(letter)[0])
      decode = self.trainer.parts.tokenizer.decode
      self.assertNotIn(letter, decode(a.tokens[: count - 1]))
    self.assertIn('stop', [r.finish for r in stopped])

  def test_draws_and_their_groups(self):
    filled = self._gather(first_ordinal=20)
    # 1.5 * 4 prompts of 4 responses in each of 2 rounds, none of them right.
    self.assertEqual(filled.next_ordinal, 32)
    self.assertEqual(filled.groups, [])
    self.assertEqual(
      [g.draw.ordinal for g in filled.first_round], list(range(20, 26))
    )
    for group in filled.first_round:
      self.assertLen(group.responses, 4)
      self.assertEqual(group.draw.prompt.gold, '2')
      np.testing.assert_array_equal(
        group.prompt_tokens, self.trainer.parts.tokenizer.encode('1+1=?\n')
      )

  def test_no_two_samples_share_noise(self):
    # One prompt, drawn 6 times, 4 samples each, in two steps.
    texts = self._texts(self._gather()) | self._texts(self._gather(12))
    flat = sum(texts.values(), [])
    self.assertLen(flat, 48)
    self.assertLen(set(flat), 48)

  def test_the_same_draws_give_the_same_samples(self):
    first = self._texts(self._gather(3))
    self.assertEqual(self._texts(self._gather(3)), first)
    # What is drawn with them changes nothing.
    shifted = self._texts(self._gather(5))
    for ordinal in (5, 6, 7, 8):
      self.assertEqual(shifted[ordinal], first[ordinal])

  def test_another_seed_gives_other_samples(self):
    config = self.trainer.config.copy_and_resolve_references()
    config = type(config)({**config.to_dict(), 'seed': 1})
    first, other = self._gather(), self._gather(config=config)
    self.assertNotEqual(self._texts(first), self._texts(other))

  def test_totals_are_those_of_both_rounds(self):
    filled = self._gather()
    self.assertEqual(filled.tally.rounds, 2)
    found = self.metered.totals().metrics()
    # A prompt is prefilled once for its 4 samples.
    self.assertEqual(found['sampler/prefill_count'], 12)
    sampled = sum(len(t) for ts in self._texts(filled).values() for t in ts)
    self.assertBetween(self.metered.totals().tokens, sampled + 1, 48 * 8)
    self.assertGreater(found['time/reward_s'], 0)

  def test_every_chunk_is_shown_with_the_rounds_before_it(self):
    self._gather()
    totals, reports, tallies = zip(*self.chunks, strict=True)
    self.assertEqual(totals[-1].tokens, self.metered.totals().tokens)
    self.assertEqual(sum(r.tokens for r in reports), totals[-1].tokens)
    rounds = [t.rounds for t in tallies]
    self.assertEqual(sorted(set(rounds)), [0, 1])
    self.assertEqual(rounds, sorted(rounds))

  def test_what_a_chunk_raises_ends_it(self):
    with self.assertRaises(ZeroDivisionError):
      gather.gather(
        self.trainer,
        self.params,
        first_ordinal=0,
        metered=self.metered,
        on_chunk=lambda *_: 1 / 0,
        check=lambda: None,
      )

  def _hanging_judge(self):
    """Returns a judge that gives no verdict before the test ends."""
    released, judge = threading.Event(), self.trainer.parts.judge
    self.addCleanup(released.set)

    def hanging(*question):
      released.wait(60)
      return judge(*question)

    return hanging

  def test_the_wait_for_verdicts_is_counted_and_can_be_ended(self):
    checks, judge = [], self._hanging_judge()

    def check():
      checks.append(self.metered.totals().metrics()['time/reward_wait_s'])
      if len(checks) == 3:
        raise interrupt.Interrupted

    with self.assertRaises(interrupt.Interrupted):
      gather.gather(
        self.trainer._replace(parts=self.trainer.parts._replace(judge=judge)),
        self.params,
        first_ordinal=0,
        metered=self.metered,
        on_chunk=lambda *_: None,
        check=check,
      )
    self.assertLen(checks, 3)
    self.assertGreater(checks[0], 0)
    self.assertEqual(checks, sorted(set(checks)))

  def test_the_limit_on_that_wait_is_the_configuration_s(self):
    parts = self.trainer.parts._replace(judge=self._hanging_judge())
    config = _with(self.trainer.config, 'reward.wait_s', 0.01)
    # 1.5 * 4 draws of the only prompt.
    with self.assertRaisesRegex(
      grading.MissingVerdictsError,
      r'^24 verdicts .* 0\.01 s .*\(to prompt \w+\);.*--config\.reward\.wait_s',
    ):
      self._gather(config=config, parts=parts)


if __name__ == '__main__':
  absltest.main()

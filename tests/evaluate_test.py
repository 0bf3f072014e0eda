"""Tests of `training.evaluate`."""

import contextlib
import functools
import io
import json
import pathlib
import tempfile
import threading
from unittest import mock

import jax
from absl.testing import absltest

import tiny_groups
import tiny_run
from dapo_jax.monitor import catalogue
from dapo_jax.rollout import grading
from dapo_jax.sampling import scheduler, token_choice
from dapo_jax.training import (
  assemble,
  checkpoint,
  evaluate,
  interrupt,
  losses,
  trainer,
)


class MetricsTest(absltest.TestCase):
  # 1 of 2, both and none right; lengths 3 and 8 (cut), 4 and 4, 8 and 8 (cut).
  _GROUPS = (
    tiny_groups.group((1, 0), lengths=[3, 8], finish=['eos', 'length']),
    tiny_groups.group((1, 1), ordinal=1),
    tiny_groups.group(
      (0, 0), ordinal=2, lengths=[8, 8], finish=['length', 'length']
    ),
  )

  def test_by_hand(self):
    found = evaluate.metrics(self._GROUPS)
    catalogue.check(found)
    # Accuracies 0.5, 1, 0: mean 0.5, sample deviation 0.5.
    self.assertEqual(found['eval/accuracy_frac'], 0.5)
    self.assertAlmostEqual(
      found.pop('eval/accuracy_stderr_frac'), 0.5 / 3**0.5, places=12
    )
    self.assertAlmostEqual(found.pop('eval/pass_frac'), 2 / 3, places=12)
    self.assertAlmostEqual(
      found.pop('eval/length_mean_tokens'), 35 / 6, places=12
    )
    self.assertEqual(
      found,
      {
        'eval/accuracy_frac': 0.5,
        'eval/truncated_frac': 0.5,
        'eval/prompts_count': 3,
        'eval/samples_per_prompt_count': 2,
      },
    )

  def test_a_stop_string_ends_as_an_eos_does(self):
    stopped = tiny_groups.group((1, 0), finish=['stop', 'length'])
    found = evaluate.metrics([stopped])
    self.assertEqual(found['eval/truncated_frac'], 0.5)

  def test_one_problem_has_no_standard_error(self):
    found = evaluate.metrics(self._GROUPS[:1])
    self.assertNotIn('eval/accuracy_stderr_frac', found)
    self.assertIn('+- 0.0%', evaluate.summary_line(found, step=0))

  def test_summary_line(self):
    self.assertEqual(
      evaluate.summary_line(evaluate.metrics(self._GROUPS), step=12),
      'held-out accuracy after step 12: 50.0% +- 28.9% (avg@2, 3 problems)',
    )


@functools.cache
def _parts(devices=1):
  with tiny_run.devices(devices):
    return assemble.build(tiny_run.policy_config(), tiny_run.folder())


def _measure(protocol, *, devices=1):
  parts = _parts(devices)
  params = assemble.initial_params(tiny_run.policy_config(), parts)
  return evaluate.measure(
    parts, parts.to_engine(params), protocol, check=lambda: None
  )


def _at(temperature, protocol, **filters):
  choice = token_choice.Choice(temperature, **filters)
  return protocol._replace(choice=choice)


class MeasureTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.protocol = evaluate.protocol(tiny_run.policy_config())

  def test_the_protocol_is_that_of_the_configuration(self):
    self.assertEqual(
      evaluate.protocol(
        tiny_run.config(
          {
            'seed': 5,
            'eval.samples_per_prompt': 3,
            'eval.temperature': 0.5,
            'eval.top_k': 40,
            'eval.top_p': 0.7,
            'eval.min_p': 0.02,
            'rollout.temperature': 0.7,
            'rollout.stop_strings': ('Q:',),
            'reward.wait_s': 45.0,
          }
        )
      ),
      evaluate.Protocol(
        samples_per_prompt=3,
        choice=token_choice.Choice(0.5, top_k=40, top_p=0.7, min_p=0.02),
        seed=5,
        limit_tokens=8,
        chunk_tokens=4,
        wait_s=45.0,
        stop_strings=('Q:',),
      ),
    )

  def test_the_same_policy_has_the_same_result(self):
    first = _measure(self.protocol)
    self.assertBetween(first['eval/accuracy_frac'], 0.1, 0.95)
    self.assertEqual(_measure(self.protocol), first)

  def test_the_seed_and_the_temperature_matter(self):
    protocol = _at(2.0, self.protocol._replace(samples_per_prompt=16))
    first = _measure(protocol)
    self.assertNotEqual(_measure(protocol._replace(seed=1)), first)
    self.assertNotEqual(_measure(_at(1.5, protocol)), first)

  def test_greedy_is_one_answer(self):
    greedy = _at(0.0, self.protocol)
    found = _measure(greedy)
    self.assertEqual(found['eval/accuracy_frac'], found['eval/pass_frac'])
    self.assertEqual(_measure(greedy._replace(seed=9)), found)

  def test_with_one_token_left_it_is_greedy(self):
    expected = _measure(_at(0.0, self.protocol))
    for filters in (dict(top_k=1), dict(top_p=1e-6), dict(min_p=1.0)):
      self.assertEqual(_measure(_at(2.0, self.protocol, **filters)), expected)

  def test_what_is_left_matters(self):
    wide = _at(2.0, self.protocol._replace(samples_per_prompt=16))
    for filters in (dict(top_k=2), dict(top_p=0.5), dict(min_p=0.3)):
      narrow = _measure(_at(2.0, wide, **filters))
      self.assertGreater(
        narrow['eval/accuracy_frac'], _measure(wide)['eval/accuracy_frac']
      )

  def test_a_stop_string_ends_a_response_before_it(self):
    # 'Answer: 7' ends with an EOS; stopped at ' ' nothing is answered.
    greedy = _at(0.0, self.protocol)
    found = _measure(greedy._replace(stop_strings=(': ', 'zzz')))
    self.assertEqual(found['eval/accuracy_frac'], 0.0)
    self.assertEqual(found['eval/truncated_frac'], 0.0)
    whole = _measure(greedy)
    self.assertLess(
      found['eval/length_mean_tokens'], whole['eval/length_mean_tokens']
    )

  def _with_a_hanging_judge(self):
    """Returns parts whose judge gives no verdict before the test ends."""
    released, judge = threading.Event(), _parts().judge
    self.addCleanup(released.set)

    def hanging(*question):
      released.wait(60)
      return judge(*question)

    return _parts()._replace(judge=hanging)

  def test_the_wait_for_verdicts_has_a_limit_and_can_be_ended(self):
    parts = self._with_a_hanging_judge()
    params = assemble.initial_params(tiny_run.policy_config(), parts)
    engine_params = parts.to_engine(params)
    short = self.protocol._replace(wait_s=0.01)
    # 6 problems of 2 samples.
    with self.assertRaisesRegex(
      grading.MissingVerdictsError, r'^12 verdicts .* 0\.01 s '
    ):
      evaluate.measure(parts, engine_params, short, check=lambda: None)
    generate, sampled = scheduler.generate, []

    def noted(*args, **kwargs):
      yield from generate(*args, **kwargs)
      sampled.append(True)

    def check():
      if sampled:
        raise interrupt.Interrupted

    with (
      mock.patch.object(scheduler, 'generate', noted),
      self.assertRaises(interrupt.Interrupted),
    ):
      evaluate.measure(parts, engine_params, self.protocol, check=check)

  def test_8_devices_grade_every_problem_once(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    # 6 problems of 2 samples are no multiple of the 8 slots.
    found = _measure(self.protocol, devices=8)
    self.assertEqual(found['eval/prompts_count'], 6)
    self.assertEqual(found, _measure(self.protocol))


class RunTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name) / 'run'

  def _run(self, config):
    with (
      tiny_run.devices(1),
      contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
      evaluate.run(config, str(self.folder))
    return printed.getvalue(), json.loads(
      (self.folder / 'eval.json').read_text()
    )

  def test_without_a_checkpoint_it_is_the_model_s(self):
    config = tiny_run.policy_config()
    printed, found = self._run(config)
    self.assertEqual(found['step'], 0)
    self.assertEqual(found['sampled'], _measure(evaluate.protocol(config)))
    self.assertEqual(found['greedy']['eval/samples_per_prompt_count'], 1)
    self.assertEqual(found['sampled']['eval/samples_per_prompt_count'], 2)
    self.assertGreater(found['greedy']['eval/accuracy_frac'], 0)
    for line in ('greedy ', 'sampled ', 'eval.json'):
      self.assertIn(line, printed)

  def test_random_weights_are_not_evaluated(self):
    for folder in (self.folder / 'none', self.folder / 'empty'):
      if folder.name == 'empty':
        (folder / 'checkpoints').mkdir(parents=True)
      with self.assertRaisesRegex(
        ValueError, r'nothing to evaluate.*--workdir or --config\.model\.path'
      ):
        evaluate.run(tiny_run.config(), str(folder))
    self.assertFalse((self.folder / 'none').exists())

  def test_with_a_checkpoint_it_is_the_newest_policy_s(self):
    config = tiny_run.policy_config()
    made = trainer.make_trainer(
      config,
      _parts(),
      losses.supervised_loss,
      temperature=1.0,
      with_critic=False,
    )
    with checkpoint.open_store(self.folder, keep=2) as store:
      state, _ = trainer.start_or_resume(made, store)
      # A policy that knows nothing: all logits are alike.
      state = jax.tree.map(lambda x: 0 * x, state)
      counters = checkpoint.Counters(rollout_steps=4)
      progress = checkpoint.Progress(counters, pending=None)
      store.save(state, progress, config.to_dict())
    printed, found = self._run(config)
    self.assertEqual(found['step'], 4)
    self.assertEqual(found['greedy']['eval/accuracy_frac'], 0.0)
    self.assertEqual(found['sampled']['eval/accuracy_frac'], 0.0)
    self.assertIn('after step 4', printed)
    # The run's own settings hold, only how accuracy is measured is asked anew.
    other = {
      'model.embed_dim': 64,
      'model.path': '',
      'eval.prompts': 3,
      'reward.wait_s': 45.0,
    }
    with mock.patch.object(
      evaluate, 'measure', side_effect=evaluate.measure
    ) as measured:
      _, again = self._run(tiny_run.config(other))
    self.assertEqual(again['sampled']['eval/prompts_count'], 3)
    protocols = [call.args[2] for call in measured.call_args_list]
    self.assertEqual([p.wait_s for p in protocols], [45.0, 45.0])


if __name__ == '__main__':
  absltest.main()

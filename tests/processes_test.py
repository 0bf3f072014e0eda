"""Runs of several processes do what one process with all devices does."""

import contextlib
import io
import json
import pathlib
import signal
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from absl.testing import absltest

import several_processes
import tiny_run
import tolerances
import uneven_worker
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import loop

# Prompts are drawn in rounds, some groups are dropped, and it evaluates.
_CHANGES = {
  'train.steps': 2,
  'train.samples_logged': 16,
  'eval.every_steps': 2,
  'checkpoint.every_steps': 1,
}
_MESH = {'mesh.fsdp': 4, 'mesh.tensor': 2}
# They say how many engines there were.
_OF_ENGINES = (
  'sampler/decode_steps_count',
  'sampler/slots_busy_frac',
  'sampler/prefill_count',
)
_DCPO = {
  'advantage.estimator': 'smooth',
  'filter.enabled': False,
  'objective.bounds': 'dac',
  'objective.aggregation': 'only_token_mean',
}
_PPO = {
  'advantage.estimator': 'gae',
  'filter.enabled': False,
  'critic.lr': 1e-3,
  'objective.kl_coef': 0.01,
  'objective.kl_place': 'reward',
}


class _Case(absltest.TestCase):
  """Has folders, and starts processes that train in them."""

  def setUp(self):
    super().setUp()
    holder = tempfile.TemporaryDirectory()
    self.addCleanup(holder.cleanup)
    self.folder = pathlib.Path(holder.name)

  def start(
    self,
    name: str,
    changes: dict[str, Any],
    *,
    count: int = 2,
    command: str = 'train',
    also: Sequence[Sequence[str]] | None = None,
  ) -> several_processes.Processes:
    """Starts a command in so many processes, of 8 devices together."""
    self.assertEqual(8 % count, 0)
    flags = tiny_run.flags(
      {'model.path': tiny_run.model_folder(), **_CHANGES, **changes}
    )
    workdir = f'--workdir={self.folder / name}'
    started = several_processes.Processes(
      ['-m', 'dapo_jax.main', command, *flags, workdir],
      count=count,
      devices=8 // count,
      logs=self.folder / f'{name}-logs',
      also=also,
    )
    for process in started.running:
      self.addCleanup(process.kill)
    return started

  def train(self, name: str, changes: dict[str, Any], *, count: int) -> None:
    """Trains in so many processes, to the end."""
    for ended in self.start(name, changes, count=count).wait():
      self.assertEqual(ended.status, 0, ended.output)

  def train_here(self, name: str, changes: dict[str, Any]) -> None:
    """Trains in this process, on its 8 devices."""
    config = tiny_run.policy_config({**_CHANGES, **changes})
    with contextlib.redirect_stdout(io.StringIO()):
      loop.train(config, str(self.folder / name))

  def assert_same(self, one: str, other: str) -> None:
    """Asserts that two runs had the same samples, metrics and policy."""
    one, other = self.folder / one, self.folder / other
    self.assertEqual(
      (one / 'samples.jsonl').read_text(), (other / 'samples.jsonl').read_text()
    )
    rows = [tiny_run.metrics_rows(folder) for folder in (one, other)]
    for a, b in zip(*rows, strict=True):
      self.assertEqual(a.keys(), b.keys())
      for name in a.keys() - set(_OF_ENGINES):
        if isinstance(a[name], int):
          self.assertEqual(a[name], b[name], name)
        self.assertAlmostEqual(
          a[name],
          b[name],
          delta=tolerances.F32_ATOL * max(1.0, abs(a[name])),
          msg=name,
        )
    weights = [
      safetensors.numpy.load_file(folder / 'model' / 'model.safetensors')
      for folder in (one, other)
    ]
    for name, value in weights[0].items():
      np.testing.assert_allclose(
        value, weights[1][name], rtol=0, atol=tolerances.F32_ATOL, err_msg=name
      )


class TwoProcessesTest(_Case):
  def test_dapo_of_two_processes_is_that_of_one(self):
    self.assertGreaterEqual(jax.device_count(), 8)
    self.train('two', {**_MESH, 'profile.first_step': 1}, count=2)
    self.train_here('one', _MESH)
    self.assert_same('one', 'two')
    # Each has a trace, where no other one writes.
    for own in ('', 'process-1'):
      traces = self.folder / 'two' / own / 'profile' / 'step_1'
      self.assertLen([*traces.rglob('*.xplane.pb')], 1)
    # The rounds were not all alike, so that there was something to agree on.
    rows = tiny_run.metrics_rows(self.folder / 'one')
    self.assertGreater(rows[-1]['step/round_count'], 2)
    # The first alone prints.
    told = [(self.folder / 'two-logs' / f'{i}.txt').read_text() for i in (0, 1)]
    self.assertIn('held-out accuracy', told[0])
    for word in ('accuracy', 'reward', 'warning', 'done'):
      self.assertNotIn(word, told[1])


@pytest.mark.slow
class MoreProcessesTest(_Case):
  def test_dcpo_of_four_processes_is_that_of_one(self):
    changes = {**_DCPO, **_MESH, 'train.steps': 4}
    self.train('four', changes, count=4)
    self.train_here('one', changes)
    self.assert_same('one', 'four')

  def test_a_critic_and_a_penalty_in_the_reward_as_well(self):
    changes = {**_PPO, 'mesh.data': 2, 'mesh.fsdp': 4}
    self.train('two', changes, count=2)
    self.train_here('one', changes)
    self.assert_same('one', 'two')

  def test_an_engine_of_two_processes_samples_the_same(self):
    changes = {**_MESH, 'sampler.engine_chips': 4, 'sampler.tensor': 2}
    self.train('four', changes, count=4)
    self.train_here('one', {**_MESH, 'sampler.tensor': 2})
    self.assert_same('one', 'four')

  def test_another_number_of_processes_goes_on(self):
    for steps, count in ((1, 2), (2, 4), (3, 1)):
      self.train('moved', {**_MESH, 'train.steps': steps}, count=count)
    for steps in (1, 2, 3):
      self.train_here('one', {**_MESH, 'train.steps': steps})
    self.assert_same('one', 'moved')

  def test_supervised_training_and_evaluation_are_the_same(self):
    changes = {'model.path': '', 'sft.steps': 6, 'sft.eval_every_steps': 3}
    outputs = {}
    for count in (1, 2):
      started = self.start(f'{count}', changes, count=count, command='sft')
      first, *others = started.wait()
      self.assertEqual(first.status, 0, first.output)
      model = {'model.path': str(self.folder / f'{count}' / 'model')}
      started = self.start(f'{count}-eval', model, count=count, command='eval')
      outputs[count] = [
        line
        for line in started.wait()[0].output.splitlines()
        if line.startswith(('greedy', 'sampled'))
      ]
    self.assertLen(outputs[1], 2)
    self.assertEqual(outputs[1], outputs[2])


@pytest.mark.slow
class UnevenWorkTest(absltest.TestCase):
  def test_delays_and_filters_change_nothing_in_20_seeds(self):
    holder = tempfile.TemporaryDirectory()
    self.addCleanup(holder.cleanup)
    folder, model = pathlib.Path(holder.name), tiny_run.model_folder()
    expected = uneven_worker.outcomes(model, job_lib.Job())
    # Some seeds find groups in the first round, some have to draw again.
    self.assertGreater(len({tally[0] for tally, *_ in expected}), 1)
    for count in (2, 4):
      out = folder / f'{count}.json'
      program = ['tests/uneven_worker.py', f'--model={model}', f'--out={out}']
      started = several_processes.Processes(
        program, count=count, devices=8 // count, logs=folder / f'{count}'
      )
      for ended in started.wait():
        self.assertEqual(ended.status, 0, ended.output)
      found = json.loads(out.read_text())
      for (*one, rows), (*other, other_rows) in zip(
        expected, found, strict=True
      ):
        self.assertEqual(one, other)
        # A token elsewhere, or another one, changes a sum by about 1.
        np.testing.assert_allclose(rows, other_rows, rtol=0, atol=0.05)


@pytest.mark.slow
class EndTest(_Case):
  """One process is told to stop, or is gone."""

  def _run(self, name: str) -> several_processes.Processes:
    run = self.start(name, {**_MESH, 'train.steps': 500})
    lines = self.folder / name / 'metrics.jsonl'
    run.wait_until(
      lambda: lines.is_file() and lines.read_text().count('\n') > 2
    )
    return run

  def _goes_on(self, name: str) -> None:
    """Asserts that the run, to another step, ends as one without an end."""
    done = tiny_run.metrics_rows(self.folder / name)[-1]['step']
    changes = {**_MESH, 'train.steps': done + 2}
    self.train(name, changes, count=2)
    self.train_here('straight', changes)
    for file in ('samples.jsonl',):
      self.assertEqual(
        (self.folder / name / file).read_text(),
        (self.folder / 'straight' / file).read_text(),
      )

  def test_a_signal_to_one_stops_all_at_a_boundary(self):
    run = self._run('stopped')
    begin_s = time.monotonic()
    run.running[1].send_signal(signal.SIGTERM)
    first, other = run.wait(60)
    self.assertLess(time.monotonic() - begin_s, 25)
    self.assertEqual((first.status, other.status), (0, 0), first.output)
    self.assertIn('the same command goes on', first.output)
    self._goes_on('stopped')

  def test_a_lost_process_ends_the_others_in_two_minutes(self):
    run = self._run('killed')
    begin_s = time.monotonic()
    run.running[1].send_signal(signal.SIGKILL)
    first, _ = run.wait(180)
    self.assertLess(time.monotonic() - begin_s, 120)
    self.assertEqual(first.status, 1)
    self.assertIn('process 1 is lost', first.output)
    self._goes_on('killed')

  def test_a_lost_first_process_ends_the_others_in_two_minutes(self):
    run = self._run('killed')
    begin_s = time.monotonic()
    run.running[0].send_signal(signal.SIGKILL)
    _, other = run.wait(180)
    self.assertLess(time.monotonic() - begin_s, 120)
    self.assertNotEqual(other.status, 0)
    self._goes_on('killed')

  def test_processes_that_differ_are_refused(self):
    seeds = [['--config.seed=0'], ['--config.seed=1']]
    for command in ('train', 'sft', 'eval'):
      run = self.start(f'{command}-differs', _MESH, command=command, also=seeds)
      for ended in run.wait(100):
        # Jax may abort one that has said it and is slow to end.
        self.assertNotEqual(ended.status, 0)
        self.assertIn(
          'process 1 differs from process 0 in the configuration', ended.output
        )


if __name__ == '__main__':
  absltest.main()

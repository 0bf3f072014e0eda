"""Tests of `training.supervised`: whole runs of a tiny model."""

import contextlib
import functools
import io
import json
import os
import pathlib
import shutil
import signal
import tempfile
from unittest import mock

import jax.numpy as jnp
from absl.testing import absltest, parameterized

import tiny_run
from dapo_jax.monitor import catalogue
from dapo_jax.rewards import reward
from dapo_jax.rollout import grading
from dapo_jax.training import checkpoint, evaluate, supervised

_CHANGES = {'sft.steps': 12, 'sft.eval_every_steps': 4}


def _run(folder, changes=None) -> str:
  config = tiny_run.config({**_CHANGES, **(changes or {})})
  with (
    tiny_run.devices(1),
    contextlib.redirect_stdout(io.StringIO()) as printed,
  ):
    supervised.run(config, str(folder))
  return printed.getvalue()


@functools.cache
def _straight() -> pathlib.Path:
  folder = tiny_run.folder() / 'supervised'
  _run(folder)
  return folder


def _policy(folder) -> bytes:
  return (folder / 'model' / 'model.safetensors').read_bytes()


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)


class RunTest(_Test):
  def test_the_loss_falls(self):
    rows = tiny_run.read_jsonl(_straight() / 'metrics.jsonl')
    self.assertEqual([row['step'] for row in rows], [0, 4, 8, 12])
    self.assertNotIn('sft/loss', rows[0])
    losses = [row['sft/loss'] for row in rows[1:]]
    # At first 300 tokens are all alike, then it knows some.
    self.assertGreater(losses[0], 3.0)
    self.assertLess(losses[1], losses[0])
    self.assertLess(losses[2], 0.75 * losses[0])
    for row in rows:
      catalogue.check(set(row) - {'step'})
      self.assertEqual(row['sft/step_count'], row['step'])

  def test_it_learns_to_add(self):
    last = tiny_run.supervised_output().splitlines()[-2]
    self.assertRegex(last, r'after step 150: [3-9]\d\.\d%.* loss 0\.')

  def test_done_already(self):
    folder = self.folder / 'copy'
    shutil.copytree(_straight(), folder)
    before = _policy(folder)
    with mock.patch.object(supervised, '_train', side_effect=AssertionError):
      printed = _run(folder)
    self.assertIn('done already', printed)
    self.assertIn(str(folder / 'model'), printed)
    self.assertEqual(_policy(folder), before)

  def test_it_stops_at_the_accuracy_that_is_asked_for(self):
    printed = _run(
      self.folder,
      {'model.path': tiny_run.model_folder(), 'sft.stop_accuracy': 0.2},
    )
    self.assertIn('after step 0', printed)
    self.assertNotIn('after step 4', printed)
    self.assertEqual(
      _policy(self.folder), _policy(pathlib.Path(tiny_run.model_folder(), '..'))
    )

  def test_a_problem_without_a_solution_is_refused(self):
    rows = [
      {'problem': '1+1=?', 'answer': '2', 'solution': 'Answer: 2'},
      {'problem': '1+2=?', 'answer': '3'},
    ]
    source = self.folder / 'some.jsonl'
    source.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    with self.assertRaisesRegex(
      ValueError, r'1 of 2 .*no solution.*--config\.data\.source'
    ):
      _run(
        self.folder,
        {
          'data.source': str(source),
          'eval.source': str(source),
          'eval.prompts': 2,
        },
      )

  def test_an_epoch_ends_with_a_batch_of_its_own_size(self):
    # A round of the rollout, 6, would fit into the 100 sums.
    with self.assertRaisesRegex(
      ValueError, r'a round draws 200; .*--config\.sft\.examples_per_step'
    ):
      _run(self.folder, {'data.tail': 'drop', 'sft.examples_per_step': 200})


class CriticTest(_Test):
  @parameterized.parameters(False, True)
  def test_there_is_none_whatever_the_estimator(self, shares_layers):
    changes = {
      'advantage.estimator': 'gae',
      'critic.shares_layers': shares_layers,
    }
    with _interruption('update 6'):
      _run(self.folder, changes)
    self.assertIn('done', _run(self.folder, changes))
    self.assertEqual(_policy(self.folder), _policy(_straight()))


class ResumeTest(_Test):
  @parameterized.parameters('update 6', 'line 8', 'evaluation', 'first')
  def test_stopped_and_resumed_equals_straight(self, where):
    with _interruption(where):
      printed = _run(self.folder)
    self.assertRegex(printed, 'stopped; saved step .*the same command goes on')
    self.assertFalse((self.folder / 'model').exists())
    self.assertIn('done', _run(self.folder))
    self.assertEqual(_policy(self.folder), _policy(_straight()))
    self.assert_same_lines()

  def assert_same_lines(self):
    """Checks all metrics, the mean of the losses over a stop included."""
    self.assertEqual(
      *(
        tiny_run.read_jsonl(folder / 'metrics.jsonl')
        for folder in (self.folder, _straight())
      )
    )

  @parameterized.parameters('_batch', 'assemble.export')
  def test_killed_and_resumed_equals_straight(self, where):
    holder, name = supervised, where
    if '.' in where:
      holder, name = supervised.assemble, 'export'
    whole = getattr(holder, name)

    def fail(*args):
      if name == 'export' or args[1] == 6:
        raise MemoryError
      return whole(*args)

    with mock.patch.object(holder, name, fail):
      with self.assertRaises(MemoryError):
        _run(self.folder)
    self.assertIn('done', _run(self.folder))
    self.assertEqual(_policy(self.folder), _policy(_straight()))
    self.assert_same_lines()

  def test_a_fault_of_the_reward_loses_no_update(self):
    with _interruption('judge'), self.assertRaises(grading.JudgeError):
      _run(self.folder)
    with checkpoint.open_store(self.folder, keep=1) as store:
      self.assertEqual(store.latest_step(), 4)
    self.assertIn('done', _run(self.folder))
    self.assertEqual(_policy(self.folder), _policy(_straight()))

  def test_other_settings_are_refused_or_told(self):
    with _interruption('update 6'):
      _run(self.folder)
    with self.assertRaisesRegex(ValueError, r'examples_per_step: 32 -> 16'):
      _run(self.folder, {'sft.examples_per_step': 16})
    printed = _run(self.folder, {'sft.lr': 0.5, 'sft.steps': 8})
    self.assertIn('changed since: sft.lr: 0.01 -> 0.5', printed)
    self.assertIn('changed since: sft.steps: 12 -> 8', printed)

  def test_a_run_of_the_other_kind_is_left_alone_when_it_is_done_too(self):
    (self.folder / 'model').mkdir()
    (self.folder / 'metrics.jsonl').write_text('{"step": 3}\n')
    with self.assertRaisesRegex(ValueError, 'a run of reinforcement learning'):
      _run(self.folder)


class NonFiniteTest(_Test):
  def test_updates_in_a_row_are_counted_over_evaluations_and_a_stop(self):
    update = supervised._update

    def spoilt(trainer, state, step):
      state, stats = update(trainer, state, step)
      faults = stats.faults.at[jnp.array([0, 2])].set(step >= 3)
      return state, stats._replace(faults=faults)

    changes = {'sft.eval_every_steps': 2, 'optim.max_skipped_updates': 4}
    with mock.patch.object(supervised, '_update', spoilt):
      with _interruption('update 5'):
        self.assertIn('stopped; saved step 5', _run(self.folder, changes))
      # Those of steps 4 and 5, 6 and 7, then 8 was not looked at before.
      with self.assertRaisesRegex(
        ValueError,
        r'^step 8: 5 updates in a row .* \(the loss, \w.*\).*--config\.sft\.lr',
      ):
        _run(self.folder, changes)
    rows = tiny_run.read_jsonl(self.folder / 'metrics.jsonl')
    self.assertEqual(
      [r.get('optim/skipped_update_count') for r in rows], [None, None, 1, 2]
    )
    # What the message says is what goes on.
    self.assertIn('done', _run(self.folder, {**changes, 'sft.lr': 1e-3}))


@contextlib.contextmanager
def _interruption(where):
  """Sends a signal once: at an update, at a line, or in an evaluation.

  Or the second evaluation's judge raises.
  """
  batch, line = supervised._batch, supervised._line
  measure, judge = evaluate.measure, reward.judge
  evaluations = []

  def interrupted_batch(trainer, step):
    if where == f'update {step}':
      os.kill(os.getpid(), signal.SIGINT)
    return batch(trainer, step)

  def interrupted_line(metrics, *, step):
    if where == f'line {step}':
      os.kill(os.getpid(), signal.SIGINT)
    return line(metrics, step=step)

  def measured(*args, **kwargs):
    evaluations.append(where)
    if len(evaluations) == {'first': 1, 'evaluation': 3}.get(where):
      os.kill(os.getpid(), signal.SIGTERM)
    return measure(*args, **kwargs)

  def judged(*args, **kwargs):
    if where == 'judge' and len(evaluations) == 2:
      raise ZeroDivisionError
    return judge(*args, **kwargs)

  with (
    mock.patch.object(reward, 'judge', judged),
    mock.patch.object(supervised, '_batch', interrupted_batch),
    mock.patch.object(supervised, '_line', interrupted_line),
    mock.patch.object(evaluate, 'measure', measured),
  ):
    yield


if __name__ == '__main__':
  absltest.main()

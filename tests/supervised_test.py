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
    # The mean loss is over the updates since the run was started.
    rows, straight = (
      [
        {name: v for name, v in row.items() if name != 'sft/loss'}
        for row in tiny_run.read_jsonl(folder / 'metrics.jsonl')
      ]
      for folder in (self.folder, _straight())
    )
    self.assertEqual(rows, straight)

  def test_a_fault_of_the_reward_loses_no_update(self):
    with _interruption('judge'), self.assertRaises(grading.JudgeError):
      _run(self.folder)
    with checkpoint.open_store(self.folder, keep=1) as store:
      self.assertEqual(store.latest_step(), 4)
    self.assertIn('done', _run(self.folder))
    self.assertEqual(_policy(self.folder), _policy(_straight()))

  def test_other_settings_are_refused(self):
    with _interruption('update 6'):
      _run(self.folder)
    with self.assertRaisesRegex(ValueError, r'sft\.lr: 0\.01 -> 0\.5'):
      _run(self.folder, {'sft.lr': 0.5})


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

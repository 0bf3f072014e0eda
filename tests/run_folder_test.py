"""Tests of `training.run_folder`; those of whole runs are in loop_test."""

import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

import fake_jobs
import tiny_run
from dapo_jax.parallel import job
from dapo_jax.training import checkpoint, run_folder


def _progress(step, **changes):
  return checkpoint.Progress(
    checkpoint.Counters(rollout_steps=step), **{'pending': None, **changes}
  )


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    self.config = tiny_run.config()  # 6 steps

  def line(self, **values):
    (self.folder / 'metrics.jsonl').write_text(json.dumps(values) + '\n')


class CheckTest(_Test):
  def test_a_run_of_the_same_kind_may_go_on(self):
    self.line(step=3)
    (self.folder / 'model').mkdir()
    (self.folder / 'model' / 'config.json').write_text('{}')
    run_folder.check(self.folder)

  def test_another_is_refused(self):
    self.line(**{'step': 3, 'sft/step_count': 3})
    with self.assertRaisesRegex(ValueError, 'supervised .*--workdir'):
      run_folder.check(self.folder)

  def test_what_is_no_model_is_refused(self):
    (self.folder / 'model').mkdir()
    with self.assertRaisesRegex(ValueError, 'is not a model.*--workdir'):
      run_folder.check(self.folder)


class SettledTest(_Test):
  def test_pending_metrics_that_have_their_line_are_not(self):
    pending = _progress(3, pending={'reward/mean': 0.5}, first_accuracy=0.25)
    self.assertEqual(
      run_folder.settled(pending, self.folder, job.Job()), pending
    )
    self.line(**{'step': 2, 'eval/accuracy_frac': 0.75})
    self.assertEqual(
      run_folder.settled(pending, self.folder, job.Job()), pending
    )
    self.line(**{'step': 3, 'eval/accuracy_frac': 0.75})
    self.assertEqual(
      run_folder.settled(pending, self.folder, job.Job()),
      _progress(3, first_accuracy=0.25, last_accuracy=0.75),
    )

  def test_the_first_process_has_the_lines_for_all(self):
    pending = _progress(3, pending={'reward/mean': 0.5}, first_accuracy=0.25)
    self.line(**{'step': 3, 'eval/accuracy_frac': 0.75})
    folders = [self.folder, self.folder / 'a', self.folder / 'b']
    found = fake_jobs.run(
      3, lambda job: run_folder.settled(pending, folders[job.index], job)
    )
    settled = _progress(3, first_accuracy=0.25, last_accuracy=0.75)
    self.assertEqual(found, [settled] * 3)

  def test_it_may_have_none(self):
    pending = _progress(3, pending={'reward/mean': 0.5})
    found = fake_jobs.run(
      2, lambda job: run_folder.settled(pending, self.folder, job)
    )
    self.assertEqual(found, [pending] * 2)


class OfProcessTest(_Test):
  def test_each_process_has_its_own_folder(self):
    workdir = self.folder / 'run'
    found = [
      run_folder.of_process(workdir, job.Job(index, 3)) for index in range(3)
    ]
    self.assertEqual(
      found, [workdir, workdir / 'process-1', workdir / 'process-2']
    )
    for folder in found:
      self.assertTrue(folder.is_dir())
    # A run that goes on has them already.
    self.assertEqual(run_folder.of_process(workdir, job.Job(2, 3)), found[2])


class ToldTest(_Test):
  @parameterized.parameters(
    (2, None, False, 'step 3'),
    (3, {}, False, 'the evaluation after step 3'),
    (6, {}, False, 'the evaluation after step 6'),
    (6, None, True, 'the writing of the policy'),
  )
  def test_what_is_done_again(self, step, pending, done, again):
    progress = _progress(step, pending=pending)
    self.assertEqual(run_folder.is_done(self.config, progress), done)
    self.assertEqual(run_folder.done_again(self.config, progress), again)
    lines = run_folder.closing_lines(self.config, self.folder, progress)
    self.assertEqual('done: the policy is' in lines, done)
    self.assertEqual(f'saved step {step}; the same' in lines, not done)

  def test_what_changed(self):
    progress = _progress(4, first_accuracy=0.25, last_accuracy=0.5)
    lines = run_folder.closing_lines(self.config, self.folder, progress)
    self.assertIn(
      'held-out accuracy: 25.0% before, 50.0% after 4 steps (+25.0 points)\n'
      'stopped after 4 of 6 steps; run_config.json,',
      lines,
    )


if __name__ == '__main__':
  absltest.main()

"""Tests of launch/job.sh: what it says of how dapo-jax has ended."""

import os
import signal

from absl.testing import absltest, parameterized

import launching

_MODEL = 'mkdir -p {0}/model; echo >{0}/model/config.json'


class StatusTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.place = launching.Place(self)
    self.workdir = self.place.path / 'run'

  def _run(self, text: str, command: str = 'train', **variables: str) -> int:
    """Returns what job.sh says of a dapo-jax that does this."""
    self.place.program(
      'dapo-jax', f'#!/bin/bash\n{text.format(self.workdir)}\n'
    )
    done = self.place.run(
      'job.sh', str(self.workdir), '', command, more=variables
    )
    return done.status

  def test_without_dapo_jax_it_says_so(self):
    (self.place.bin / 'dapo-jax').unlink()
    done = self.place.run(
      *('job.sh', str(self.workdir), '', 'train'),
      more={'PATH': f'{self.place.bin}:/usr/bin:/bin'},
    )
    self.assertEqual(done.status, 2)
    self.assertRegex(done.output, 'error: dapo-jax is not installed')

  @parameterized.parameters(
    # Done is a run that has written its model.
    (_MODEL, 'train', 0),
    (_MODEL, 'sft', 0),
    ('exit 0', 'eval', 0),
    # Of several processes all end with 0 when one was asked to stop.
    ('exit 0', 'train', 75),
    ('exit 0', 'sft', 75),
    # The user's.
    ('echo "error: no key" >&2; exit 2', 'train', 2),
    # A machine that was late.
    (
      'echo "the processes did not find each other (x)" >&2; exit 2',
      'train',
      1,
    ),
    # A fault; one that was killed, by nobody who asked us.
    ('exit 1', 'train', 1),
    ('kill -KILL $$', 'train', 137),
  )
  def test_what_is_next(self, text, command, status):
    self.assertEqual(self._run(text, command), status)

  def test_a_model_that_was_there_is_not_taken_for_the_end(self):
    self.assertEqual(self._run(_MODEL), 0)
    self.assertEqual(self._run('exit 0'), 75)

  @parameterized.parameters('TPU_WORKER_ID', 'MEGASCALE_SLICE_ID')
  def test_a_process_that_is_not_the_first_has_no_model_to_write(self, name):
    self.assertEqual(self._run('exit 0', **{name: '0'}), 75)
    self.assertEqual(self._run('exit 0', **{name: '1'}), 0)

  def test_a_signal_is_passed_on_and_means_a_stop(self):
    self.place.program(
      'dapo-jax', '#!/bin/bash\ntrap "exit 143" TERM\n'
      f'touch {self.place.path}/begun\nwhile true; do sleep 0.05; done\n'
    )  # fmt: skip
    process = self.place.begin('job.sh', str(self.workdir), '', 'eval')
    launching.wait_until((self.place.path / 'begun').exists)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    self.assertEqual(process.returncode, 75, output)
    notes = self.workdir / '.launch'
    self.assertEqual((notes / 'exit_status').read_text(), '75\n')
    self.assertEqual((notes / 'pid').read_text(), f'{process.pid}\n')

  def test_its_errors_are_shown(self):
    self.place.program('dapo-jax', '#!/bin/bash\necho why >&2; exit 1\n')
    done = self.place.run('job.sh', str(self.workdir), '', 'train')
    self.assertRegex(done.output, '(?m)^why$')


if __name__ == '__main__':
  absltest.main()

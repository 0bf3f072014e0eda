"""Tests of `training.run_lock`, with real processes."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest

from dapo_jax.training import run_lock

_HOLD = """
import sys, time
from dapo_jax.training import run_lock
with run_lock.held(sys.argv[1], flag='--workdir'):
  print('held', flush=True)
  time.sleep(600)
"""


class HeldTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name) / 'run'

  @contextlib.contextmanager
  def _other(self):
    """Yields another process that holds the lock."""
    with subprocess.Popen(
      [sys.executable, '-c', _HOLD, self.folder],
      stdout=subprocess.PIPE,
      text=True,
    ) as process:
      try:
        self.assertEqual(process.stdout.readline(), 'held\n')
        yield process
      finally:
        process.kill()

  def test_a_second_process_is_refused_and_told_of_the_first(self):
    with self._other() as process:
      with self.assertRaisesRegex(
        ValueError,
        rf'^another process \({process.pid} on .+\) works in .*/run: .*, or '
        'change --workdir$',
      ):
        with run_lock.held(self.folder, flag='--workdir'):
          pass

  def test_it_ends_with_a_process_that_is_killed(self):
    with self._other() as process:
      process.send_signal(signal.SIGKILL)
      process.wait()
      with run_lock.held(self.folder, flag='--workdir'):
        text = (self.folder / run_lock.NAME).read_text()
    self.assertStartsWith(text, f'{os.getpid()} on ')

  def test_it_ends_with_its_context(self):
    for _ in range(2):
      with run_lock.held(self.folder, flag='--workdir'):
        with self.assertRaisesRegex(ValueError, 'another process'):
          with run_lock.held(self.folder, flag='--workdir'):
            pass

  def test_a_folder_that_cannot_be_made_is_told(self):
    self.folder.write_text('a file')
    with self.assertRaisesRegex(
      ValueError, r'/run/in cannot be written to \(Not a directory\).*--workdir'
    ):
      with run_lock.held(self.folder / 'in', flag='--workdir'):
        pass


if __name__ == '__main__':
  absltest.main()

"""Tests of launch/worker.sh: the lock of a TPU that somebody left or holds."""

import fcntl
import os

from absl.testing import absltest

import launching

_JOB = ('start', 'RUN', '1-1', 'first', 'gs://bucket/run', 'train')


class LockTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.place = launching.Place(self)
    # It runs dapo-jax of its environment.
    (self.place.path / 'run/venv/bin').mkdir(parents=True)
    for name in ('python', 'dapo-jax'):
      (self.place.path / 'run/venv/bin' / name).symlink_to(
        self.place.bin / name
      )
    self.lock = self.place.path / 'libtpu_lockfile'

  def _start(self) -> launching.Done:
    words = [w.replace('RUN', str(self.place.path / 'run')) for w in _JOB]
    return self.place.run(
      'worker.sh',
      *words,
      '--config=good.py',
      more={'LIBTPU_LOCKFILE': str(self.lock)},
    )

  def _stop(self) -> None:
    self.place.run('worker.sh', 'stop', str(self.place.path / 'run'))

  def test_one_that_a_dead_process_left_is_removed(self):
    self.lock.touch()
    done = self._start()
    self.addCleanup(self._stop)
    self.assertEqual(done.status, 0, done.output)
    self.assertRegex(done.output, 'the process that left it is dead')
    self.assertFalse(self.lock.exists())

  def test_one_that_is_held_stays_and_its_holder_is_named(self):
    with self.lock.open('w') as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      done = self._start()
    self.assertEqual(done.status, 2, done.output)
    self.assertRegex(done.output, rf'process {os.getpid()} \(.*\) of this')
    self.assertTrue(self.lock.exists())
    self.assertFalse((self.place.path / 'run/start').exists())


if __name__ == '__main__':
  absltest.main()

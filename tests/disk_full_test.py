"""Tests of whole runs whose disk is full: real processes, real refusals."""

import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

import tiny_run

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# A limit on the size of a file refuses as a full disk does, for any user.
_RUN = """
import resource, sys
from dapo_jax import main
limit = int(sys.argv[1])
if limit:
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main.main(sys.argv[2:]))
"""
_CHANGES = {
  'checkpoint.every_steps': 1,
  'eval.every_steps': 100,
  'filter.max_rounds': 1,
  'train.steps': 4,
}


def _train(workdir, *, file_bytes=0):
  """Returns the run of a process that trains with random weights."""
  environment = {
    name: value
    for name, value in os.environ.items()
    if name not in ('XLA_FLAGS', 'JAX_COMPILATION_CACHE_DIR')
  }
  flags = [*tiny_run.flags(_CHANGES), f'--workdir={workdir}']
  return subprocess.run(
    [sys.executable, '-c', _RUN, str(file_bytes), 'train', *flags],
    capture_output=True,
    text=True,
    cwd=_ROOT,
    env=environment | {'PYTHONPATH': str(_ROOT)},
  )


class DiskFullTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def assert_told(self, run, pattern):
    """Checks the status and the one line that says what is to be done."""
    self.assertEqual(run.returncode, 2, run.stderr)
    told = [x for x in run.stderr.splitlines() if 'dapo-jax: error' in x]
    self.assertLen(told, 1, run.stderr)
    self.assertRegex(told[0], pattern)

  def _steps(self, workdir):
    rows = tiny_run.read_jsonl(workdir / 'metrics.jsonl')
    return [row['step'] for row in rows]

  def test_a_save_in_the_background_ends_the_run_at_the_next_step(self):
    run = _train(self.folder, file_bytes=20_000)
    self.assert_told(
      run,
      'checkpoint 1 could not be written .*File too large.*none is whole yet.*'
      'make room .* the same command',
    )
    # How soon it is noticed is the disk's affair, and the machine's.
    self.assertIn(self._steps(self.folder), ([0, 1], [0, 1, 2], [0, 1, 2, 3]))
    # With room the same command begins anew, as nothing was saved.
    self.assertEqual(_train(self.folder).returncode, 0)
    self.assertEqual(self._steps(self.folder), [0, 1, 2, 3, 4])

  def test_what_was_saved_goes_on_when_there_is_room(self):
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=450k', 'tmpfs', self.folder]
    try:
      subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
      self.skipTest(f'no disk of our own: {error}')
    self.addCleanup(subprocess.run, ['umount', self.folder], check=True)
    workdir = self.folder / 'run'
    self.assert_told(
      _train(workdir),
      r'(checkpoint [23] could not be .*No space left.*checkpoint [12] is whole'
      r'|jsonl could not be written \(No space left on device\))',
    )
    subprocess.run(['mount', '-o', 'remount,size=20m', self.folder], check=True)
    run = _train(workdir)
    self.assertEqual(run.returncode, 0, run.stderr)
    self.assertRegex(run.stdout, 'resumed after step [12]')
    self.assertEqual(self._steps(workdir), [0, 1, 2, 3, 4])

  def test_a_tokenizer_without_room_is_told_with_its_name(self):
    # It has some 5,000 bytes; what is written before it has fewer.
    self.assert_told(
      _train(self.folder, file_bytes=2_000),
      r'^dapo-jax: error: .*(tokenizer\.model|a file).*: File too large; make',
    )
    self.assertFalse((self.folder / 'tokenizer.model').exists())


if __name__ == '__main__':
  absltest.main()

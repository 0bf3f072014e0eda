"""Tests of launch/mirror.py, the copy of a work directory in a bucket."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest
from etils import epath

import fake_bucket
import launching

_FILE = launching.ROOT / 'launch/mirror.py'
_spec = importlib.util.spec_from_file_location('mirror', _FILE)
mirror = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mirror)


def _fill(folder: pathlib.Path, *names: str) -> None:
  for name in names:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name)


class CopyTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    holder = tempfile.TemporaryDirectory()
    self.addCleanup(holder.cleanup)
    root = pathlib.Path(holder.name)
    self.here, self.bucket = root / 'here', root / 'bucket'
    self.here.mkdir()
    self.enterContext(fake_bucket.at(self.bucket))
    self.workdir = epath.Path(self.here)
    self.folder = epath.Path('gs://bucket/runs/1/workdir')
    self.copies = self.bucket / 'runs/1/workdir'

  def test_what_is_the_runs_goes_and_what_is_the_machines_stays(self):
    _fill(self.here, 'metrics.jsonl', 'model/config.json', 'model/a/b.txt')
    _fill(
      self.here,
      'checkpoints/5/state',
      'process-1/x',
      'run.lock',
      '.launch/pid',
      'eval.json.part',
    )
    self.assertEqual(mirror.put(self.workdir, self.folder), 3)
    found = {
      str(path.relative_to(self.copies))
      for path in self.copies.rglob('*')
      if path.is_file()
    }
    self.assertEqual(
      found, {'metrics.jsonl', 'model/config.json', 'model/a/b.txt'}
    )

  def test_only_what_changed_goes_again(self):
    _fill(self.here, 'a', 'b', 'c')
    mirror.put(self.workdir, self.folder)
    self.assertEqual(mirror.put(self.workdir, self.folder), 0)
    (self.here / 'a').write_text('longer')
    # Of the same size, but newer.
    (self.here / 'b').write_text('x')
    newer_s = (self.copies / 'b').stat().st_mtime + 5
    os.utime(self.here / 'b', (newer_s, newer_s))
    self.assertEqual(mirror.put(self.workdir, self.folder), 2)
    self.assertEqual((self.copies / 'a').read_text(), 'longer')
    self.assertEqual((self.copies / 'b').read_text(), 'x')

  def test_it_comes_back_and_replaces_nothing(self):
    _fill(self.copies, 'metrics.jsonl', 'model/config.json')
    _fill(self.here, 'metrics.jsonl')
    (self.here / 'metrics.jsonl').write_text('newer')
    self.assertEqual(mirror.get(self.folder, self.workdir), 1)
    self.assertEqual((self.here / 'metrics.jsonl').read_text(), 'newer')
    self.assertTrue((self.here / 'model/config.json').exists())

  def test_what_a_person_put_there_anew_takes_the_old_ones_place(self):
    _fill(self.copies, 'data/a', 'data/b')
    mirror.get(self.folder, self.workdir)
    again = lambda: mirror.get(self.folder, self.workdir, replaces=True)
    self.assertEqual(again(), 0)
    (self.copies / 'data/a').write_text('mended since')
    self.assertEqual(again(), 1)
    self.assertEqual((self.here / 'data/a').read_text(), 'mended since')

  def test_what_is_put_in_by_hand_comes_whatever_it_is_called(self):
    _fill(self.copies, 'checkpoints/a', '.hidden', 'b.half')
    self.assertEqual(mirror.get(self.folder, self.workdir), 2)
    self.assertTrue((self.here / 'checkpoints/a').exists())

  def test_nothing_comes_from_a_folder_that_is_not_there(self):
    self.assertEqual(mirror.get(self.folder, self.workdir), 0)

  def test_again_and_again_tells_a_fault_and_goes_on(self):
    _fill(self.here, 'a')
    self.bucket.mkdir()
    (self.bucket / 'file').write_text('no folder')
    process = subprocess.Popen(
      [sys.executable, str(_FILE), 'put', str(self.here)]
      + [str(self.bucket / 'file/x'), '--every=0.05'],
      stderr=subprocess.PIPE,
      text=True,
    )
    try:
      for _ in range(2):
        self.assertRegex(
          process.stderr.readline(), r'^warning: mirror.py: .*\bfile\b'
        )
    finally:
      process.terminate()
      process.communicate()


if __name__ == '__main__':
  absltest.main()

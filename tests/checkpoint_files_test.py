"""Tests of `training.checkpoint_files`: faults of saves and of what was saved.

Through `checkpoint.Store`, on a real folder and on a stand-in for a bucket.
"""

import contextlib
import json
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl.testing import absltest, parameterized
from etils import epath
from orbax.checkpoint._src.metadata import checkpoint as orbax_metadata

import fake_bucket
import fake_jobs
from dapo_jax.training import checkpoint, checkpoint_files, checkpoint_folder


def _state(seed):
  """Returns a state with arrays of two types, and one of zeros."""
  values = np.random.default_rng(seed).standard_normal((40, 50))
  return {
    'params': {'q': jnp.asarray(values, jnp.float32)},
    'moments': {'q': jnp.zeros((40, 50)), 'count': jnp.int32(seed)},
  }


_LIKE = jax.tree.map(ocp.utils.to_shape_dtype_struct, _state(0))


def _progress(step):
  return checkpoint.Progress(
    checkpoint.Counters(rollout_steps=step, prompts=70), pending=None
  )


class _Test(parameterized.TestCase):
  place = ''

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.workdir = pathlib.Path(folder.name)
    self.folder = self.workdir / 'checkpoints'

  def open(self, *, keep=3, **how):
    return checkpoint.open_store(
      self.workdir, keep=keep, folder=self.place, **how
    )

  def save(self, *steps, **how):
    for step in steps:
      with self.open(**how) as store:
        store.save(_state(step), _progress(step), {'seed': 1})

  def restored(self):
    """Returns the step that is restored, its state having been compared."""
    with self.open() as store:
      state, progress = store.restore(_LIKE)
    step = progress.counters.rollout_steps
    self.assertEqual(progress, _progress(step))
    jax.tree.map(np.testing.assert_array_equal, state, _state(step))
    return step

  def steps(self):
    return sorted(int(p.name) for p in self.folder.iterdir() if
                  p.name.isdigit())  # fmt: skip


class KeptTest(_Test):
  def test_the_newest_and_every_so_many_th(self):
    self.save(1, 2, 3, 4, 5, 6, 7, 8, keep=2, keep_every_steps=3)
    self.assertEqual(self.steps(), [3, 6, 7, 8])

  def test_without_a_rule_all(self):
    self.save(1, 2, 3, keep=None)
    self.assertEqual(self.steps(), [1, 2, 3])

  def test_one_that_is_not_whole_does_not_count(self):
    self.save(1, 5, keep=1)
    (self.folder / '5' / 'commit_success.txt').unlink()
    self.save(3, keep=1)
    self.assertEqual(self.steps(), [3, 5])
    self.assertEqual(self.restored(), 3)

  def test_the_one_before_goes_only_when_the_next_is_whole(self):
    self.save(1, keep=1)
    with _refused_writes(), self.assertRaises(checkpoint_files.SaveError):
      self.save(2, keep=1)
    self.assertEqual(self.restored(), 1)


class UnfinishedTest(_Test):
  """What a kill in the middle of a save leaves."""

  @parameterized.parameters(
    lambda folder: folder.rename(f'{folder}.orbax-checkpoint-tmp'),
    lambda folder: (folder / 'commit_success.txt').unlink(),
    lambda folder: (shutil.rmtree(folder), folder.mkdir()),
  )
  def test_it_is_left_out_with_a_warning_and_written_again(self, cut_off):
    self.save(1, 2)
    cut_off(self.folder / '2')
    with self.assertLogs('absl', 'WARNING') as logs:
      self.assertEqual(self.restored(), 1)
    told = [r.getMessage() for r in logs.records if 'not finished' in str(r)]
    self.assertLen(told, 1)
    self.assertRegex(told[0], '/2.* is not finished .*: 1 is the newest whole')
    self.save(2)
    self.assertEqual(self.restored(), 2)
    self.assertEqual(self.steps(), [1, 2])

  def test_reading_removes_nothing(self):
    self.save(1)
    begun = self.folder / '2.orbax-checkpoint-tmp'
    begun.mkdir()
    with self.open(read_only=True) as store:
      self.assertEqual(store.latest_step(), 1)
      self.assertEqual(store.restore(_LIKE)[1], _progress(1))
    self.assertTrue(begun.exists())

  def test_a_store_that_is_read_needs_no_folder_and_makes_none(self):
    with self.open(read_only=True) as store:
      self.assertIsNone(store.latest_step())
    self.assertFalse(self.folder.exists())


def _flip(data):
  middle = len(data) // 2
  return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


class DamageTest(_Test):
  """A checkpoint that was whole, and whose files changed."""

  @parameterized.parameters(
    (_flip,), (lambda data: data[: len(data) // 2],), (lambda data: b'',),
    (None,),
  )  # fmt: skip
  def test_any_file_restores_what_was_saved_or_is_told(self, change):
    self.save(1, 2)
    told = 0
    for file in [p for p in (self.folder / '2').rglob('*') if p.is_file()]:
      if file.name == 'commit_success.txt' and change is None:
        continue
      whole = file.read_bytes()
      file.unlink() if change is None else file.write_bytes(change(whole))
      with self.subTest(file=file.relative_to(self.folder)):
        try:
          self.assertEqual(self.restored(), 2)
        except ValueError as error:
          told += 1
          self.assertRegex(
            str(error),
            r'^checkpoint 2 in .*checkpoints is damaged or cannot be read \(.+'
            r'\): .* move .*checkpoints/2 away, and the same command goes on '
            r'from checkpoint 1$',
          )
      file.write_bytes(whole)
    self.assertGreaterEqual(told, 4)
    self.assertEqual(self.restored(), 2)
    shutil.rmtree(self.folder / '2')
    self.assertEqual(self.restored(), 1)

  def _flip_arrays(self):
    """Flips a bit of the file with most bytes, which holds an array."""
    files = [p for p in (self.folder / '2').rglob('*') if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    largest.write_bytes(_flip(largest.read_bytes()))

  def test_a_flipped_bit_of_an_array_is_told_with_its_name(self):
    self.save(1, 2)
    self._flip_arrays()
    with self.assertRaisesRegex(ValueError, r'than were saved in params/q\)'):
      self.restored()
    with self.open() as store:
      like = _LIKE['params']
      where = jax.tree.map(lambda leaf: leaf.sharding, like)
      with self.assertRaisesRegex(ValueError, r'were saved in params/q\)'):
        store.restore_params(like, where)
      # The one before is as it was.
      params, step = store.restore_params(like, where, step=1)
    self.assertEqual(step, 1)
    np.testing.assert_array_equal(params['q'], _state(1)['params']['q'])

  def test_a_changed_number_beside_the_arrays_is_told(self):
    self.save(2)
    about = self.folder / '2' / 'about' / 'metadata'
    saved = json.loads(about.read_text())
    saved['counters']['prompts'] = 71
    about.write_text(json.dumps(saved))
    with self.assertRaisesRegex(
      ValueError, r'2 in .*about/metadata changed.*command has none before$'
    ):
      self.restored()

  def test_one_that_another_run_has_removed_is_no_damage(self):
    self.save(1)
    with self.open(read_only=True) as store:
      self.save(2, keep=1)
      with self.assertRaisesRegex(
        ValueError, r'^checkpoint 1 in .* was removed while .* command again$'
      ):
        store.restore(_LIKE)
    self.assertEqual(self.restored(), 2)

  def test_want_of_memory_is_no_damage(self):
    self.save(1)
    with self.open() as store, mock.patch.object(
      ocp.CheckpointManager, 'restore', side_effect=MemoryError
    ):  # fmt: skip
      with self.assertRaises(MemoryError):
        store.restore(_LIKE)


class OtherTest(_Test):
  """A state of another shape than is wanted."""

  @parameterized.parameters(
    (
      {'params': {'q': jnp.zeros((50, 40))}},
      'params/q: saved float32[40,50], wanted float32[50,40]',
    ),
    (
      {'params': {'q': jnp.zeros((40, 50), jnp.bfloat16)}},
      'params/q: saved float32[40,50], wanted bfloat16[40,50]',
    ),
    (
      {'params': {'k': jnp.zeros(3), 'q': jnp.zeros((40, 50))}},
      'params/k: saved nothing, wanted float32[3]',
    ),
    (
      {'params': {}, 'moments': {'count': jnp.int32(0)}},
      'moments/q: saved float32[40,50], wanted nothing; params/q: saved '
      'float32[40,50], wanted nothing',
    ),
  )
  def test_all_that_differs_is_told_on_one_line(self, change, text):
    self.save(1)
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, _state(0) | change)
    with self.open() as store, self.assertRaises(ValueError) as caught:
      store.restore(like)
    self.assertIn(
      f'another model or optimizer ({text});', str(caught.exception)
    )
    self.assertNotIn('\n', str(caught.exception))

  def test_of_parameters_alone_too(self):
    self.save(1)
    like = {'q': jax.ShapeDtypeStruct((40, 60), jnp.float32)}
    with self.open() as store, self.assertRaisesRegex(
      ValueError, r'params/q: saved float32\[40,50\], wanted float32\[40,60\]'
    ):  # fmt: skip
      store.restore_params(like, {'q': _state(0)['params']['q'].sharding})


@contextlib.contextmanager
def _refused_writes():
  """Makes each commit of a checkpoint fail, in the thread behind the run."""
  whole = pathlib.Path.rename

  def rename(path, target):
    if 'orbax-checkpoint-tmp' in path.name:
      raise OSError(28, 'No space left on device')
    return whole(path, target)

  replaced = os.rename
  with (
    mock.patch.object(pathlib.Path, 'rename', rename),
    mock.patch.object(
      os,
      'rename',
      lambda a, b: rename(pathlib.Path(a), b) if 'tmp' in str(a)
      else replaced(a, b),
    ),
  ):  # fmt: skip
    yield


class FailedSaveTest(_Test):
  def assert_told(self, caught, step, last):
    self.assertRegex(
      str(caught.exception),
      rf'^checkpoint {step} could not be written to .*checkpoints \(.+\); '
      rf'{last}: make room there .* the same command$',
    )

  def test_in_the_background_it_is_told_by_the_next_check(self):
    self.save(1)
    with self.assertRaises(checkpoint_files.SaveError) as caught:
      with self.open() as store:
        with _refused_writes():
          store.save(_state(2), _progress(2), {})
          while store._files._manager.is_saving_in_progress():
            pass
        store.check()
        self.fail('not told')
    self.assert_told(caught, 2, 'checkpoint 1 is whole')
    self.assertIn('No space left on device', str(caught.exception))
    self.assertEqual(self.restored(), 1)
    self.save(2)
    self.assertEqual(self.restored(), 2)

  def test_by_the_next_save(self):
    with self.assertRaises(checkpoint_files.SaveError) as caught:
      with self.open() as store, _refused_writes():
        store.save(_state(2), _progress(2), {})
        store.save(_state(3), _progress(3), {})
    self.assert_told(caught, 2, 'none is whole yet')

  def test_by_the_end(self):
    with _refused_writes():
      with self.assertRaises(checkpoint_files.SaveError) as caught:
        self.save(2)
    self.assert_told(caught, 2, 'none is whole yet')

  def test_a_folder_that_is_gone_is_told_too(self):
    self.save(1)
    away, before = self.workdir / 'away', set(threading.enumerate())
    with self.assertRaises(checkpoint_files.SaveError) as caught:
      with self.open() as store:
        self.folder.rename(away)
        self.folder.write_text('a file')
        store.save(_state(2), _progress(2), {})
        store.check()
    self.assert_told(caught, 2, 'none is whole yet')
    # Nothing waits, so that the process can end.
    for thread in set(threading.enumerate()) - before:
      if not thread.daemon:
        thread.join(10)
        self.assertFalse(thread.is_alive(), thread.name)
    self.folder.unlink()
    away.rename(self.folder)
    self.assertEqual(self.restored(), 1)

  def test_when_it_is_told_nothing_is_written_any_more(self):
    update = orbax_metadata._MetadataStoreImpl.update
    begun, done = [], []

    def late(*args, **how):
      begun.append(args)
      time.sleep(0.5)
      update(*args, **how)
      done.append(args)

    with mock.patch.object(orbax_metadata._MetadataStoreImpl, 'update', late):
      with _refused_writes(), self.assertRaises(checkpoint_files.SaveError):
        self.save(2)
      # Or it comes in the way of who drops what was begun.
      self.assertNotEmpty(begun)
      self.assertEqual(done, begun)

  def test_another_fault_is_told_before_it(self):
    with self.assertRaises(ZeroDivisionError), self.open() as store:
      with _refused_writes():
        store.save(_state(2), _progress(2), {})
        while store._files._manager.is_saving_in_progress():
          pass
      raise ZeroDivisionError

  def test_what_fails_late_is_not_shown_and_other_faults_are(self):
    shown = []
    late, other = (
      types.SimpleNamespace(exc_value=RuntimeError(text))
      for text in ('Event loop is closed', 'other')
    )
    with mock.patch.object(sys, 'unraisablehook', shown.append):
      with self.assertNoLogs('asyncio'), self.open():
        sys.unraisablehook(late)
        sys.unraisablehook(other)
        logging.getLogger('asyncio').error(
          'Future exception was never retrieved'
        )
      sys.unraisablehook(late)
    self.assertEqual(shown, [other, late])

  def test_nothing_else_is_logged(self):
    with self.assertNoLogs('absl', 'WARNING'):
      with contextlib.suppress(checkpoint_files.SaveError), _refused_writes():
        self.save(2)


class ProcessesTest(_Test):
  """Several processes with one folder, each of which calls the same."""

  def test_one_removes_what_all_write_again(self):
    self.save(1, 2)
    (self.folder / '2' / 'commit_success.txt').unlink()
    removed, rmtree = [], type(epath.Path('/')).rmtree

    def seen(path):
      removed.append(path.name)
      time.sleep(0.1)  # or the last comes when it is gone
      rmtree(path)

    def body(job):
      files = checkpoint_files.Files(
        epath.Path(self.folder),
        keep=2,
        keep_every_steps=None,
        read_only=False,
        job=job,
      )
      files.save(2, {}, {})
      files.close()
      return (self.folder / '2').exists()

    with (
      mock.patch.object(type(epath.Path('/')), 'rmtree', seen),
      mock.patch.object(ocp.CheckpointManager, 'save') as save,
    ):
      self.assertEqual(fake_jobs.run(3, body), [False] * 3)
    self.assertEqual(removed, ['2'])
    self.assertEqual(save.call_count, 3)

  def test_all_leave_out_what_the_first_does(self):
    self.save(1, 2)
    found = checkpoint_folder.look(epath.Path(self.folder))
    for_first = found._replace(whole=(1,), unfinished=(2,))
    first = threading.local()
    look = lambda _: for_first if hasattr(first, 'is_here') else found

    def body(job):
      if job.is_first:
        first.is_here = True
      files = checkpoint_files.Files(
        epath.Path(self.folder),
        keep=2,
        keep_every_steps=None,
        read_only=True,
        job=job,
      )
      step = files.latest_step()
      files.close()
      return step

    with mock.patch.object(checkpoint_folder, 'look', look):
      self.assertEqual(fake_jobs.run(3, body), [1, 1, 1])


class BucketTest(_Test):
  """The same in a bucket, where a folder has its name before it is whole."""

  place = 'gs://bucket/runs/7/'

  def setUp(self):
    super().setUp()
    self.folder = self.workdir / 'runs' / '7'
    self.enterContext(fake_bucket.at(self.workdir))
    here = os.getcwd()
    os.chdir(self.workdir)
    self.addCleanup(os.chdir, here)

  def test_a_state_comes_back_and_the_newest_are_kept(self):
    self.save(1, 2, 3, 4, keep=2, keep_every_steps=3)
    self.assertEqual(self.restored(), 4)
    self.assertEqual(self.steps(), [3, 4])
    self.assertEqual(os.listdir(self.workdir), ['runs'])

  def test_what_has_no_marker_is_left_out_and_written_again(self):
    self.save(1, 2)
    (self.folder / '2' / 'commit_success.txt').unlink()
    with self.assertLogs('absl', 'WARNING') as logs:
      self.assertEqual(self.restored(), 1)
    self.assertIn('gs://bucket/runs/7/2 is not finished', logs.output[0])
    self.assertEqual(self.steps(), [1, 2])
    self.save(2)
    self.assertEqual(self.restored(), 2)

  def test_one_that_is_not_there_is_told_with_its_name(self):
    with mock.patch.object(
      fake_bucket._Backend, 'local', side_effect=OSError('no such bucket')
    ), self.assertRaisesRegex(
      ValueError, r'^gs://bucket/runs/7 cannot be used .*no such bucket.*folder'
    ):  # fmt: skip
      self.save(1)


if __name__ == '__main__':
  absltest.main()

"""Tests of `training.resuming`: what a run that goes on finds, or does not."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

import fake_bucket
import tiny_run
from dapo_jax.data import tokenizers
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import (
  checkpoint,
  evaluate,
  loop,
  origin,
  resuming,
  supervised,
  transfer,
)

# Steps of one round, whose updates nothing but decay moves: random weights.
_CHANGES = {
  'checkpoint.every_steps': 1,
  'eval.every_steps': 100,
  'eval.prompts': 2,
  'filter.enabled': False,
  'optim.weight_decay': 0.1,
}


def _run(workdir, steps, changes=None, *, command=loop.train):
  """Returns what a run with random weights printed."""
  config = tiny_run.config(
    {**_CHANGES, 'train.steps': steps, **(changes or {})}
  )
  printed = io.StringIO()
  with tiny_run.devices(1), contextlib.redirect_stdout(printed):
    command(config, str(workdir))
  return printed.getvalue()


def _steps(workdir):
  rows = tiny_run.read_jsonl(workdir / 'metrics.jsonl')
  return [row['step'] for row in rows]


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    self.workdir = self.folder / 'run'


class ElsewhereTest(_Test):
  """Checkpoints that are not in the work directory."""

  @parameterized.parameters('folder', 'gs://bucket/run')
  def test_a_run_whose_work_directory_is_lost_goes_on(self, place):
    self.enterContext(fake_bucket.at(self.folder / 'bucket'))
    if '://' not in place:
      place = str(self.folder / 'elsewhere')
    changes = {'checkpoint.folder': place}
    straight = self.folder / 'straight'
    _run(straight, 3, {'checkpoint.folder': place + '-straight'})
    _run(self.workdir, 2, changes)
    self.assertFalse((self.workdir / 'checkpoints').exists())
    new = self.folder / 'new'
    shutil.rmtree(self.workdir)
    self.assertIn('resumed after step 2', _run(new, 3, changes))
    self.assertEqual(_steps(new), [3])
    for file in ('model/model.safetensors', 'tokenizer.model'):
      self.assertEqual(
        (new / file).read_bytes(), (straight / file).read_bytes()
      )
    samples = [
      row
      for row in tiny_run.read_jsonl(straight / 'samples.jsonl')
      if row['step'] == 3
    ]
    self.assertEqual(tiny_run.read_jsonl(new / 'samples.jsonl'), samples)
    self.assertFalse(os.path.exists('gs:'))

  def test_its_policy_is_evaluated_and_exported_without_the_rest(self):
    place = str(self.folder / 'elsewhere')
    _run(self.workdir, 2, {'checkpoint.folder': place})
    exported = self.workdir / 'model' / 'model.safetensors'
    how = dict(layout='hf', dtype='f32', max_shard_size='1GB', model_path=None)
    # By the work directory, which knows the folder, then by the folder alone.
    for i, source in enumerate((self.workdir, place, f'{place}/2')):
      if i == 1:
        kept = exported.read_bytes()
        shutil.rmtree(self.workdir)
      out = self.folder / f'out{i}'
      transfer.export_hf(str(source), str(out), **how)
      weights = (out / 'model.safetensors').read_bytes()
      self.assertEqual(weights, kept if i else exported.read_bytes())
      self.assertTrue((out / 'tokenizer.model').is_file())
    new = self.folder / 'new'
    config = tiny_run.config({**_CHANGES, 'checkpoint.folder': place})
    with tiny_run.devices(1), contextlib.redirect_stdout(io.StringIO()):
      evaluate.run(config, str(new))
    self.assertEqual(json.loads((new / 'eval.json').read_text())['step'], 2)
    self.assertFalse((new / 'checkpoints').exists())

  def test_supervised_training_saves_there_too(self):
    place = self.folder / 'elsewhere'
    changes = {
      'checkpoint.folder': str(place),
      'sft.steps': 1,
      'sft.eval_every_steps': 1,
    }
    _run(self.workdir, 1, changes, command=supervised.run)
    self.assertEqual(
      [p.name for p in place.iterdir() if p.name.isdigit()], ['1']
    )
    # And the other command does not take it for its own.
    with self.assertRaisesRegex(
      ValueError, 'of `dapo-jax sft`, not of `train`'
    ):
      _run(self.folder / 'other', 1, changes)

  def test_a_folder_that_is_forgotten_does_not_begin_it_anew(self):
    place = str(self.folder / 'elsewhere')
    _run(self.workdir, 1, {'checkpoint.folder': place})
    before = (self.workdir / 'metrics.jsonl').read_bytes()
    with self.assertRaisesRegex(
      ValueError, rf'in {place}, and there is none in .*folder={place}, or'
    ):
      _run(self.workdir, 2)
    self.assertEqual((self.workdir / 'metrics.jsonl').read_bytes(), before)
    _run(self.workdir, 2, {'checkpoint.folder': place})
    self.assertEqual(_steps(self.workdir), [0, 1, 2])

  def test_it_may_be_the_work_directory(self):
    changes = {'checkpoint.folder': str(self.workdir)}
    _run(self.workdir, 1, changes)
    self.assertIn('resumed after step 1', _run(self.workdir, 2, changes))
    self.assertTrue((self.workdir / '2').is_dir())


class BringTokenizerTest(_Test):
  def _bring(self, file, changes=None):
    saved = origin.Origin('train', '', '', 0, file)
    resuming.bring_tokenizer(tiny_run.config(changes), self.workdir, saved)
    trained = self.workdir / 'tokenizer.model'
    return trained.read_bytes() if trained.exists() else None

  def test_it_is_written_where_it_is_not(self):
    self.assertEqual(self._bring(b'saved'), b'saved')
    # What is there is left to the comparison of fingerprints.
    self.assertEqual(self._bring(b'other'), b'saved')

  def test_a_run_that_trained_none_needs_none(self):
    self.assertIsNone(self._bring(None))
    self.assertIsNone(self._bring(b'saved', {'tokenizer.path': 'a.model'}))
    resuming.bring_tokenizer(tiny_run.config(), self.workdir, None)
    self.assertFalse(self.workdir.exists())


class ChangedTest(_Test):
  """What changed between stop and resume."""

  def _source(self, count):
    file = self.folder / 'sums.jsonl'
    rows = [
      {'problem': f'{i}+1=?', 'answer': str(i + 1), 'solution': str(i + 1)}
      for i in range(count)
    ]
    file.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return {'data.source': str(file), 'eval.source': str(file)}

  def test_other_problems_are_refused_or_told(self):
    _run(self.workdir, 1, self._source(6))
    changes = self._source(8)
    before = (self.workdir / 'metrics.jsonl').read_bytes()
    with self.assertRaisesRegex(
      ValueError, r'1 in .* on 6 training problems .* now gives 8 training'
    ):
      _run(self.workdir, 2, changes)
    self.assertEqual((self.workdir / 'metrics.jsonl').read_bytes(), before)
    printed = _run(
      self.workdir, 2, {**changes, 'checkpoint.allow_changed_data': True}
    )
    self.assertIn('changed since: data: 6 training problems', printed)
    self.assertEqual(_steps(self.workdir), [0, 1, 2])

  def test_another_tokenizer_is_refused_by_every_command(self):
    _run(self.workdir, 1)
    tokenizers.train_sentencepiece(
      ['0123456789+=? another'],
      self.workdir / 'tokenizer.model',
      vocab_size=300,
    )
    for command in (loop.train, evaluate.run):
      with self.assertRaisesRegex(
        ValueError, '1 in .* made with another tokenizer .*tokenizer.path'
      ):
        _run(self.workdir, 2, command=command)

  def _with_reference(self, seed):
    """Returns settings that name a model of this seed, made in one place."""
    made, model = self.folder / f'made{seed}', self.folder / 'model'
    _run(made, 1, {'seed': seed})
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(made / 'model', model)
    return {
      'model.path': str(model),
      'tokenizer.path': str(self.folder / 'made1' / 'model'),
      'objective.kl_coef': 0.1,
    }

  def test_another_reference_policy_in_its_place_is_refused(self):
    _run(self.workdir, 1, self._with_reference(1))
    changes = self._with_reference(2)
    with self.assertRaisesRegex(
      ValueError, '1 in .* another reference policy .*--config.model.path'
    ):
      _run(self.workdir, 2, changes)
    # The old weights are the old policy, whatever was there meanwhile.
    self._with_reference(1)
    self.assertIn('resumed after step 1', _run(self.workdir, 2, changes))

  def test_a_model_that_moved_is_told_and_goes_on(self):
    changes = self._with_reference(1)
    _run(self.workdir, 1, changes)
    moved = (self.folder / 'model').rename(self.folder / 'moved')
    changes['model.path'] = str(moved)
    printed = ' '.join(_run(self.workdir, 2, changes).split())
    self.assertIn(f'-> {str(moved)!r}', printed)
    _run(self.workdir, 2, changes, command=evaluate.run)

  def test_the_same_weights_as_another_model_are_refused(self):
    changes = self._with_reference(1)
    _run(self.workdir, 1, changes)
    file = self.folder / 'model' / 'config.json'
    config = json.loads(file.read_text())
    self.assertEqual(config['rope_theta'], 10_000.0)
    file.write_text(json.dumps(config | {'rope_theta': 500_000.0}))
    for command in (loop.train, evaluate.run):
      with self.assertRaisesRegex(
        ValueError, r'another model \(rope_theta: 10000.0 -> 500000.0\)'
      ):
        _run(self.workdir, 2, changes, command=command)

  def test_a_run_of_an_older_version_goes_on(self):
    _run(self.workdir, 1)
    older = tiny_run.config(_CHANGES).to_dict()
    del older['checkpoint']['folder'], older['data']['tail']
    with mock.patch.object(
      checkpoint.checkpoint_files.Files,
      'about',
      autospec=True,
      side_effect=_with_config(checkpoint.checkpoint_files.Files.about, older),
    ):
      self.assertIn('resumed after step 1', _run(self.workdir, 2))
      with self.assertRaisesRegex(ValueError, "data.tail: 'keep' -> 'drop'"):
        _run(self.workdir, 3, {'data.tail': 'drop'})

  def test_checkpoints_that_are_not_there_do_not_begin_it_anew(self):
    _run(self.workdir, 4)
    shutil.rmtree(self.workdir / 'checkpoints')
    before = (self.workdir / 'metrics.jsonl').read_bytes()
    with self.assertRaisesRegex(
      ValueError,
      r'metrics.jsonl goes up to step 4, but there is no whole checkpoint in '
      r'.*/checkpoints: .*--config.checkpoint.folder',
    ):
      _run(self.workdir, 5)
    self.assertEqual((self.workdir / 'metrics.jsonl').read_bytes(), before)
    # Killed before its first save was whole, it begins anew.
    _run(self.workdir, 5, {'checkpoint.every_steps': 2})
    self.assertEqual(_steps(self.workdir), [0, 1, 2, 3, 4, 5])


def _with_config(about, config):
  def changed(files, step):
    return {**about(files, step), 'config': config}

  return changed


class FailedSaveTest(_Test):
  def test_the_next_step_ends_a_run_and_what_was_saved_goes_on(self):
    changes = {'checkpoint.every_steps': 2}
    _run(self.workdir, 2, changes)
    files = checkpoint.checkpoint_files.Files
    save = files.save

    def fail(store, step, *args):
      commit = 'orbax.checkpoint._src.path.atomicity.async_path.rename'
      with mock.patch(commit, side_effect=OSError(28, 'No space left')):
        save(store, step, *args)
        while store._manager.is_saving_in_progress():
          pass

    with mock.patch.object(files, 'save', fail):
      with self.assertRaisesRegex(
        ValueError, 'checkpoint 4 could not .* left.*checkpoint 2 is whole'
      ):
        _run(self.workdir, 9, changes)
    # The fifth step is over and has no line.
    self.assertEqual(_steps(self.workdir), [0, 1, 2, 3, 4])
    self.assertIn('resumed after step 2', _run(self.workdir, 5, changes))
    self.assertEqual(_steps(self.workdir), [0, 1, 2, 3, 4, 5])


class RefusedTest(_Test):
  def test_a_second_process_in_one_work_directory_or_one_folder(self):
    place = self.folder / 'elsewhere'
    program = (
      'import sys, time; from dapo_jax.training import run_lock\n'
      "with run_lock.held(sys.argv[1], flag=''): print(flush=True); "
      'time.sleep(600)'
    )
    for folder, flag in (
      (self.workdir, '--workdir'),
      (place, '--config.checkpoint.folder'),
    ):
      with subprocess.Popen(
        [sys.executable, '-c', program, folder], stdout=subprocess.PIPE
      ) as other:
        other.stdout.readline()
        with self.assertRaisesRegex(
          ValueError,
          rf'^another process \({other.pid} on .*, or change {flag}$',
        ):
          _run(self.workdir, 1, {'checkpoint.folder': str(place)})
        other.kill()
    self.assertFalse((self.workdir / 'metrics.jsonl').exists())

  def test_a_run_of_another_work_directory_in_its_checkpoints(self):
    place = self.workdir / 'checkpoints'
    config = tiny_run.config(_CHANGES)
    with resuming.open_store(config, self.workdir, keep=1, job=job_lib.Job()):
      with self.assertRaisesRegex(
        ValueError, rf'^another process \({os.getpid()} on .* {place}: '
      ):
        _run(self.folder / 'another', 1, {'checkpoint.folder': str(place)})

  def test_a_file_in_the_place_of_the_folder(self):
    self.workdir.mkdir()
    (self.workdir / 'checkpoints').write_text('')
    for command in (loop.train, supervised.run, evaluate.run):
      with self.assertRaisesRegex(
        ValueError, 'checkpoints is a file, where checkpoints should be'
      ):
        _run(self.workdir, 1, command=command)


if __name__ == '__main__':
  absltest.main()

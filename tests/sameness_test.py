"""Tests of `training.sameness`, with processes that are threads."""

import os
import pathlib
import tempfile
import threading
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import fake_jobs
import tiny_groups
import tiny_model
import tiny_run
from dapo_jax.data import tokenizers
from dapo_jax.training import (
  checkpoint,
  evaluate,
  interrupt,
  loop,
  resuming,
  sameness,
  supervised,
)

_COUNT = 3


def _errors(check):
  """Returns what three processes raise; `check` takes the job of each."""
  return [ended.error for ended in fake_jobs.endings(_COUNT, check)]


class _Test(parameterized.TestCase):
  def assert_refused(self, errors, names, *, index=2):
    self.assertEqual([type(e) for e in errors], [ValueError] * _COUNT)
    self.assertEqual(
      {str(e) for e in errors},
      {
        f'process {index} differs from process 0 in {names}; give the same '
        'command, files and environment to all processes'
      },
    )


class _EachItsOwn:
  """Gives each thread that asks another value."""

  def __init__(self, **names):
    self._names = names

  def __getattr__(self, name):
    last = threading.current_thread().name.endswith('-last')
    return self._names[name][last]


def _last_differs(job):
  """Marks the thread of the last process for `_EachItsOwn`."""
  if job.index == _COUNT - 1:
    threading.current_thread().name += '-last'


class CommandsTest(_Test):
  def test_the_same_may_begin(self):
    check = lambda job: sameness.check_commands(job, 'train', tiny_run.config())
    self.assertEqual(_errors(check), [None] * _COUNT)

  def test_one_is_the_same_as_itself(self):
    with mock.patch.object(sameness, 'check') as check:
      fake_jobs.run(
        1, lambda job: sameness.check_commands(job, 'sft', tiny_run.config())
      )
    check.assert_not_called()

  @parameterized.parameters(
    (('train', {}), 'the command'),
    (('eval', {'optim.lr': 0.5}), 'the configuration (--config)'),
    (('sft', {'seed': 7}), 'the command and the configuration (--config)'),
  )
  def test_another_command_or_setting_is_told_in_all(self, of_last, names):
    def check(job):
      command, changes = of_last if job.index == 2 else ('eval', {})
      sameness.check_commands(job, command, tiny_run.config(changes))

    self.assert_refused(_errors(check), names)

  def _check(self, job):
    _last_differs(job)
    sameness.check_commands(job, 'train', tiny_run.config())

  def test_versions_are_compared(self):
    versions = _EachItsOwn(
      __version__=('1.0', '1.1'), __file__=[sameness.dapo_jax.__file__] * 2
    )
    with mock.patch.object(sameness, 'dapo_jax', versions):
      self.assert_refused(
        _errors(self._check), 'the versions of dapo-jax, jax or Python'
      )

  def test_so_is_the_code_of_one_version(self):
    with tempfile.TemporaryDirectory() as folder:
      files = [pathlib.Path(folder) / name / '__init__.py' for name in 'ab']
      for number, file in enumerate(files):
        (file.parent / 'training').mkdir(parents=True)
        file.write_text('')
        (file.parent / 'training' / 'loop.py').write_text(f'x = {number}')
      code = _EachItsOwn(__version__=('1.0', '1.0'), __file__=files)
      with mock.patch.object(sameness, 'dapo_jax', code):
        self.assert_refused(_errors(self._check), 'the code of dapo-jax')

  def test_so_are_the_devices(self):
    few, many = jax.devices()[:1], jax.devices()[:2]
    devices = _EachItsOwn(
      local_devices=(lambda: many, lambda: few),
      __version__=[jax.__version__] * 2,
      config=[jax.config] * 2,
    )
    with mock.patch.object(sameness, 'jax', devices):
      self.assert_refused(
        _errors(self._check), 'the number or kind of its devices'
      )

  @parameterized.parameters(
    ('--xla_cpu_enable_fast_math=true', True),
    ('--xla_dump_to=/tmp/here', False),
  )
  def test_so_are_the_flags_of_xla_but_where_it_writes(self, flag, differs):
    own = os.environ['XLA_FLAGS']
    environs = ({'XLA_FLAGS': own}, {'XLA_FLAGS': f'{flag} {own}'})
    with mock.patch.object(sameness, 'os', _EachItsOwn(environ=environs)):
      errors = _errors(self._check)
    if not differs:
      self.assertEqual(errors, [None] * _COUNT)
      return
    self.assert_refused(
      errors, 'the settings of jax and XLA (JAX_..., XLA_FLAGS)'
    )


class BeginTest(_Test):
  """Each command compares before its first meeting that may not come."""

  @parameterized.parameters(
    (lambda config, folder, job: evaluate.run(config, folder, job),),
    (lambda config, folder, job: loop.train(config, folder, _guard(job)),),
    (lambda config, folder, job: supervised.run(config, folder, _guard(job)),),
  )
  def test_another_setting_is_refused_before_anything_is_opened(self, command):
    opened = AssertionError('opened')
    with (
      tempfile.TemporaryDirectory() as folder,
      mock.patch.object(checkpoint, 'open_store', side_effect=opened),
      mock.patch.object(resuming, 'open_store', side_effect=opened),
    ):

      def begin(job):
        changes = {'checkpoint.folder': f'{folder}/{job.index == 1}'}
        command(tiny_run.config(changes), folder, job)

      errors = _errors(begin)
    self.assert_refused(errors, 'the configuration (--config)', index=1)


def _guard(job):
  guard = interrupt.Guard()
  guard.job = job
  return guard


class DataTest(_Test):
  def _check(self, job, *, trained=(1, 2), evaluated=(3,), grader='dapo'):
    prompts = lambda numbers: [tiny_groups.prompt(n) for n in numbers]
    sameness.check_data(
      job, prompts(trained), prompts(evaluated), grader=grader
    )

  def _of_last(self, **last):
    return _errors(
      lambda job: self._check(job, **(last if job.index == 2 else {}))
    )

  def test_the_same_go_on(self):
    self.assertEqual(self._of_last(), [None] * _COUNT)

  @parameterized.parameters(
    ({'trained': (1, 9)}, 'the training problems (--config.data)'),
    ({'trained': (2, 1)}, 'the training problems (--config.data)'),
    ({'evaluated': ()}, 'the problems of the evaluation (--config.eval)'),
    (
      {'trained': (1,), 'evaluated': (3, 4)},
      'the training problems (--config.data) and the problems of the '
      'evaluation (--config.eval)',
    ),
  )
  def test_other_problems_are_told_in_all(self, last, names):
    self.assert_refused(self._of_last(**last), names)

  def test_so_is_the_file_of_a_grader_of_the_same_name(self):
    with tempfile.TemporaryDirectory() as folder:
      for i in range(_COUNT):
        (pathlib.Path(folder) / f'{i}').mkdir()
        text = f'def grade(response, prompt):\n  return {i // 2}\n'
        (pathlib.Path(folder) / f'{i}' / 'own.py').write_text(text)
      grader = lambda job: f'{folder}/{job.index}/own.py:grade'
      errors = _errors(lambda job: self._check(job, grader=grader(job)))
    self.assert_refused(errors, 'the grader (--config.reward.grader)')


class CheckpointTest(_Test):
  @parameterized.parameters(None, 7)
  def test_one_that_sees_another_is_told_in_all(self, step):
    errors = _errors(
      lambda job: sameness.check_checkpoint(job, 8 if job.index == 1 else step)
    )
    self.assert_refused(
      errors, 'the newest checkpoint (--config.checkpoint.folder)', index=1
    )

  def test_without_any_they_begin(self):
    check = lambda job: sameness.check_checkpoint(job, None)
    self.assertEqual(_errors(check), [None] * _COUNT)


class ModelTest(_Test):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)
    tokenizers.train_sentencepiece(
      ['1+2=3', 'Answer: 3'],
      self.folder / 'tokenizer.model',
      vocab_size=280,
    )
    self.tokenizer = tokenizers.load(self.folder / 'tokenizer.model')

  def _check(self, job, *, tokens=(5, 6), spec=None, folder=None):
    sameness.check_model(
      job,
      self.tokenizer,
      np.array(tokens),
      spec or tiny_model.spec(),
      folder,
    )

  def _of_last(self, **last):
    return _errors(
      lambda job: self._check(job, **(last if job.index == 2 else {}))
    )

  def test_another_form_of_the_prompts_is_told_in_all(self):
    self.assertEqual(self._of_last(), [None] * _COUNT)
    self.assert_refused(
      self._of_last(tokens=(5, 6, 7)),
      'the tokenizer (--config.tokenizer.path)',
    )

  def test_so_is_a_model_of_another_shape(self):
    self.assert_refused(
      self._of_last(spec=tiny_model.spec(rope_theta=7.0)),
      'the model (--config.model.path)',
    )

  @parameterized.parameters('model.safetensors', 'params/d/0')
  def test_so_are_other_weights_of_the_same_size(self, name):
    folders = [self.folder / f'{i}' for i in range(_COUNT)]
    for i, folder in enumerate(folders):
      (folder / name).parent.mkdir(parents=True)
      # Only the weights are looked at, and of those not all.
      (folder / 'README.md').write_text(f'{i}')
      data = np.full(100_000, i // 2, np.uint8).tobytes()
      (folder / name).write_bytes(data)
    check = lambda of: _errors(
      lambda job: self._check(job, folder=folders[of(job.index)])
    )
    self.assertEqual(check(lambda i: i % 2), [None] * _COUNT)
    self.assert_refused(check(lambda i: i), 'the model (--config.model.path)')


if __name__ == '__main__':
  absltest.main()

"""Tests of launch/local.sh: with a stand-in for dapo-jax, and the real one."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from absl.testing import absltest, parameterized

import launching

_JOB = ('--', 'train', '--config=good.py', '--config.train.steps=8')


def _steps(workdir: pathlib.Path) -> list[int]:
  file = workdir / 'metrics.jsonl'
  lines = file.read_text().splitlines() if file.exists() else []
  return [json.loads(line)['step'] for line in lines]


def _children(workdir: pathlib.Path, process: int) -> list[int]:
  """Returns what a process's job.sh has started, dapo-jax first."""
  pid = (workdir / f'.launch/{process}/pid').read_text().strip()
  file = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  names = {
    int(child): pathlib.Path(f'/proc/{child}/comm').read_text().strip()
    for child in file.read_text().split()
  }
  return [child for child, name in names.items() if name not in ('tee', 'bash')]


class StandInTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.place = launching.Place(self)
    self.workdir = self.place.path / 'run'
    self.args = (f'--workdir={self.workdir}', '--pause=0.05')

  def _run(self, *args: str, job=_JOB, status: int = 0) -> str:
    done = self.place.run('local.sh', *self.args, *args, *job)
    self.assertEqual(done.status, status, done.output)
    return done.output

  @parameterized.parameters(1, 2)
  def test_what_is_killed_is_started_again_and_resumes(self, processes):
    self.place.set_state(holds=[5])
    process = self.place.begin(
      'local.sh', *self.args, f'--processes={processes}', *_JOB
    )
    launching.wait_until(lambda: _steps(self.workdir)[-1:] == [5])
    for number in range(processes):
      for child in _children(self.workdir, number):
        os.kill(child, signal.SIGKILL)
    self.place.set_state(holds=[])
    output, _ = process.communicate(timeout=30)
    self.assertEqual(process.returncode, 0, output)
    self.assertRegex(output, 'ended with status 137 at step 5')
    self.assertRegex(output, '(?m)^resumed after step 4$')
    self.assertEqual(_steps(self.workdir), list(range(1, 9)))

  def test_a_signal_stops_it_and_the_same_command_goes_on(self):
    self.place.set_state(holds=[3])
    process = self.place.begin('local.sh', *self.args, '--processes=2', *_JOB)
    launching.wait_until(lambda: _steps(self.workdir)[-1:] == [3])
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    self.assertEqual(process.returncode, 75, output)
    self.assertRegex(output, 'stopped at step 3; the same command goes on')
    self.assertRegex(self._run('--processes=2'), '(?m)^resumed after step 3$')
    self.assertEqual(_steps(self.workdir), list(range(1, 9)))

  def test_checkpoints_may_be_elsewhere(self):
    elsewhere = self.place.path / 'elsewhere'
    self._run(job=(*_JOB, f'--config.checkpoint.folder={elsewhere}'))
    self.assertNotEmpty(list(elsewhere.iterdir()))

  def test_an_error_of_the_user_is_not_tried_again(self):
    output = self._run(
      '--processes=2', job=('--', 'train', '--config=bad.py'), status=2
    )
    # The first process prints; of the other the end of its log is shown.
    self.assertLen(output.split('there is no key optim.learning'), 3)
    self.assertNotRegex(output, 'starting again')

  def test_a_fault_that_comes_again_ends_it(self):
    job = ('--', 'train', '--config=crash.py')
    output = self._run('--max-failures=2', job=job, status=2)
    self.assertRegex(output, 'given up at step 3 after 2 failures in a row')

  def test_a_dry_run_prints_what_is_run(self):
    output = self._run('--processes=2', '--devices=4', '--dry-run')
    self.assertFalse(self.workdir.exists())
    first, second = launching.commands(output, 'env')
    self.assertContainsSubset(
      {
        'JAX_PLATFORMS=cpu',
        'XLA_FLAGS=--xla_force_host_platform_device_count=4',
        'DAPO_JAX_FIRST=true',
        '--processes=2',
        '--process=0',
      },
      first,
    )
    self.assertContainsSubset({'DAPO_JAX_FIRST=false', '--process=1'}, second)
    [of_first] = [w for w in first if w.startswith('--coordinator=127.0.0.1:')]
    self.assertIn(of_first, second)

  @parameterized.parameters(
    (('--workdir=',), '--workdir=DIR is required'),
    (('--workdir=gs://a/b',), r'--workdir \(gs://a/b\) must be a folder of'),
    (('--processes=0',), r'--processes \(0\) must be a number from 1'),
    (('--devices=all',), r'--devices \(all\) must be a number from 1'),
    (('--pause=x',), r'--pause \(x\) must be a number of seconds'),
    (('--gpus=2',), 'there is no option --gpus=2'),
  )
  def test_a_wrong_option_is_one_error(self, args, error):
    output = self._run(*args, status=2)
    self.assertRegex(output, f'^local.sh: error: {error}')
    self.assertLen(output.splitlines(), 1)


class RealTest(absltest.TestCase):
  @pytest.mark.slow
  def test_two_processes_that_are_killed_resume(self):
    import tiny_run  # it brings jax, which the other tests do without

    place = launching.Place(self)
    workdir = place.path / 'run'
    real = f'#!/bin/sh\nexec {sys.executable} -m dapo_jax.main "$@"\n'
    place.program('dapo-jax', real)
    changes = tiny_run.TINY | {
      'train.steps': 4,
      'checkpoint.every_steps': 1,
      'filter.max_rounds': 1,
      'learner.micro_batch_rows': 4,
    }
    args = (
      f'--workdir={workdir}',
      '--processes=2',
      '--devices=2',
      '--pause=0.1',
      '--',
      'train',
      f'--config={launching.ROOT}/configs/demo.py',
      *(f'--config.{key}={value}' for key, value in changes.items()),
    )
    more = {'PYTHONPATH': str(launching.ROOT)}
    process = place.begin('local.sh', *args, more=more)

    def is_saved():
      # Written beside the next step, and named a number when it is whole.
      names = [path.name for path in workdir.glob('checkpoints/*')]
      return _steps(workdir)[-1:] >= [2] and any(map(str.isdigit, names))

    launching.wait_until(
      lambda: process.poll() is not None or is_saved(), 300.0
    )
    if process.poll() is None:
      for number in (0, 1):
        for child in _children(workdir, number):
          os.kill(child, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    self.assertEqual(process.returncode, 0, output)
    self.assertRegex(output, r'ended with status 137 at step \d')
    self.assertRegex(output, r'resumed after step \d')
    self.assertRegex(output, 'done: the policy is')
    # The line of step 0 is the evaluation before the first.
    self.assertEqual(_steps(workdir), [0, 1, 2, 3, 4])


class QuotedTest(absltest.TestCase):
  def test_a_shell_reads_the_words_that_were_given(self):
    words = (
      "--config.rollout.stop_strings=('\\n\\n',)",
      """it's "$HOME" `id`""",
      *('~', '~/x', '=ls', '*', '', '-n', 'a b', '!!', 'é', '{a,b}', '#'),
    )
    script = 'source launch/shared.sh; quoted "$@"'
    line = subprocess.check_output(
      ['bash', '-c', script, 'x', *words], text=True, cwd=launching.ROOT
    )
    read = subprocess.check_output(
      ['bash', '-c', f"printf '%s\\n' {line}"], text=True
    )
    self.assertEqual(read.splitlines(), list(words))


if __name__ == '__main__':
  absltest.main()

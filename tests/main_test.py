"""Tests of main.py: what the command prints, and how it ends."""

import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from unittest import mock

from absl.testing import absltest, parameterized

import dapo_jax
from dapo_jax import main
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import stopping

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_FILE = str(_ROOT / 'configs/base.py')
_TOGETHER = (
  '--coordinator, --processes and --process go together: the address '
  'HOST:PORT of the first process, their number, and the number of this one, '
  'from 0'
)
_LAUNCH_FAULTS = (
  (('--process=0',), _TOGETHER),
  (('--coordinator=host:1', '--processes=2'), _TOGETHER),
  (('--distributed', '--processes=2'), _TOGETHER),
  (
    ('--coordinator=host:1', '--processes=2', '--process=2'),
    '--process (2) must be 0 to --processes - 1 (1)',
  ),
  (
    ('--coordinator=host', '--processes=2', '--process=1'),
    '--coordinator (host) must be HOST:PORT of the first process',
  ),
  (
    ('--distributed', '--coordinator=a:1', '--processes=2', '--process=1'),
    '--distributed finds the processes from what the machines say of '
    'themselves; give it, or --coordinator, --processes and --process',
  ),
)


def _run(*args: str) -> tuple[int, str, str]:
  """Returns the exit status, standard output and error of `dapo-jax ARGS`."""
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    status = main.main(args)
  return status, out.getvalue(), err.getvalue()


class HelpTest(parameterized.TestCase):
  def test_answers_within_2_seconds(self):
    start_s = time.perf_counter()
    done = subprocess.run(
      [sys.executable, '-m', 'dapo_jax.main', '--help'],
      capture_output=True,
      text=True,
      check=True,
      cwd=_ROOT,
    )
    self.assertLess(time.perf_counter() - start_s, 2.0)
    for command in main._COMMANDS:
      self.assertIn(f'\n  {command} ', done.stdout)

  @parameterized.parameters('train', 'sft', 'eval')
  def test_command_lists_its_flags_and_where_the_keys_are(self, command):
    status, out, _ = _run(command, '--help')
    self.assertEqual(status, 0)
    for words in ('--config ', '--workdir ', '--config.KEY', 'configs/base.py'):
      self.assertIn(words, out)

  def test_sample_lists_its_flags(self):
    _, out, _ = _run('sample', '--help')
    for name in (
      'model',
      'template',
      'temperature',
      'top_k',
      'top_p',
      'min_p',
      'max_tokens',
      'seed',
    ):
      self.assertIn(f'\n  --{name} ', out)

  def test_serve_lists_its_flags_and_that_anyone_may_ask(self):
    _, out, _ = _run('serve', '--help')
    for name in ('model', 'host', 'port', 'slots', 'max_prompt_tokens'):
      self.assertIn(f'\n  --{name} ', out)
    self.assertIn('no authentication', out)

  def test_data_lists_its_flags(self):
    _, out, _ = _run('data', '--help')
    for name in ('from', 'out', 'endpoint', 'model', 'k', 'key_env', 'ask'):
      self.assertIn(f'\n  --{name} ', out)

  @parameterized.parameters(
    [()], *[[(name,)] for name in sorted(main._COMMANDS)]
  )
  def test_fits_80_columns(self, command):
    _, out, _ = _run(*command, '--help')
    self.assertLessEqual(max(map(len, out.splitlines())), 80)

  def test_version(self):
    self.assertEqual(
      _run('--version'), (0, f'dapo-jax {dapo_jax.__version__}\n', '')
    )


class ErrorTest(parameterized.TestCase):
  @parameterized.parameters(
    ((), 'name a command; see dapo-jax --help'),
    (('trian',), "there is no command 'trian'; did you mean train?"),
    (('zzz',), "there is no command 'zzz'; see dapo-jax --help"),
    (('train',), '--config=FILE is required, such as configs/demo.py'),
    (
      ('train', f'--config={_FILE}'),
      '--workdir=DIR is required: the folder that the run writes to',
    ),
    (
      ('train', f'--config={_FILE}', '--workdir=gs://bucket/run'),
      '--workdir (gs://bucket/run) must be a folder of this machine; a bucket '
      'can be mounted as one',
    ),
    (
      ('train', f'--config={_FILE}', '--workdir=d', 'word'),
      "unexpected argument 'word'",
    ),
    (
      ('eval', f'--config={_FILE}', '--workdir=d', '--config.optim.lrr=1'),
      '--config.optim.lrr: there is no such key; the nearest is '
      '--config.optim.lr',
    ),
    (
      ('sft', f'--config={_FILE}', '--workdir=d', '--config.sft.lr=0'),
      'sft.lr (0.0) must be above 0; change --config.sft.lr',
    ),
    *[
      (
        (command, f'--config={_FILE}', '--workdir=d', *args),
        message,
      )
      for command in ('train', 'sft', 'eval')
      for args, message in _LAUNCH_FAULTS
    ],
    (('sample',), 'sample takes one prompt, in quotes, not 0'),
    (
      ('sample', '--model=/nowhere', 'hello'),
      '--model (/nowhere) must be a folder with a model',
    ),
    (('data',), "there is no data task ''; there are build and integers"),
    (('data', 'build'), 'data build takes one NAME of a data set, not 0'),
    (('data', 'build', 'aime24'), '--from=FILE is required'),
    (('data', 'build', 'aime24', '--from=f'), '--out is required'),
    (
      ('data', 'build', 'aime24', '--from=/no', '--out=/nowhere'),
      'there is no file /no; change --from',
    ),
    (('serve', 'hello'), "unexpected argument 'hello'"),
    (
      ('serve', '--model=/nowhere'),
      '--model (/nowhere) must be a folder with a model',
    ),
    (('fetch', 'smollm2'), 'give NAME and DIR, 2 arguments, not 1'),
    (('import-hf',), 'give HF_DIR and OUT, 2 arguments, not 0'),
    (
      ('import-hf', '/nowhere/model', '/tmp'),
      '/tmp exists already; name another folder',
    ),
    (
      ('export-hf', 'a', 'b', 'c'),
      'give CHECKPOINT and OUT, 2 arguments, not 3',
    ),
    (
      ('export-hf', 'a', 'b', '--max-shard-size', 'many'),
      '--max_shard_size (many) must be a number of bytes, KB, MB or GB, such '
      'as 5GB',
    ),
    (
      ('data', 'integer'),
      "there is no data task 'integer'; there are build and integers",
    ),
    (('data', 'integers'), '--from=FILE is required'),
    (('data', 'integers', '--from=/nowhere'), '--out is required'),
    (('data', 'integers', 'aime24'), "unexpected argument 'aime24'"),
    (
      ('data', 'integers', '--from=a', '--from=b', '--out=c'),
      'data integers takes one --from=FILE, not 2',
    ),
    (
      ('data', 'integers', '--from=/nowhere', '--out=/tmp/no/such/out'),
      'there is no file /nowhere; change --from',
    ),
    (
      ('data', 'integers', '--from=a', '--out=b', '--model=small'),
      'give both --endpoint=URL and --model=NAME, or neither',
    ),
    (
      ('sample', '--temprature=1', 'hello'),
      "Unknown command line flag 'temprature'. Did you mean: temperature ?",
    ),
  )
  def test_is_one_line_and_status_2(self, args, message):
    self.assertEqual(_run(*args), (2, '', f'dapo-jax: error: {message}\n'))

  @parameterized.parameters(
    (28, 'No space left on device'), (30, 'Read-only file system')
  )
  def test_a_refusal_of_the_system_is_one_line(self, number, reason):
    error = OSError(number, reason, '/run/eval.json')
    with mock.patch.object(main, '_dispatch', side_effect=error):
      status, _, err = _run('train')
    self.assertEqual(status, 2)
    self.assertEqual(
      err,
      f'dapo-jax: error: /run/eval.json: {reason}; make room there or give '
      'access to it, and give the same command\n',
    )

  def test_another_error_of_the_system_is_raised(self):
    error = FileNotFoundError(2, 'No such file or directory')
    with mock.patch.object(main, '_dispatch', side_effect=error):
      with self.assertRaises(FileNotFoundError):
        _run('train')

  def test_fault_of_the_program_is_raised(self):
    faulty = main._COMMANDS['train']._replace(run=lambda *_: int('x'))
    with mock.patch.dict(main._COMMANDS, {'train': faulty}):
      with self.assertRaisesRegex(ValueError, 'invalid literal'):
        _run('train')


class ProcessesTest(parameterized.TestCase):
  """What the flags of several processes come to."""

  def _started(self, command, program, *flags):
    """Returns how a command starts its processes, and is given the job."""
    job = job_lib.Job()
    started = mock.patch.object(
      job_lib, 'started', return_value=contextlib.nullcontext(job)
    )
    run = mock.patch(f'dapo_jax.training.{program}')
    config = f'--config={_ROOT / "configs/demo.py"}'
    with started as started, run as run:
      status, _, err = _run(command, config, '--workdir=d', *flags)
    self.assertEqual((status, err), (0, ''))
    given = run.call_args.args[2]
    self.assertIs(given if command == 'eval' else given.job, job)
    return started.call_args

  @parameterized.parameters(
    ('train', 'loop.train'),
    ('sft', 'supervised.run'),
    ('eval', 'evaluate.run'),
  )
  def test_they_find_each_other_as_the_flags_say(self, command, program):
    found = self._started(
      command,
      program,
      '--coordinator=host:80',
      '--processes=3',
      '--process=2',
      '--config.train.wait_warn_s=7',
    )
    self.assertEqual(found.args, ((False, 'host:80', 3, 2),))
    self.assertEqual(found.kwargs['quiet_s'], 7)
    found = self._started(command, program, '--distributed')
    self.assertEqual(found.args, ((True, None, None, None),))
    found = self._started(command, program)
    self.assertEqual(found.args, ((False, None, None, None),))

  def test_the_watch_tells_stops_and_ends_the_process(self):
    hooks = self._started('train', 'loop.train').kwargs['hooks']
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
      hooks.tell('process 1 waits')
    self.assertEqual(err.getvalue(), 'warning: process 1 waits\n')
    with mock.patch.object(os, 'kill') as kill:
      hooks.stop()
    kill.assert_called_once_with(os.getpid(), signal.SIGTERM)
    with mock.patch.object(stopping, 'leave') as leave:
      hooks.leave(1, 'process 2 is lost')
    leave.assert_called_once_with(
      1, 'dapo-jax: error: process 2 is lost', is_error=True
    )


class SampleTest(parameterized.TestCase):
  def _choice(self, *args):
    """Returns the choice that `dapo-jax sample` passes on."""
    with mock.patch('dapo_jax.training.completion.run') as run:
      status, _, err = _run('sample', f'--model={_ROOT}', *args, 'hello')
    self.assertEqual((status, err), (0, ''))
    return run.call_args.kwargs['choice']

  def test_tokens_are_drawn_as_the_flags_say(self):
    self.assertEqual(self._choice(), (1.0, 0, 1.0, 0.0))
    found = self._choice(
      '--temperature=0.6', '--top_k=20', '--top-p=0.95', '--min_p=0.1'
    )
    self.assertEqual(found, (0.6, 20, 0.95, 0.1))
    self.assertEqual(self._choice('--top_k=-1').top_k, -1)

  @parameterized.parameters('--top_k=-2', '--top_p=1.1', '--min_p=-0.1')
  def test_what_no_filter_can_be_is_refused(self, flag):
    status, out, err = _run('sample', f'--model={_ROOT}', flag, 'hello')
    self.assertEqual((status, out), (2, ''))
    self.assertIn(flag[2:7], err)


class DataTest(absltest.TestCase):
  def _asked(self, *args):
    """Returns what `dapo-jax data integers` passes on."""
    with mock.patch('dapo_jax.data.integer_file.run') as run:
      status, _, err = _run('data', 'integers', '--from=a', '--out=b', *args)
    self.assertEqual((status, err), (0, ''))
    self.assertEqual(run.call_args.args, ('a', 'b'))
    return run.call_args.kwargs

  def test_the_rule_works_alone(self):
    self.assertIsNone(self._asked()['model'])

  def test_the_model_is_as_the_flags_say(self):
    found = self._asked(
      *('--endpoint=http://127.0.0.1:1/v1', '--model=small', '--k=3'),
      *('--key_env=KEY', '--temperature=0.5', '--max_tokens=9', '--ask=all'),
    )
    [endpoint] = found.pop('model').args
    self.assertEqual(
      endpoint[:5], ('http://127.0.0.1:1/v1', 'small', 'KEY', 0.5, 9)
    )
    self.assertEqual(found, {'votes_count': 3, 'ask': 'all'})


class RaisedHereTest(parameterized.TestCase):
  def _error(self, code: str, file: str) -> ValueError:
    """Returns the error of `code`, as if it were a line of `file`."""
    try:
      exec(compile(code, file, 'exec'))
    except ValueError as error:
      return error
    raise AssertionError(f'{code} raises nothing')

  def test_raise_in_this_package_is_for_the_user(self):
    self.assertTrue(
      main._raised_here(self._error("raise ValueError('x')", main.__file__))
    )

  @parameterized.parameters(
    # By a library that this package calls.
    ("import json; json.loads('{')", main.__file__),
    # By something outside of this package.
    ("raise ValueError('x')", __file__),
  )
  def test_other_errors_are_not(self, code, file):
    self.assertFalse(main._raised_here(self._error(code, file)))


class EndTest(parameterized.TestCase):
  @parameterized.parameters(
    ('return', 0, ''),
    ('raise KeyError', 1, 'KeyError'),
    (
      "main._dispatch(['trian'])",
      2,
      "dapo-jax: error: there is no command 'trian'; did you mean train?",
    ),
  )
  def test_a_thread_that_is_inside_jax_does_not_change_how_it_ends(
    self, end, status, last_error
  ):
    program = f"""
      import sys, threading, time
      import jax
      from dapo_jax import main

      def judge():
        while True:
          jax.block_until_ready(spin(0.5))

      def run(args, flag_values):
        for _ in range(4):
          threading.Thread(target=judge, daemon=True).start()
        time.sleep(0.5)
        print('out')
        {end}

      # Back in Python again and again, while the interpreter ends.
      spin = jax.jit(
        lambda x: jax.lax.fori_loop(0, 10_000, lambda _, x: x * x, x)
      )
      main._COMMANDS['data'] = main._COMMANDS['data']._replace(run=run)
      sys.argv = ['dapo-jax', 'data']
      main.run()
    """
    done = subprocess.run(
      [sys.executable, '-c', textwrap.dedent(program)],
      capture_output=True,
      text=True,
      check=False,
      timeout=60,
      env=os.environ | {'PYTHONPATH': f'{_ROOT}:{_ROOT / "tests"}'},
    )
    self.assertEqual((done.returncode, done.stdout), (status, 'out\n'))
    self.assertEqual(''.join(done.stderr.splitlines()[-1:]), last_error)


class ReaderTest(absltest.TestCase):
  def test_one_that_leaves_is_no_fault(self):
    process = subprocess.Popen(
      [sys.executable, '-m', 'dapo_jax.main', '--help'],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      cwd=_ROOT,
    )
    process.stdout.close()
    # As of a program that knows nothing of it: 128 and SIGPIPE.
    self.assertEqual((process.wait(60), process.stderr.read()), (141, ''))
    process.stderr.close()


class VirtualDevicesTest(parameterized.TestCase):
  @parameterized.parameters(
    ({}, None),
    ({'XLA_FLAGS': '--xla_force_host_platform_device_count=8'}, '64'),
    (
      {'XLA_FLAGS': '--xla_force_host_platform_device_count=8', 'NPROC': '9'},
      '9',
    ),
  )
  def test_have_threads_for_collectives_unless_told(self, given, threads):
    with mock.patch.dict('os.environ', given, clear=True):
      main.main(['--version'])
      self.assertEqual(os.environ.get('NPROC'), threads)


if __name__ == '__main__':
  absltest.main()

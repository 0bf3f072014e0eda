"""Tests of `training.stopping`: real processes that are told to end.

`stopping_config` holds them where the test wants to end them.
"""

import contextlib
import io
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple
from unittest import mock

import pytest
from absl.testing import absltest, parameterized
from etils import epath

import stopping_config
import tiny_run
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import interrupt, loop, stopping, supervised

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_GRACE_S = stopping_config.GRACE_S
# Of a process to vanish, once it ends.
_SLACK_S = 1.0
# What is not waited for is over long before the grace time.
_AT_ONCE_S = 3.0
_LIMIT_S = 120.0
_TERM, _INT = signal.SIGTERM, signal.SIGINT
_SAMPLE = (
  'import stopping_config; from dapo_jax import main; '
  'stopping_config.stay_loading(); main.run()'
)


class Ended(NamedTuple):
  """How a process ended."""

  status: int
  seconds: float  # from the first signal
  printed: list[str]  # what it printed after the place it was held at
  errors: str


def _end(arguments: list[str], *signals: int) -> Ended:
  """Starts Python, sends it the signals where it stays, and waits."""
  process = subprocess.Popen(
    [sys.executable, *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    cwd=_ROOT,
    env=os.environ
    | {
      'PYTHONPATH': f'{_ROOT}:{_ROOT / "tests"}',
      stopping_config.MODEL: tiny_run.model_folder(),
    },
  )
  for line in process.stdout:
    if line.startswith('AT '):
      break
  time.sleep(0.2)
  begin = time.monotonic()
  for index, number in enumerate(signals):
    time.sleep(0.6 * index)  # sooner it would be the first one's echo
    process.send_signal(number)
  out, errors = process.communicate(timeout=_LIMIT_S)
  seconds = time.monotonic() - begin
  return Ended(process.returncode, seconds, out.splitlines(), errors)


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def end(self, where, *signals, command='train') -> Ended:
    """Ends a run where it stays."""
    return _end(
      [
        *('-m', 'dapo_jax.main', command),
        f'--config={_ROOT / "tests/stopping_config.py"}:{where}',
        f'--workdir={self.folder / "run"}',
      ],
      *signals,
    )

  def newest_step(self) -> int | None:
    """Returns the newest checkpoint of the run."""
    return stopping.newest_step(epath.Path(self.folder) / 'run/checkpoints')

  def assert_ended(self, ended, *, saved, line, within_s):
    """Checks status, time, what is on the disk and what was said of it."""
    self.assertEqual((ended.status, ended.errors), (0, ''))
    self.assertLess(ended.seconds, within_s)
    self.assertEqual(ended.printed[-1], line)
    self.assertEqual(self.newest_step(), saved)

  def assert_goes_on(self):
    """Checks that the run, resumed, is the one that nothing disturbed."""
    config = tiny_run.policy_config(stopping_config.CHANGES)
    straight, ended = tiny_run.folder() / 'stopping', self.folder / 'run'
    with tiny_run.devices(1):
      if not straight.exists():
        loop.train(config, str(straight))
      loop.train(config, str(ended))
    self.assertEqual(
      tiny_run.metrics_rows(ended), tiny_run.metrics_rows(straight)
    )
    for name in ('samples.jsonl', 'model/model.safetensors'):
      self.assertEqual(
        (ended / name).read_bytes(), (straight / name).read_bytes(), name
      )


class TrainTest(_Test):
  def test_a_boundary_is_saved_though_the_main_thread_waits_for_a_device(self):
    ended = self.end('device', _TERM)
    self.assertEqual(
      ended.printed[0], 'stopping at step 3, within 4 s (Ctrl-C: at once)'
    )
    self.assert_ended(
      ended,
      saved=3,
      line='saved step 3; the same command goes on, the evaluation after step '
      '3 is done again',
      within_s=_GRACE_S + _SLACK_S,
    )
    self.assert_goes_on()

  def test_a_boundary_that_finds_no_room_is_told_in_one_line(self):
    ended = self.end('device_without_room', _TERM)
    self.assertEqual(ended.status, 1)
    self.assertRegex(
      ended.errors,
      r'^dapo-jax: error: checkpoint 3 could not be written .*File too large'
      r'.*; checkpoint 2 is whole: make room .* the same command\n$',
    )
    self.assertLess(ended.seconds, _GRACE_S + _SLACK_S)
    self.assertEqual(self.newest_step(), 2)
    self.assert_goes_on()

  def test_an_update_that_takes_longer_is_left(self):
    ended = self.end('update', _TERM)
    self.assertGreater(ended.seconds, 0.8 * _GRACE_S)
    self.assert_ended(
      ended,
      saved=2,
      line='step 4 was in its update: the same command goes on from step 2, '
      '2 steps are done again',
      within_s=_GRACE_S + _SLACK_S,
    )
    self.assert_goes_on()

  def test_a_second_ctrl_c_stops_at_once(self):
    ended = self.end('update', _TERM, _INT)
    self.assertEqual((ended.status, ended.errors), (130, ''))
    self.assertEqual(
      ended.printed[-1],
      'stopped at once; the same command goes on from step 2',
    )
    self.assertLess(ended.seconds, _AT_ONCE_S)
    self.assertEqual(self.newest_step(), 2)

  def test_a_grader_inside_jax_is_not_waited_for(self):
    self.assert_ended(
      self.end('grader', _INT),
      saved=0,
      line='saved step 0; the same command goes on, step 1 is done again',
      within_s=_GRACE_S + _SLACK_S,
    )
    self.assert_goes_on()

  @parameterized.parameters(
    (
      'sampling',
      'saved step 3; the same command goes on, step 4 is done again',
    ),
    (
      'evaluation',
      'saved step 3; the same command goes on, the evaluation after step 3 is '
      'done again',
    ),
    (
      'short_update',
      'saved step 4; the same command goes on, step 5 is done again',
    ),
    ('save', 'saved step 4; the same command goes on, step 5 is done again'),
    (
      'endless_save',
      'step 4 was not saved in time: the same command goes on from step 2, 2 '
      'steps are done again',
    ),
  )
  @pytest.mark.slow
  def test_what_can_be_saved_in_time_is(self, where, line):
    saved = 2 if where == 'endless_save' else int(line.split()[2][0])
    self.assert_ended(
      self.end(where, _INT),
      saved=saved,
      line=line,
      within_s=_GRACE_S + _SLACK_S,
    )
    self.assert_goes_on()

  @parameterized.parameters(
    ('loading', 'stopped while loading; the same command begins again'),
    (
      'compile',
      'the update of step 1 was being compiled and nothing is saved yet: the '
      'same command begins again',
    ),
  )
  @pytest.mark.slow
  def test_where_nothing_is_lost_it_ends_at_once(self, where, line):
    self.assert_ended(
      self.end(where, _TERM), saved=None, line=line, within_s=_AT_ONCE_S
    )
    self.assert_goes_on()

  @pytest.mark.slow
  def test_a_repeated_sigterm_changes_nothing(self):
    ended = self.end('save', _TERM, _TERM)
    self.assertEqual(ended.status, 0)
    self.assertEqual(self.newest_step(), 4)


class OtherCommandsTest(_Test):
  @pytest.mark.slow
  def test_supervised_training_is_saved(self):
    self.assert_ended(
      self.end('device', _INT, command='sft'),
      saved=4,
      line='saved step 4; the same command goes on, the evaluation after step '
      '4 is done again',
      within_s=_GRACE_S + _SLACK_S,
    )
    with tiny_run.devices(1):
      supervised.run(
        tiny_run.policy_config(stopping_config.CHANGES),
        str(self.folder / 'run'),
      )
    self.assertTrue((self.folder / 'run' / 'model').exists())

  @parameterized.parameters((_INT, 130), (_TERM, 143))
  @pytest.mark.slow
  def test_an_evaluation_ends_at_once_with_one_line(self, number, status):
    ended = self.end('device', number, command='eval')
    self.assertEqual(ended.status, status)
    self.assertEqual(ended.errors, 'dapo-jax: interrupted\n')
    self.assertLess(ended.seconds, _AT_ONCE_S)

  def test_a_sample_ends_at_once_with_one_line(self):
    model = tiny_run.model_folder()
    ended = _end(['-c', _SAMPLE, 'sample', f'--model={model}', '1+2=?'], _INT)
    self.assertEqual(ended.status, 130)
    self.assertEqual(ended.errors, 'dapo-jax: interrupted\n')
    self.assertLess(ended.seconds, _AT_ONCE_S)


class LostTest(absltest.TestCase):
  def test_an_update_that_is_known_to_take_longer_is_not_waited_for(self):
    guard = interrupt.Guard()
    end = stopping._End(guard, epath.Path('nowhere'), 4.0)
    update = interrupt.Moment(interrupt.Phase.UPDATE, 100.0)
    self.assertFalse(end._is_lost(update, 103.6))
    # Begun at 100.0, it ends at 103.5 or at 104.0.
    guard.update_s = 3.5
    self.assertFalse(end._is_lost(update, 103.6))
    guard.update_s = 4.0
    self.assertTrue(end._is_lost(update, 103.6))
    boundary = update._replace(phase=interrupt.Phase.BOUNDARY)
    self.assertFalse(end._is_lost(boundary, 103.6))


class SeveralProcessesTest(parameterized.TestCase):
  """The end of one of several processes."""

  def _end(self, index, grace_s=4.0):
    """Returns an end whose process has this number, and its job."""
    guard = interrupt.Guard()
    guard.job = mock.Mock(
      job_lib.Job(index, 2), index=index, count=2, is_first=index == 0
    )
    return stopping._End(guard, epath.Path('nowhere'), grace_s), guard.job

  @parameterized.parameters(
    (0, 'stopped while loading; the same command begins again\n'), (1, '')
  )
  def test_the_first_alone_says_so_and_all_part_before_they_end(
    self, index, line
  ):
    end, job = self._end(index)
    out, log = io.StringIO(), []
    # The line is there by then: the grace time may end while it parts.
    job.part.side_effect = lambda: log.append(out.getvalue())
    with (
      mock.patch.object(sys, '__stdout__', out),
      mock.patch.object(os, '_exit', side_effect=log.append),
    ):
      end._leave()
    self.assertEqual(log[:2], [line, 0])

  @parameterized.parameters(
    (0, ['stopping at step 3, within 4 s (Ctrl-C: at once)']), (1, [])
  )
  def test_the_first_alone_says_what_is_waited_for(self, index, lines):
    end, _ = self._end(index)
    end._guard.boundary(3, lambda: None, again='')
    with contextlib.redirect_stdout(io.StringIO()) as out:
      end._announce()
    self.assertEqual(out.getvalue().splitlines(), lines)

  def test_a_signal_is_passed_on_at_once(self):
    # Its last timer would end the tests.
    end, job = self._end(1, grace_s=1e6)
    told = threading.Event()
    job.tell_stop.side_effect = told.set
    ours, theirs = socket.socketpair()
    threading.Thread(target=end.watch, args=[ours], daemon=True).start()
    with mock.patch.object(end, '_leave') as leave:
      self.assertFalse(told.wait(0.1))
      theirs.send(bytes([_TERM]))
      self.assertTrue(told.wait(20.0))
      # It loads, and nothing is lost: it leaves.
      until_s = time.monotonic() + 20.0
      while not leave.called and time.monotonic() < until_s:
        time.sleep(0.01)
      leave.assert_called_with()
      theirs.close()
    job.tell_stop.assert_called_once_with()


class AtOnceTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.ended = threading.Event()
    self.log = []
    leave = lambda status, *_, **__: (
      self.log.append(status),
      self.ended.set(),
    )
    self.enterContext(mock.patch.object(stopping, 'leave', leave))

  def test_others_are_told_before_the_process_ends(self):
    with stopping.at_once() as before_end:
      before_end += [
        lambda: self.log.append('tell'),
        lambda: self.log.append('part'),
      ]
      os.kill(os.getpid(), _TERM)
      self.assertTrue(self.ended.wait(20))
    self.assertEqual(self.log, ['tell', 'part', 128 + _TERM])

  def test_a_second_signal_does_not_wait_for_that(self):
    with stopping.at_once() as before_end:
      begun, never = threading.Event(), threading.Event()
      self.addCleanup(never.set)
      before_end += [begun.set, never.wait]
      os.kill(os.getpid(), _INT)
      self.assertTrue(begun.wait(20))
      self.assertFalse(self.ended.wait(0.2))
      os.kill(os.getpid(), _INT)
      self.assertTrue(self.ended.wait(20))
    self.assertEqual(self.log, [128 + _INT])


class NewestStepTest(_Test):
  def test_a_save_under_way_is_none(self):
    folder = epath.Path(self.folder) / 'checkpoints'
    self.assertIsNone(stopping.newest_step(folder))
    for name in ('2', '10', '12.orbax-checkpoint-tmp-1', 'notes'):
      (folder / name).mkdir(parents=True)
      (folder / name / 'commit_success.txt').touch()
    (folder / '14').mkdir()
    self.assertEqual(stopping.newest_step(folder), 10)


if __name__ == '__main__':
  absltest.main()

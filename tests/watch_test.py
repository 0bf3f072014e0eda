"""Tests of `parallel.watch`, by a clock that the tests turn.

A round is what a watch does every second. Those of real threads are at the
end; those of real processes in job_processes_test and processes_test.
"""

import contextlib
import threading
import time
from unittest import mock

import jax
from absl.testing import absltest, parameterized

import fake_jobs
from dapo_jax.parallel import watch as watch_lib

_QUIET_S = 10.0
_LOST_1 = (
  'process 1 is lost: nothing was heard of it for 60 s; the run ends here, and '
  'the same command on every machine goes on from its newest checkpoint'
)
_LOST_0 = _LOST_1.replace('process 1', 'process 0')


class _Clock:
  """Stands in for the module `time`."""

  def __init__(self):
    self.now_s = 1000.0
    self.on_sleep = lambda: None

  def monotonic(self) -> float:
    return self.now_s

  def sleep(self, seconds: float) -> None:
    self.now_s += seconds
    self.on_sleep()


class _OneRound:
  """Stands in for the event that ends a watch: lets it do one round."""

  def __init__(self, watch):
    self._left, self._event = 1, watch._over
    self.is_set, self.set = self._event.is_set, self._event.set

  def wait(self, timeout_s: float) -> bool:
    del timeout_s
    self._left -= 1
    return self._left < 0 or self._event.is_set()


class _Test(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.clock = _Clock()
    patch = mock.patch.object(watch_lib, 'time', self.clock)
    patch.start()
    self.addCleanup(patch.stop)
    self.coordinator = fake_jobs.Coordinator(3)
    self.hooks = [
      watch_lib.Hooks(*[mock.Mock(name=n) for n in watch_lib.Hooks._fields])
      for _ in range(3)
    ]
    self.watches = [
      watch_lib.Watch(
        self.coordinator.client(index),
        index=index,
        count=3,
        hooks=hooks,
        quiet_s=_QUIET_S,
      )
      for index, hooks in enumerate(self.hooks)
    ]

  def round(self, *indices):
    """Has these processes, else all, do a round; process 0 does the last."""
    for index in indices or (1, 2, 0):
      watch = self.watches[index]
      with mock.patch.object(watch, '_over', _OneRound(watch)):
        watch._watch()

  def rounds(self, seconds, *indices):
    """Has them do a round a second."""
    for _ in range(seconds):
      self.clock.now_s += 1
      self.round(*indices)

  def left(self) -> list[list[str]]:
    """Returns the last lines of each process, which all ended with 1."""
    calls = [hooks.leave.call_args_list for hooks in self.hooks]
    for status, _ in (call.args for of in calls for call in of):
      self.assertEqual(status, 1)
    return [[call.args[1] for call in of] for of in calls]

  def assert_goes_on(self):
    self.assertEqual(self.left(), [[], [], []])


class FailureTest(_Test):
  def _fail(self, index, error):
    """Ends what a process does under its watch; its thread does nothing."""
    with mock.patch.object(threading, 'Thread'):
      with self.assertRaises(type(error)):
        with self.watches[index].watching():
          raise error

  def test_of_one_is_the_end_of_all_and_its_text_is_told(self):
    self.rounds(3)
    self.assert_goes_on()
    self._fail(2, ValueError('no room\n  on the disk'))
    text = 'process 2 failed: ValueError: no room on the disk'
    self.rounds(1, 1, 0)
    # Process 1 was asked before process 0 had judged.
    self.assertEqual(self.left(), [[text], [], []])
    self.round(1)
    # Process 2 ends by its own exception.
    self.assertEqual(self.left(), [[text], [text], []])

  def test_of_the_first_is_told_by_itself(self):
    self.clock.on_sleep = lambda: self.round(1, 2)
    self._fail(0, ValueError('no room'))
    text = 'process 0 failed: ValueError: no room'
    self.assertEqual(self.left(), [[], [text], [text]])

  def test_of_two_that_of_the_lower_number_is_told_to_all(self):
    self._fail(2, ValueError('second'))
    self._fail(1, ValueError('first'))
    self.round(0)
    self.assertEqual(
      self.left(), [['process 1 failed: ValueError: first'], [], []]
    )

  def test_a_request_to_exit_is_one(self):
    self._fail(1, SystemExit(3))
    self.round(0)
    self.assertEqual(self.left()[0], ['process 1 failed: SystemExit: 3'])

  def test_of_the_devices_is_told_when_no_lost_process_is_the_cause(self):
    before_s, heard = self.clock.now_s, []
    self.clock.on_sleep = lambda: heard.extend(
      name for name in self.coordinator.values if 'failed' in name
    )
    self._fail(2, jax.errors.JaxRuntimeError('connection closed'))
    # 60 s to find a process lost, and 5 rounds.
    self.assertEqual(self.clock.now_s - before_s, 65)
    self.assertEqual(heard, [])
    self.round(0)
    self.assertEqual(
      self.left()[0], ['process 2 failed: JaxRuntimeError: connection closed']
    )

  def test_nothing_is_told_of_one_that_ends_well(self):
    with mock.patch.object(threading, 'Thread'):
      with self.watches[1].watching():
        self.round(1)
    self.rounds(3, 2, 0)
    self.assert_goes_on()


class LostTest(_Test):
  def test_one_that_says_nothing_for_too_long_is_the_end_of_all(self):
    self.rounds(5)
    # It was heard at 5.
    self.rounds(60, 2, 0)
    self.assert_goes_on()
    self.rounds(1, 0)
    self.round(2)
    self.assertEqual(self.left(), [[_LOST_1], [], [_LOST_1]])

  def test_one_that_was_never_heard_is_too(self):
    self.rounds(61, 2, 0)
    self.assert_goes_on()
    self.rounds(1, 2, 0)
    self.assertEqual(self.left()[0], [_LOST_1])

  def test_one_that_is_heard_now_and_then_is_not(self):
    for _ in range(4):
      self.rounds(59, 2, 0)
      self.round(1)
    self.assert_goes_on()

  def test_the_first_is_missed_by_each_of_the_others(self):
    self.rounds(5)
    # Its fifth word is heard in the next round of the others.
    self.rounds(1 + 60, 1, 2)
    self.assert_goes_on()
    self.rounds(1, 1, 2)
    self.assertEqual(self.left(), [[], [_LOST_0], [_LOST_0]])

  def test_so_it_is_where_the_coordinator_is_gone_with_it(self):
    self.rounds(5)
    self.coordinator.is_gone = True
    self.rounds(60, 1, 2)
    self.assert_goes_on()
    self.rounds(1, 1, 2)
    text = f'{_LOST_0} (UNAVAILABLE: failed to connect to all addresses)'
    self.assertEqual(self.left(), [[], [text], [text]])

  def test_a_coordinator_that_comes_back_is_no_end(self):
    self.rounds(5)
    self.coordinator.is_gone = True
    self.rounds(50)
    self.coordinator.is_gone = False
    self.rounds(50)
    self.assert_goes_on()

  def test_a_clock_that_stood_still_with_all_of_them_is_no_loss(self):
    self.rounds(5)
    self.clock.now_s += 1000
    self.round()
    self.rounds(5)
    self.assert_goes_on()


class PartTest(_Test):
  def test_one_that_parted_is_not_lost(self):
    self.rounds(3)
    self.watches[1].part()
    self.rounds(200, 2, 0)
    self.assert_goes_on()

  def test_others_do_not_wait(self):
    before_s = self.clock.now_s
    self.watches[1].part()
    self.assertEqual(self.clock.now_s, before_s)

  def test_the_first_waits_until_the_others_are_gone(self):
    self.rounds(3)
    gone = iter([lambda: None, self.watches[2].part, self.watches[1].part])
    self.clock.on_sleep = lambda: next(gone, lambda: None)()
    before_s = self.clock.now_s
    self.watches[0].part()
    # Three looks, and the time that they have to end.
    self.assertAlmostEqual(self.clock.now_s - before_s, 0.3 + 2.0)

  def test_but_not_for_ever(self):
    before_s = self.clock.now_s
    self.watches[0].part()
    self.assertBetween(self.clock.now_s - before_s, 12.0, 12.1 + 1e-6)

  def test_with_the_others_there_is_nothing_to_wait_for(self):
    for index in (1, 2):
      self.watches[index].part()
    before_s = self.clock.now_s
    self.watches[0].part()
    self.assertAlmostEqual(self.clock.now_s - before_s, 2.0)

  def test_an_end_is_seen_by_the_others_before_the_first_leaves(self):
    left_at_s = {}
    for index, hooks in enumerate(self.hooks):
      hooks.leave.side_effect = lambda *_, i=index: left_at_s.setdefault(
        i, self.clock.now_s
      )
    self.rounds(3)
    self.coordinator.values['dapo_jax/watch/failed/1'] = 'ValueError: no'
    self.clock.on_sleep = lambda: self.round(1, 2)
    self.round(0)
    self.assertEqual(self.left(), [['process 1 failed: ValueError: no']] * 3)
    for index in (1, 2):
      self.assertGreaterEqual(left_at_s[0] - left_at_s[index], 2.0)

  def test_it_makes_no_more_rounds(self):
    self.watches[1].part()
    before = dict(self.coordinator.values)
    self.rounds(3, 1)
    self.assertEqual(self.coordinator.values, before)


class StopTest(_Test):
  def test_it_is_passed_on_to_each_of_the_others_once(self):
    for index, hooks in enumerate(self.hooks):
      # What a real one does that is asked to stop.
      hooks.stop.side_effect = self.watches[index].tell_stop
    self.rounds(3)
    self.watches[1].tell_stop()
    self.rounds(5)
    counts = [hooks.stop.call_count for hooks in self.hooks]
    self.assertEqual(counts, [1, 0, 1])
    self.assert_goes_on()

  def test_several_at_once_are_one(self):
    for watch in self.watches[:2]:
      watch.tell_stop()
    self.rounds(3)
    counts = [hooks.stop.call_count for hooks in self.hooks]
    self.assertEqual(counts, [0, 0, 1])

  def test_one_that_waits_is_asked_too(self):
    with self.watches[0].waiting('the end'):
      self.watches[2].tell_stop()
      self.rounds(2)
    self.assertEqual(self.hooks[0].stop.call_count, 1)


class WaitTest(_Test):
  def told(self) -> list[str]:
    """Returns what the first process told; the others tell nothing."""
    for hooks in self.hooks[1:]:
      hooks.tell.assert_not_called()
    return [call.args[0] for call in self.hooks[0].tell.call_args_list]

  def test_who_waits_for_whom_is_told_once_an_interval(self):
    self.watches[1].doing('its share of round 3')
    with self.watches[0].waiting('round 3'), self.watches[2].waiting('round 3'):
      self.rounds(10)
      self.assertEqual(self.told(), [])
      self.rounds(1)
      first = (
        'processes 0, 2 wait for round 3 since 11 s; process 1 is at its share '
        'of round 3 for 11 s'
      )
      self.assertEqual(self.told(), [first])
      # Again when more than 10 s are over: at 22 and 33.
      self.rounds(10)
      self.assertEqual(self.told(), [first])
      self.rounds(12)
      later = [first.replace('11 s', f'{seconds} s') for seconds in (22, 33)]
      self.assertEqual(self.told(), [first, *later])

  def test_a_short_wait_is_not_told_though_there_are_many(self):
    for i in range(20):
      with self.watches[0].waiting(f'round {i}'):
        self.rounds(9)
    self.assertEqual(self.told(), [])

  def test_nor_is_long_work(self):
    self.watches[1].doing('its share')
    self.rounds(100)
    self.assertEqual(self.told(), [])

  def test_one_alone_is_told_with_what_each_of_the_others_is_at(self):
    self.watches[0].doing('reading')
    self.watches[2].doing('writing')
    self.clock.now_s += 5
    with self.watches[1].waiting('the beginning'):
      self.rounds(11)
    self.assertEqual(
      self.told(),
      [
        'process 1 waits for the beginning since 11 s; process 0 is at reading '
        'for 16 s; process 2 is at writing for 16 s'
      ],
    )

  def test_where_all_wait_nobody_is_named(self):
    with contextlib.ExitStack() as stack:
      for watch in self.watches:
        stack.enter_context(watch.waiting('a place'))
      self.rounds(11)
    self.assertEqual(
      self.told(),
      ['processes 0, 1, 2 wait for a place since 11 s; all are there'],
    )

  def test_after_a_wait_it_is_where_it_was_from_then_on(self):
    self.watches[1].doing('its share')
    with self.watches[1].waiting('round 1'):
      self.rounds(3)
    with self.watches[0].waiting('round 2'):
      self.rounds(11)
    [told] = self.told()
    self.assertIn('process 1 is at its share for 11 s', told)

  def test_one_that_has_parted_is_at_nothing_any_more(self):
    self.watches[1].doing('its share')
    self.rounds(2)
    self.watches[1].part()
    with self.watches[0].waiting('round 3'):
      self.rounds(11, 2, 0)
    self.assertEqual(
      self.told(),
      [
        'process 0 waits for round 3 since 11 s; process 2 is at the start for '
        '13 s; process 1 has ended'
      ],
    )

  def test_nor_does_it_wait(self):
    with self.watches[1].waiting('round 3'):
      self.rounds(2)
      self.watches[1].part()
      self.rounds(20, 2, 0)
    self.assertEqual(self.told(), [])

  def test_of_many_that_are_waited_for_some_are_named(self):
    said = {i: [7, False, f'place {i}', 3.0] for i in range(1, 20)}
    said[0] = [7, True, 'the end', 30.0]
    text = watch_lib._waits_text({0: said[0]}, said, set())
    self.assertStartsWith(text, 'process 0 waits for the end since 30 s; ')
    self.assertEndsWith(text, 'process 8 is at place 8 for 3 s')
    self.assertLen(text.split('; '), 1 + 8)


class ThreadsTest(absltest.TestCase):
  """The real clock, with short times."""

  def setUp(self):
    super().setUp()
    for name, seconds in {
      '_TICK_S': 0.01,
      '_LOST_S': 20.0,
      '_PARTING_S': 20.0,
      '_ENDING_S': 0.0,
    }.items():
      patch = mock.patch.object(watch_lib, name, seconds)
      patch.start()
      self.addCleanup(patch.stop)
    self.coordinator = fake_jobs.Coordinator(3)
    self.left = {}
    self.stopped = []

  def watch(self, index):
    return watch_lib.Watch(
      self.coordinator.client(index),
      index=index,
      count=3,
      hooks=watch_lib.Hooks(
        stop=lambda: self.stopped.append(index),
        leave=lambda status, line: self.left.setdefault(index, (status, line)),
        tell=lambda line: self.fail(line),
      ),
      quiet_s=60.0,
    )

  def wait_until(self, is_so):
    until_s = time.monotonic() + 20
    while not is_so() and time.monotonic() < until_s:
      time.sleep(0.01)
    self.assertTrue(is_so())

  def test_a_failure_ends_those_that_are_under_way(self):
    with self.watch(0).watching(), self.watch(1).watching():
      with self.assertRaises(ZeroDivisionError):
        with self.watch(2).watching():
          raise ZeroDivisionError('no')
      self.wait_until(lambda: len(self.left) == 2)
    line = 'process 2 failed: ZeroDivisionError: no'
    self.assertEqual(self.left, {0: (1, line), 1: (1, line)})

  def test_a_stop_comes_to_all_that_are_under_way(self):
    third = self.watch(2)
    with self.watch(0).watching(), self.watch(1).watching(), third.watching():
      third.tell_stop()
      self.wait_until(lambda: len(self.stopped) >= 2)
      time.sleep(0.1)
    self.assertEqual(sorted(self.stopped), [0, 1])
    self.assertEqual(self.left, {})


if __name__ == '__main__':
  absltest.main()

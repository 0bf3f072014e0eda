"""Tests of `training.interrupt`, with real signals."""

import os
import signal
import threading
import time
from unittest import mock

from absl.testing import absltest, parameterized

import fake_jobs
from dapo_jax.training import interrupt

_Phase = interrupt.Phase


def _send(number):
  os.kill(os.getpid(), number)


class GuardTest(parameterized.TestCase):
  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  def test_the_first_signal_is_noted_for_the_next_safe_place(self, number):
    with interrupt.Guard() as guard:
      guard.check()
      self.assertFalse(guard.requested)
      _send(number)
      self.assertTrue(guard.requested)
      for _ in range(2):
        with self.assertRaises(interrupt.Interrupted):
          guard.check()

  @parameterized.parameters(
    (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)
  )
  def test_the_second_ends_at_once(self, first, second):
    with interrupt.Guard():
      _send(first)
      with self.assertRaises(KeyboardInterrupt):
        _send(second)

  def test_afterwards_signals_do_what_they_did(self):
    # A shell's background jobs begin with SIGINT ignored: say what it does.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    self.addCleanup(signal.signal, signal.SIGINT, old)
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(n) for n in numbers]
    with self.assertRaises(ZeroDivisionError), interrupt.Guard():
      self.assertNotEqual([signal.getsignal(n) for n in numbers], before)
      raise ZeroDivisionError
    self.assertEqual([signal.getsignal(n) for n in numbers], before)
    with self.assertRaises(KeyboardInterrupt):
      _send(signal.SIGINT)

  def test_a_signal_of_an_earlier_guard_is_forgotten(self):
    with interrupt.Guard():
      _send(signal.SIGINT)
    with interrupt.Guard() as guard:
      guard.check()


class MomentTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.guard = interrupt.Guard()
    self.phases = []
    self.update = self.guard.told(self._update)

  def _update(self, number):
    self.phases.append(self.guard.moment().phase)
    return number + 1

  def _boundary(self, step):
    self.guard.boundary(step, lambda: None, again=f'step {step + 1}')

  def test_the_first_update_compiles_and_the_others_do_not(self):
    self._boundary(0)
    self.assertEqual(self.update(1), 2)
    self.update(2)
    self._boundary(1)
    self.update(3)
    self.assertEqual(
      self.phases, [_Phase.COMPILING, _Phase.UPDATE, _Phase.UPDATE]
    )
    # The state was donated.
    self.assertIsNone(self.guard.moment().save)

  def test_a_request_ends_it_before_an_update_and_not_within(self):
    self._boundary(0)
    self.update(1)
    self.guard.request()
    self.update(2)  # of the same step: no boundary is lost
    self._boundary(1)
    with self.assertRaises(interrupt.Interrupted):
      self.update(3)
    self.assertEqual(self.guard.moment().phase, _Phase.BOUNDARY)
    self.assertLen(self.phases, 2)

  def test_the_time_of_an_update_is_known_afterwards(self):
    self._boundary(0)
    self.update(1)
    self._boundary(1)
    self.update(2)
    time.sleep(0.05)
    self._boundary(2)
    self.assertBetween(self.guard.update_s, 0.05, 1.0)

  def test_only_a_boundary_is_taken_over_and_by_one(self):
    self.assertIsNone(self.guard.take_over())  # it loads
    self._boundary(3)
    self.update(1)
    self.assertIsNone(self.guard.take_over())
    self._boundary(4)
    with self.guard.writing():
      self.assertEqual(self.guard.moment().phase, _Phase.WRITING)
      self.assertIsNone(self.guard.take_over())
    self.assertEqual(self.guard.take_over().step, 4)
    self.assertIsNone(self.guard.take_over())

  def test_who_ends_is_not_taken_over_and_waits_for_who_took_over(self):
    self._boundary(3)
    self.guard.ends()
    self.assertIsNone(self.guard.take_over())
    other = interrupt.Guard()
    other.boundary(3, lambda: None, again='')
    other.take_over()
    ending = threading.Thread(target=other.ends, daemon=True)
    ending.start()
    ending.join(0.1)
    self.assertTrue(ending.is_alive())


class TogetherTest(parameterized.TestCase):
  """Guards of three processes."""

  def _errors(self, body, requested):
    """Returns what each raises when some were asked to stop."""

    def process(job):
      guard = interrupt.Guard()
      guard.job = job
      if job.index in requested:
        guard.request()
      return body(guard)

    return [ended.error for ended in fake_jobs.endings(3, process)]

  @parameterized.parameters([{0}], [{2}], [{0, 1, 2}])
  def test_a_signal_to_one_stops_all_at_the_same_place(self, requested):
    errors = self._errors(
      lambda guard: guard.check_together('the end of the step'), requested
    )
    self.assertEqual([type(e) for e in errors], [interrupt.Interrupted] * 3)

  def test_without_a_signal_all_go_on(self):
    errors = self._errors(lambda guard: guard.check_together('here'), ())
    self.assertEqual(errors, [None] * 3)

  def test_they_agree_before_the_first_update_of_a_step(self):
    updates = []

    def body(guard):
      guard.boundary(1, None, again='')
      guard.told(updates.append)(guard.job.index)

    errors = self._errors(body, {1})
    self.assertEqual([type(e) for e in errors], [interrupt.Interrupted] * 3)
    self.assertEqual(updates, [])

  def test_a_signal_between_two_updates_of_a_step_is_left_for_its_end(self):
    def body(guard):
      guard.boundary(1, None, again='')
      update = guard.told(lambda: guard.request())
      for _ in range(3):
        update()
      self.assertEqual(guard.moment().phase, _Phase.UPDATE)
      guard.boundary(2, None, again='')
      guard.check_together('the end of the step')

    errors = self._errors(body, ())
    self.assertEqual([type(e) for e in errors], [interrupt.Interrupted] * 3)

  def test_a_signal_after_they_agreed_to_update_ends_none_of_them(self):
    updates = []

    def body(guard):
      guard.boundary(1, None, again='')
      with mock.patch.object(
        guard, 'check_together', side_effect=lambda _: guard.request()
      ):
        guard.told(updates.append)(guard.job.index)

    self.assertEqual(self._errors(body, ()), [None] * 3)
    self.assertCountEqual(updates, [0, 1, 2])

  def test_no_thread_takes_over_from_one_of_several(self):
    def body(guard):
      guard.boundary(3, lambda: None, again='')
      self.assertIsNone(guard.take_over())

    self.assertEqual(self._errors(body, {0}), [None] * 3)


class LastLineTest(parameterized.TestCase):
  @parameterized.parameters(
    (_Phase.LOADING, 0, None, 'stopped while loading; the same command begins '
     'again'),
    (_Phase.LOADING, 0, 7, 'stopped while loading; the same command goes on '
     'from step 7'),
    (_Phase.BOUNDARY, 0, None, 'stopped before the first step; the same '
     'command begins again'),
    (_Phase.BOUNDARY, 3, 3, 'saved step 3; the same command goes on, step 4 is '
     'done again'),
    (_Phase.WRITING, 3, 2, 'step 3 was not saved in time: the same command '
     'goes on from step 2, 1 step is done again'),
    # Of steps 3 and 4 nothing is left, and 5 was not finished.
    (_Phase.UPDATE, 4, 2, 'step 5 was in its update: the same command goes on '
     'from step 2, 3 steps are done again'),
    (_Phase.UPDATE, 0, None, 'step 1 was in its update and nothing is saved '
     'yet: the same command begins again'),
    (_Phase.COMPILING, 4, 4, 'the update of step 5 was being compiled: the '
     'same command goes on from step 4, 1 step is done again'),
  )  # fmt: skip
  def test_it_says_what_is_saved_and_what_is_done_again(
    self, phase, step, saved, line
  ):
    moment = interrupt.Moment(phase, 0.0, step, None, f'step {step + 1}')
    self.assertEqual(interrupt.last_line(moment, saved), line)


if __name__ == '__main__':
  absltest.main()

"""Tests of `training.interrupt`, with real signals."""

import os
import signal

from absl.testing import absltest, parameterized

from dapo_jax.training import interrupt


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


if __name__ == '__main__':
  absltest.main()

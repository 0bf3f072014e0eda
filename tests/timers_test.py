"""Tests of `monitor.timers`."""

import time
from unittest import mock

from absl.testing import absltest

from dapo_jax.monitor import timers as timers_lib


class TimersTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.timers = timers_lib.Timers()

  def _clock(self, *readings):
    return mock.patch.object(time, 'perf_counter', side_effect=readings)

  def test_times_of_one_name_add_up(self):
    with self._clock(10.0, 12.5, 20.0, 21.0):
      for _ in range(2):
        with self.timers.measure('time/step_s'):
          pass
    self.timers.add('time/step_s', 0.25)
    self.assertEqual(self.timers.take(), {'time/step_s': 2.5 + 1.0 + 0.25})

  def test_an_inner_time_is_part_of_the_outer(self):
    with self._clock(0.0, 1.0, 3.0, 7.0):
      with self.timers.measure('outer'), self.timers.measure('inner'):
        pass
    self.assertEqual(self.timers.take(), {'inner': 2.0, 'outer': 7.0})

  def test_taking_starts_again(self):
    self.timers.add('a', 1.0)
    self.assertEqual(self.timers.take(), {'a': 1.0})
    self.assertEqual(self.timers.take(), {})

  def test_an_error_is_timed_and_passed_on(self):
    with self._clock(1.0, 4.0), self.assertRaises(KeyError):
      with self.timers.measure('a'):
        raise KeyError
    self.assertEqual(self.timers.take(), {'a': 3.0})


if __name__ == '__main__':
  absltest.main()

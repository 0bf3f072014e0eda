"""Tests of `parallel.job`; those of real processes: job_processes_test."""

import functools
import threading
import time
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized
from jax._src import distributed

import fake_jobs
from dapo_jax.parallel import job as job_lib
from dapo_jax.parallel import watch

_HOOKS = watch.Hooks(*[mock.Mock(name=n) for n in watch.Hooks._fields])


class AloneTest(absltest.TestCase):
  def test_it_is_the_first_of_one_and_waits_for_nobody(self):
    job = job_lib.Job()
    self.assertEqual((job.index, job.count, job.is_first), (0, 1, True))
    for _ in range(2):
      job.meet('a place')
    job.doing('something')
    job.tell_stop()
    job.part()

  def test_what_all_say_is_what_it_says(self):
    job = job_lib.Job()
    found = job.gather(np.array([3, 5]), what='')
    np.testing.assert_array_equal(found, [[3, 5]])
    self.assertEqual(job.any(True, what=''), True)
    self.assertEqual(job.any(False, what=''), False)
    self.assertEqual(job.from_first(lambda: b'x', what=''), b'x')
    self.assertEqual(job.to_first(b'y', what=''), [b'y'])


class GatherTest(parameterized.TestCase):
  @parameterized.parameters(
    # Two NaNs of other bits, a zero with a sign, the smallest number.
    (np.array([(2047 << 52) + 1, (4095 << 52) + 2, 1 << 63, 1], 'u8'), 'f8'),
    (np.array([[True, False, True]]), '?'),
    (np.array([-128, 127, 0], 'i1'), 'i1'),
    (np.arange(6, dtype='i8').reshape(1, 3, 2), 'i8'),
    (np.array(7, 'u2'), 'u2'),
    (np.zeros((3, 0), 'f4'), 'f4'),
  )  # fmt: skip
  def test_is_bit_for_bit_and_by_number(self, bits, dtype):
    def body(job):
      # No two processes say the same: the first byte is changed.
      own = np.array(bits)
      if own.size:
        own.reshape(-1).view('u1')[:1] ^= job.index % 2
      own = own.view(dtype)
      return own, job.gather(own, what='test')

    found = fake_jobs.run(3, body)
    said = np.stack([own for own, _ in found])
    for _, everybody in found:
      self.assertEqual(everybody.dtype, np.dtype(dtype))
      self.assertEqual(everybody.shape, (3, *bits.shape))
      self.assertEqual(everybody.tobytes(), said.tobytes())

  def test_takes_arrays_that_do_not_lie_in_a_row(self):
    # Every other one of 0 to 9, backwards.
    found = fake_jobs.run(
      2, lambda job: job.gather(np.arange(10)[::-2] + job.index, what='test')
    )
    for of_process in found:
      np.testing.assert_array_equal(
        of_process, [[9, 7, 5, 3, 1], [10, 8, 6, 4, 2]]
      )

  @parameterized.parameters(
    ([False] * 3, False),
    ([True, False, False], True),
    ([False, False, True], True),
    ([True] * 3, True),
  )
  def test_any_is_the_same_everywhere(self, flags, expected):
    found = fake_jobs.run(3, lambda job: job.any(flags[job.index], what='test'))
    self.assertEqual(found, [expected] * 3)


class ToldTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.coordinator = fake_jobs.Coordinator(3)
    patch = mock.patch.object(job_lib, '_PART_BYTES', 4)
    patch.start()
    self.addCleanup(patch.stop)

  def _run(self, body):
    return fake_jobs.run(3, body, self.coordinator)

  # Parts have 4 bytes.
  @parameterized.parameters(b'', b'\0', b'abcd', b'abcde', b'abcdefgh\xff')
  def test_all_have_what_the_first_makes(self, data):
    made = []

    def body(job):
      def make():
        made.append(job.index)
        return data

      return job.from_first(make, what='test')

    self.assertEqual(self._run(body), [data] * 3)
    self.assertEqual(made, [0])

  def test_the_first_has_what_all_have(self):
    said = [b'abcde', b'', b'abcdabcd']
    self.assertEqual(
      self._run(lambda job: job.to_first(said[job.index], what='test')),
      [said, [], []],
    )

  def test_one_after_the_other_are_not_mixed_up(self):
    def body(job):
      found = []
      for i in range(3):
        own = f'{i} of {job.index}'.encode()
        found += job.to_first(own, what='test')
        found.append(job.from_first(functools.partial(bytes, own), what='test'))
      return found

    first, *others = self._run(body)
    of_first = [f'{i} of 0'.encode() for i in range(3)]
    self.assertEqual(others, [of_first] * 2)
    self.assertEqual(
      first,
      [
        f'{i} of {j}'.encode() for i in range(3) for j in (0, 1, 2, 0)
      ],
    )  # fmt: skip

  def test_nothing_of_it_stays_with_the_coordinator(self):
    self._run(lambda job: job.to_first(b'abcdefgh', what='test'))
    self._run(lambda job: job.doing('other things'))
    self.assertEqual(self.coordinator.values, {})

  def test_where_the_first_cannot_make_it_the_others_do_not_go_on(self):
    def body(job):
      return job.from_first(lambda: 1 // 0, what='test')

    errors = [e.error for e in fake_jobs.endings(3, body)]
    self.assertEqual(
      [type(e) for e in errors],
      [ZeroDivisionError, *[fake_jobs.LeftAloneError] * 2],
    )


class MeetTest(absltest.TestCase):
  def test_none_goes_on_before_the_last_has_come(self):
    lock, log = threading.Lock(), []

    def body(job):
      for i in range(4):
        time.sleep(0.02 * ((job.index + i) % 3))
        with lock:
          log.append(('comes', i))
        job.meet(f'place {i}')
        with lock:
          log.append(('goes', i))

    fake_jobs.run(3, body)
    for i in range(4):
      last = max(n for n, event in enumerate(log) if event == ('comes', i))
      first = min(n for n, event in enumerate(log) if event == ('goes', i))
      self.assertLess(last, first)

  def test_it_is_known_who_waits_for_what(self):
    client, seen = mock.Mock(), []
    own = watch.Watch(client, index=1, count=2, hooks=_HOOKS, quiet_s=1.0)
    client.wait_at_barrier = lambda *_: seen.append(own._at[:2])
    job = job_lib.Job(1, 2, client=client, watch=own)
    job.doing('its share')
    job.meet('the end')
    self.assertEqual(seen, [('the end', True)])
    # Afterwards it does what it did.
    self.assertEqual(own._at[:2], ('its share', False))


class StartedTest(parameterized.TestCase):
  def test_one_process_needs_no_coordinator(self):
    with mock.patch('jax.distributed.initialize') as initialize:
      with job_lib.started(job_lib.Launch(), hooks=_HOOKS, quiet_s=1.0) as job:
        self.assertEqual(job.count, 1)
    initialize.assert_not_called()

  def _several(self, index, coordinator):
    """Has jax say that it is process `index` of 2."""
    client = coordinator.client(index)
    self.shutdown = mock.Mock()
    for name, value in {
      'jax.distributed.initialize': mock.Mock(),
      'jax.distributed.shutdown': self.shutdown,
      'jax.process_index': lambda: index,
      'jax.process_count': lambda: 2,
    }.items():
      self._patch(mock.patch(name, value))
    self._patch(mock.patch.object(distributed.global_state, 'client', client))

  def _patch(self, patch):
    patch.start()
    self.addCleanup(patch.stop)

  def test_several_end_together(self):
    coordinator = fake_jobs.Coordinator(2)
    self._several(1, coordinator)
    log = []

    def other() -> None:
      time.sleep(0.2)
      log.append('the other is at its end')
      coordinator.meet('dapo_jax/meeting/1', 0)

    self.shutdown.side_effect = lambda: log.append('shutdown')
    launch = job_lib.Launch(from_environment=True)
    with job_lib.started(launch, hooks=_HOOKS, quiet_s=1.0) as job:
      self.assertEqual((job.index, job.count), (1, 2))
      threading.Thread(target=other, daemon=True).start()
    self.assertEqual(log, ['the other is at its end', 'shutdown'])

  def test_an_exception_is_told_and_the_others_are_not_waited_for(self):
    coordinator = fake_jobs.Coordinator(2)
    self._several(1, coordinator)
    launch = job_lib.Launch(from_environment=True)
    with self.assertRaises(ZeroDivisionError):
      with job_lib.started(launch, hooks=_HOOKS, quiet_s=1.0):
        raise ZeroDivisionError('no\n  way')
    self.assertEqual(
      coordinator.values['dapo_jax/watch/failed/1'],
      'ZeroDivisionError: no way',
    )
    self.shutdown.assert_not_called()

  @parameterized.parameters(RuntimeError, ValueError)
  def test_those_that_do_not_find_each_other_say_so(self, kind):
    error = kind('DEADLINE_EXCEEDED: Barrier timed out.\nmore of it')
    launch = job_lib.Launch(False, '127.0.0.1:1', 2, 1)
    with mock.patch('jax.distributed.initialize', side_effect=error):
      with self.assertRaisesRegex(
        ValueError,
        r'did not find each other at 127.0.0.1:1 \(DEADLINE_EXCEEDED: Barrier '
        r'timed out\.\); see that all 2 are started, .* within 300 s, and '
        '--coordinator, --processes and --process, or --distributed$',
      ):
        with job_lib.started(launch, hooks=_HOOKS, quiet_s=1.0):
          self.fail('it began')

  def test_one_that_still_waits_for_the_others_says_so_and_ends(self):
    # jax would abort it, without a word of what to do.
    left = threading.Event()
    leave = mock.Mock(side_effect=lambda *_: left.set())

    def initialize(*_, initialization_timeout, **__):
      self.assertGreater(initialization_timeout, job_lib._MEET_S)
      self.assertTrue(left.wait(20))
      raise RuntimeError('enough')

    with (
      mock.patch.object(job_lib, '_MEET_S', 0.1),
      mock.patch('jax.distributed.initialize', initialize),
      self.assertRaises(ValueError),
    ):
      launch = job_lib.Launch(False, '127.0.0.1:1', 2, 1)
      hooks = _HOOKS._replace(leave=leave)
      with job_lib.started(launch, hooks=hooks, quiet_s=1.0):
        self.fail('it began')
    [(status, text)] = [call.args for call in leave.call_args_list]
    self.assertEqual(status, 1)
    self.assertRegex(text, 'did not find each other at 127.0.0.1:1; see that')

  def test_the_first_looks_at_its_address_before_jax_does(self):
    launch = job_lib.Launch(False, '192.0.2.7:8476', 2, 0)
    with mock.patch('jax.distributed.initialize') as initialize:
      with self.assertRaisesRegex(ValueError, 'the machine of the first'):
        with job_lib.started(launch, hooks=_HOOKS, quiet_s=1.0):
          self.fail('it began')
    initialize.assert_not_called()

  def test_jax_leaves_the_signals_alone(self):
    launch = job_lib.Launch(False, '127.0.0.1:1', 2, 1)
    before = jax.config.jax_enable_preemption_service
    self.addCleanup(jax.config.update, 'jax_enable_preemption_service', before)

    def initialize(*_, **__):
      self.assertFalse(jax.config.jax_enable_preemption_service)
      raise RuntimeError('enough')

    jax.config.update('jax_enable_preemption_service', True)
    with mock.patch('jax.distributed.initialize', initialize):
      with self.assertRaisesRegex(ValueError, 'enough'):
        with job_lib.started(launch, hooks=_HOOKS, quiet_s=1.0):
          self.fail('it began')


class CheckTest(parameterized.TestCase):
  @parameterized.parameters(
    job_lib.Launch(),
    job_lib.Launch(from_environment=True),
    job_lib.Launch(False, 'host:8000', 2, 0),
    job_lib.Launch(False, '[::1]:8000', 2, 1),
    job_lib.Launch(False, 'host:8000', 1, 0),
  )
  def test_these_fit_together(self, *launch):
    job_lib.check(job_lib.Launch(*launch))

  @parameterized.parameters(
    ((False, 'host:1', None, None), 'go together'),
    ((False, None, 2, None), 'go together'),
    ((False, None, None, 0), 'go together'),
    ((False, 'host:1', None, 0), 'go together'),
    ((True, None, 2, 0), 'go together'),
    ((False, 'host:1', 2, 2), r'--process \(2\) must be 0 .* \(1\)'),
    ((False, 'host:1', 2, -1), r'--process \(-1\) must be 0 .* \(1\)'),
    ((False, 'host:1', 0, 0), r'--process \(0\)'),
    ((False, 'host', 2, 0), r'--coordinator \(host\) must be HOST:PORT'),
    ((False, 'host:', 2, 0), r'--coordinator \(host:\) must be HOST:PORT'),
    ((False, ':80', 2, 0), r'--coordinator \(:80\) must be HOST:PORT'),
    ((False, 'host:http', 2, 0), 'must be HOST:PORT'),
    ((False, 'host:0', 2, 0), r'\(host:0\) has no port from 1 to 65535'),
    ((False, 'host:65536', 2, 1), 'has no port from 1 to 65535'),
    ((True, 'host:1', 2, 0), '--distributed finds .* or --coordinator'),
  )
  def test_others_are_refused_with_their_flags(self, launch, message):
    with self.assertRaisesRegex(ValueError, message):
      job_lib.check(job_lib.Launch(*launch))


if __name__ == '__main__':
  absltest.main()

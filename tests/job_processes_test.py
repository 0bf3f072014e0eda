"""Tests of `parallel` between three real processes of two devices each."""

import json
import pathlib
import tempfile
import time

import numpy as np
from absl.testing import absltest

import job_worker
import several_processes

_COUNT = job_worker.COUNT


class _Started:
  """Processes of job_worker, and what they write."""

  def __init__(self, count: int, *flags: str):
    holder = tempfile.TemporaryDirectory()
    self.close = holder.cleanup
    out = pathlib.Path(holder.name)
    self._files = [out / f'{i}.json' for i in range(count)]
    self.processes = several_processes.Processes(
      ['tests/job_worker.py', f'--out={out}', *flags],
      count=count,
      devices=2,
      logs=out / 'logs',
    )

  def found(self) -> list[dict]:
    """Returns what each wrote."""
    return [json.loads(file.read_text()) for file in self._files]


class ThreeProcessesTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    started = _Started(_COUNT)
    try:
      for ended in started.processes.wait(180):
        assert ended.status == 0, ended.output
      cls.found = started.found()
    finally:
      started.close()

  def test_what_each_has_is_gathered_bit_for_bit(self):
    arrays = [job_worker.arrays(index) for index in range(_COUNT)]
    for found in self.found:
      for name, (dtype, shape, data) in found['said']['gather'].items():
        expected = np.stack([of_process[name] for of_process in arrays])
        self.assertEqual(dtype, str(expected.dtype), name)
        self.assertEqual(tuple(shape), expected.shape, name)
        self.assertEqual(data, expected.tobytes().hex(), name)
      self.assertEqual(found['said']['gather'].keys(), arrays[0].keys())

  def test_a_flag_of_one_is_known_to_all(self):
    for found in self.found:
      self.assertEqual(found['said']['any'], [False, True, True, True])

  def test_all_have_what_the_first_makes(self):
    expected = [job_worker.digest(t) for t in (job_worker.text(0), b'')]
    for found in self.found:
      self.assertEqual(found['said']['from_first'], expected)

  def test_the_first_has_what_all_tell(self):
    first, *others = [found['said']['to_first'] for found in self.found]
    self.assertEqual(
      first,
      [job_worker.digest(job_worker.text(i)) for i in range(_COUNT)],
    )
    self.assertEqual(others, [[], []])

  def test_words_come_to_those_they_were_sent_to(self):
    for to, found in enumerate(self.found):
      for number, sizes in enumerate(job_worker.sizes()):
        self.assertEqual(
          found['said']['exchanged'][number],
          [
            job_worker.digest(
              job_worker.words(number, of, to, sizes[of, to]).tobytes()
            )
            for of in range(_COUNT)
          ],
        )

  def test_rows_are_put_by_those_that_have_them(self):
    # Six rows over 3 x 2 devices: two in each process. Over 2 x 3: three on
    # the devices of processes 0, 0, 1 and three on those of 1, 2, 2.
    holders = {
      'rows of 3': [[0], [0], [1], [1], [2], [2]],
      'rows of 2': [[0, 1]] * 3 + [[1, 2]] * 3,
    }
    for found in self.found:
      for name, expected in holders.items():
        self.assertEqual(found['placed'][name]['holders'], expected)
        self.assertEqual(
          found['placed'][name]['whole'], job_worker.batch().tolist()
        )

  def test_an_engine_gets_all_parameters_on_its_own_devices(self):
    whole = 2 * job_worker.weights()
    # Columns 0 and 1 on the first device of two, 2 and 3 on the other.
    shards = [[0, whole[:, :2].tolist()], [2, whole[:, 2:].tolist()]]
    for index, found in enumerate(self.found):
      for hosts, processes in (('1', [index]), ('3', [0, 1, 2])):
        self.assertEqual(
          found['islands'][hosts],
          {
            'processes': processes,
            'whole': whole.tolist(),
            'shards': shards,
          },
        )

  def test_what_was_done_before_compiles_nothing(self):
    for found in self.found:
      self.assertEqual(
        found['again'], {'gather': 0, 'on_host': 0, 'all_to_all': 0}
      )

  def test_none_leaves_a_meeting_before_all_have_come(self):
    for place in zip(*(found['meetings'] for found in self.found), strict=True):
      came_s, went_s = zip(*place, strict=True)
      self.assertGreaterEqual(min(went_s), max(came_s))

  def test_a_stop_of_one_comes_to_each_of_the_others_once(self):
    self.assertEqual([found['stops'] for found in self.found], [1, 0, 1])

  def test_the_first_tells_of_the_long_wait(self):
    first, *others = [found['told'] for found in self.found]
    self.assertEqual(others, [[], []])
    self.assertRegex(
      first[-1],
      r'^processes 0, 2 wait for the slow one since \d s; process 1 is at a '
      r'long sleep for \d s$',
    )


class FailureTest(absltest.TestCase):
  def test_of_one_of_two_ends_the_other_soon(self):
    started = _Started(2, '--failing=1')
    self.addCleanup(started.close)
    failing = started.processes.running[1]
    failing.wait(120)
    begin_s = time.monotonic()
    first, other = started.processes.wait(60)
    self.assertLess(time.monotonic() - begin_s, 15.0)
    self.assertEqual((first.status, other.status), (1, 2), first.output)
    self.assertEqual(
      started.found(),
      [
        {'left': f'process 1 failed: ValueError: {job_worker.FAILURE}'},
        {'raised': job_worker.FAILURE},
      ],
    )


if __name__ == '__main__':
  absltest.main()

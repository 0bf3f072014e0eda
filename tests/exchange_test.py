"""Tests of `parallel.exchange`; between real processes: job_processes_test."""

from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

import fake_jobs
from dapo_jax.parallel import exchange
from dapo_jax.parallel import job as job_lib


def _words(seed, sizes):
  """Returns what each sends to each: random words of these numbers."""
  rng = np.random.default_rng(seed)
  return [
    [rng.integers(0, 2**32, n, np.uint32) for n in to_each] for to_each in sizes
  ]


class AllToAllTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    patch = mock.patch.object(exchange, '_PART_WORDS', 4)
    patch.start()
    self.addCleanup(patch.stop)

  def _run(self, words, sizes):
    """Returns what each receives, and how many meetings and parts it took."""

    def body(job):
      found = exchange.all_to_all(
        job, words[job.index], np.array(sizes), what='test'
      )
      return found, job._meetings, fake_jobs.arrays_count()

    return fake_jobs.run(len(sizes), body)

  @parameterized.parameters(
    # How much each sends to each, in parts of 4, and the parts that takes.
    ([[0, 1], [0, 0]], 1),
    ([[0, 4], [3, 0]], 1),
    ([[2, 5], [0, 0]], 2),
    ([[0, 8, 0], [0, 0, 0], [9, 1, 12]], 3),
  )
  def test_each_receives_what_was_sent_to_it(self, sizes, parts):
    words = _words(1, sizes)
    for to, (found, meetings, arrays) in enumerate(self._run(words, sizes)):
      self.assertEqual((meetings, arrays), (1, parts))
      for of, received in enumerate(found):
        self.assertEqual(received.dtype, np.uint32)
        np.testing.assert_array_equal(received, words[of][to])

  def test_whatever_the_sizes(self):
    rng = np.random.default_rng(0)
    for seed in range(20):
      count = int(rng.integers(2, 5))
      sizes = rng.integers(0, 12, (count, count)) * rng.integers(
        0, 2, (count, count)
      )
      words = _words(seed, sizes)
      for to, (found, _, _) in enumerate(self._run(words, sizes.tolist())):
        for of, received in enumerate(found):
          np.testing.assert_array_equal(received, words[of][to])

  def test_nothing_is_moved_where_there_is_nothing(self):
    sizes = [[0, 0], [0, 0]]
    for found, meetings, arrays in self._run(_words(0, sizes), sizes):
      self.assertEqual([len(f) for f in found], [0, 0])
      self.assertEqual((meetings, arrays), (0, 0))

  def test_alone_it_has_what_it_sends_to_itself(self):
    [[words]] = _words(0, [[9]])
    [found] = exchange.all_to_all(
      job_lib.Job(), [words], np.array([[9]]), what=''
    )
    np.testing.assert_array_equal(found, words)


if __name__ == '__main__':
  absltest.main()

"""Functions that turn against their own process, and many who ask at once."""

import os
import pathlib
import tempfile
import threading
import time

from absl.testing import absltest, parameterized

import processes
import verdict_functions
from dapo_jax.rewards import verifiers

_EQUAL = verifiers.Outcome(True, 'ok')
_UNEQUAL = verifiers.Outcome(False, 'ok')
_ERROR = verifiers.Outcome(False, 'error')
# A limit for a machine under load, [s].
_SLACK_S = 30.0


def _open(processes=1, limit_s=_SLACK_S):
  return verifiers.Verifiers(
    verdict_functions.act, processes=processes, limit_s=limit_s
  )


class AttackTest(parameterized.TestCase):
  @parameterized.parameters(
    # The copy of the process would answer, too, and be a verdict ahead.
    ('fork', _EQUAL),
    ('close all', _ERROR),
    ('garble', _ERROR),
    ('garble a message', _ERROR),
    ('move', _EQUAL),
    ('limit', _EQUAL),
  )
  def test_later_verdicts_are_their_own_pairs(self, answer, outcome):
    before = os.getcwd(), dict(os.environ)
    with _open() as pool:
      self.assertEqual(pool.verdict(answer, answer), outcome)
      pairs = [(f'{i}', f'{i}' if i % 3 else 'x') for i in range(300)]
      found = pool.verdicts(pairs)
      self.assertEqual(pool.counts(), (0, int(outcome == _ERROR)))
    self.assertEqual(found, [_EQUAL if i % 3 else _UNEQUAL for i in range(300)])
    self.assertEqual((os.getcwd(), dict(os.environ)), before)

  def test_what_it_forks_ends_with_it(self):
    with tempfile.TemporaryDirectory() as folder:
      file = pathlib.Path(folder) / 'pids'
      with _open() as pool:
        self.assertEqual(pool.verdict('fork and sleep', str(file)), _EQUAL)
        pids = [int(line) for line in file.read_text().split()]
        self.assertLen(pids, 3)
      are_dead = lambda: all(map(processes.is_dead, pids))
      until_s = time.monotonic() + _SLACK_S
      while not are_dead() and time.monotonic() < until_s:
        time.sleep(0.01)
      self.assertTrue(are_dead())

  def test_64_threads_get_their_own_verdicts_in_order(self):
    found = {}
    begin = threading.Barrier(64)

    def ask(thread):
      pairs = [
        ('raise' if i == 7 else f'{thread} {i}', f'{thread} {i // 2 * 2}')
        for i in range(20)
      ]
      begin.wait()
      found[thread] = pool.verdicts(pairs)

    with _open(processes=2) as pool:
      threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
      self.assertEqual(pool.counts(), (0, 64))
    expected = 10 * [_EQUAL, _UNEQUAL]
    expected[7] = _ERROR
    self.assertEqual(found, {i: expected for i in range(64)})


if __name__ == '__main__':
  absltest.main()

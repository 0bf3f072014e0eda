"""Kills real runs, and compares them with runs that were left alone."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from absl.testing import absltest

_BENCH = pathlib.Path(__file__).parents[1] / 'bench/kill_test.py'


def _trials(*args: str) -> tuple[list[str], tuple[int, int, int]]:
  """Returns the lines of the trials, and the numbers of the last line."""
  done = subprocess.run(
    [sys.executable, str(_BENCH), *args],
    capture_output=True,
    text=True,
    # One device: the tests' own eight would only take time.
    env=os.environ | {'XLA_FLAGS': ''},
  )
  lines = done.stdout.splitlines() or ['']
  sums = re.fullmatch(
    r'(\d+) trials, (\d+) kills, (\d+) differences', lines[-1]
  )
  assert sums, done.stdout + done.stderr
  trials = [line for line in lines if line.startswith('trial ')]
  return trials, tuple(map(int, sums.groups()))


class KillTest(absltest.TestCase):
  def test_what_was_killed_ends_as_if_nothing_had_happened(self):
    lines, (trials, kills, differences) = _trials(
      '--trials=3', '--cases=sas', '--seed=1', '--kills=2'
    )
    self.assertLen(lines, trials)
    self.assertEqual(trials, 3)
    self.assertGreaterEqual(kills, 3)
    self.assertEqual(differences, 0, '\n'.join(lines))

  @pytest.mark.slow
  def test_with_refills_and_a_critic_as_well(self):
    lines, (trials, kills, differences) = _trials('--trials=9', '--seed=2')
    self.assertEqual(trials, 9)
    self.assertGreaterEqual(kills, 9)
    self.assertEqual(differences, 0, '\n'.join(lines))


if __name__ == '__main__':
  absltest.main()

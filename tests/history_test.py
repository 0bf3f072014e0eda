"""Tests of `rollout.history`."""

import json

import numpy as np
from absl.testing import absltest

from dapo_jax.rollout import history

_R = np.array


def _visits(*rewards, **memory):
  """Returns the entry after visits with these rewards."""
  entry = history.UNSEEN
  for row in rewards:
    entry = history.visited(entry, _R(row), history.Memory(**memory))
  return entry


class HistoryTest(absltest.TestCase):
  def test_sums_are_over_all_visits(self):
    entry = _visits([1.0, -1.0, -1.0], [0.5, 0.5, -1.0])
    # 1 - 1 - 1 + 0.5 + 0.5 - 1 = -1; squares 3 + 0.25 + 0.25 + 1 = 4.5.
    self.assertEqual(entry, history.Entry(2, (history.Sums(6.0, -1.0, 4.5),)))

  def test_a_window_forgets_the_oldest_visit(self):
    rows = ([1.0, 1.0], [1.0, -1.0], [0.0, 0.5], [-1.0, -1.0])
    whole = _visits(*rows[2:])
    entry = _visits(*rows, window_visits=2)
    self.assertEqual(entry.visits, 2)
    one, other = (history.lookup({'a': e}, ['a']) for e in (entry, whole))
    self.assertEqual(one, other)

  def test_what_decays_counts_less_at_each_visit(self):
    entry = _visits([1.0, 1.0], [1.0, -1.0], [0.0, 0.0], decay=0.5)
    # Counts 2/4 + 2/2 + 2, totals 2/4 + 0, squares 2/4 + 2/2.
    self.assertEqual(entry, history.Entry(3, (history.Sums(3.5, 0.5, 1.5),)))

  def test_an_unknown_prompt_was_never_visited(self):
    found = history.lookup({'a': _visits([1.0, -1.0])}, ['b', 'a'])
    self.assertEqual(found.visits.tolist(), [0, 1])
    self.assertEqual(found.count.tolist(), [0, 2])
    self.assertEqual(found.total.tolist(), [0, 0])
    self.assertEqual(found.total_squares.tolist(), [0, 2])

  def test_json_keeps_every_bit(self):
    entry = _visits([0.1, 0.7, -1 / 3], [0.3, 1e-17, 2.0])
    saved = json.loads(json.dumps(history.to_json({'a': entry})))
    self.assertEqual(history.from_json(saved), {'a': entry})

  def test_json_keeps_a_window(self):
    entry = _visits([0.1, 0.7], [0.3, 1.0], window_visits=3)
    saved = json.loads(json.dumps(history.to_json({'a': entry})))
    self.assertEqual(history.from_json(saved), {'a': entry})


if __name__ == '__main__':
  absltest.main()

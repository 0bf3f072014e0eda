"""Tests of counts by loops."""

from absl.testing import absltest

from dapo_jax.planning import counts


class CountsTest(absltest.TestCase):
  def test_a_total_takes_each_loop_by_its_trips(self):
    # 1 + 3 * 20 + 2 * 300
    self.assertEqual(counts.total((1.0, 20.0, 300.0), (3, 2)), 661.0)

  def test_trips_are_of_all_loops(self):
    with self.assertRaises(ValueError):
      counts.total((1.0, 20.0), (3, 2))

  def test_sums(self):
    self.assertEqual(counts.add([(1, 2, 3), (10, 0, 30)], loops=2), (11, 2, 33))
    self.assertEqual(counts.add([], loops=1), (0, 0))
    self.assertEqual(counts.scaled((1.0, 2.0), 0.5), (0.5, 1.0))


if __name__ == '__main__':
  absltest.main()

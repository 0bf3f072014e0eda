"""Tests of `planning.estimate`."""

from absl.testing import absltest, parameterized

from dapo_jax.planning import chips, estimate

# 100 operations, 10 bytes of memory, 2 of wires and 1 of network a second.
_CHIP = chips.CHIPS['v5p']._replace(
  peak_flops=100.0,
  hbm_bytes_per_s=10.0,
  ici_bytes_per_s=2.0,
  dcn_bytes_per_s=1.0,
  clock_hz=50.0,
)
_NOTHING = estimate.Work((0.0,), (0.0,), (0.0,), (0.0,), (0.0,))


class SecondsTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'matmul_flops': (300.0,)}, {}, 3.0),
    ({'matmul_flops': (300.0,), 'attention_flops': (100.0,)}, {}, 4.0),
    ({'matmul_flops': (300.0,), 'ici_bytes': (8.0,)}, {}, 4.0),
    ({'matmul_flops': (300.0,), 'dcn_bytes': (5.0,)}, {}, 5.0),
    ({'matmul_flops': (300.0,)}, {'weights_bytes': 60.0}, 6.0),
    (
      {'matmul_flops': (300.0,)},
      {'weights_bytes': 60.0, 'cache_bytes': 10.0},
      7.0,
    ),
  )
  def test_at_best_the_slowest_decides(self, work, read, low_s):
    found = estimate.seconds(_NOTHING._replace(**work), (), _CHIP, **read)
    self.assertAlmostEqual(found.low_s, low_s)

  def test_at_worst_one_comes_after_the_other(self):
    work = estimate.Work((100.0,), (30.0,), (75.0,), (4.0,), (3.0,))
    found = estimate.seconds(work, (), _CHIP)
    # 75 cycles at 50 a second, kernels of 0.3 s at 0.6, wires 2 s, network 3.
    self.assertAlmostEqual(found.high_s, 1.5 + 0.3 / 0.6 + 2 + 3)
    # A kernel that waits for memory: 12 B at 10 a second, at 0.6.
    found = estimate.seconds(work, (), _CHIP, cache_bytes=12.0)
    self.assertAlmostEqual(found.high_s, 1.5 + 1.2 / 0.6 + 2 + 3)

  def test_loops_count_their_trips(self):
    work = estimate.Work(
      (100.0, 10.0, 1.0), (0.0,) * 3, (0.0,) * 3, (0.0,) * 3, (0.0,) * 3
    )
    found = estimate.seconds(work, (20.0, 50.0), _CHIP)
    self.assertAlmostEqual(found.low_s, (100 + 200 + 50) / 100)

  def test_worst_is_no_better_than_best(self):
    work = _NOTHING._replace(matmul_flops=(100.0,))
    self.assertEqual(estimate.seconds(work, (), _CHIP), (1.0, 1.0))

  def test_without_cycles_it_is_a_share_of_the_peak(self):
    work = _NOTHING._replace(matmul_flops=(100.0,), cycles=None)
    self.assertEqual(estimate.seconds(work, (), _CHIP), (1.0, 2.5))


class RangeTest(absltest.TestCase):
  def test_ends_are_added_each(self):
    one, two = estimate.Range(1.0, 2.0), estimate.Range(10.0, 30.0)
    self.assertEqual(one + two.times(2.0), (21.0, 62.0))

  def test_utilization_is_lower_where_it_takes_longer(self):
    # 2 devices of 100 a second: 1,000 operations take 5 s at best.
    worst, best = estimate.utilization(
      1000.0, estimate.Range(10.0, 20.0), _CHIP, devices=2
    )
    self.assertAlmostEqual(worst, 0.25)
    self.assertAlmostEqual(best, 0.5)


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.data.mixture`."""

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.data import mixture, records, stream

_UNEVEN = (
  (1, 1),
  (3, 1),
  (0.7, 0.2, 0.1),
  (1, 1, 1, 1, 1, 1, 1),
  # Many that are small, at once: here it is where an order by the middles of
  # the shares would be 4 behind.
  (81, 1, 1, 1, 1, 1, 1, 1, 1, 1),
  (89, 55, 34, 21, 13, 8, 5, 3, 2, 1, 1),
  (999, 1),
  (1000, 1, 1),
  (2500.5, 0.5, 17),
)


def _streams(sizes, *, seed=0, shuffle=True):
  """Returns streams whose prompts are of the data sets 0, 1, ..."""
  return [
    stream.Stream(
      [
        records.make_prompt(
          str(i), [records.Message('user', f'{i} {k}?')], str(k)
        )
        for k in range(size)
      ],
      seed=seed,
      shuffle=shuffle,
      component=i,
    )
    for i, size in enumerate(sizes)
  ]


def _mixture(sizes, weights, **options):
  return mixture.Mixture(_streams(sizes, **options), weights)


def _components(draws):
  return [int(draw.prompt.dataset) for draw in draws]


class PeriodTest(parameterized.TestCase):
  def test_by_hand(self):
    # Two of 3 : 1, so c = 1/2. Component 0 may have its draws from 2/3, 2 and
    # 10/3 on, so in the draws 1, 2 and 4, and 1 its only one from 2 on. It must
    # have it by the first draw after 2, that is 3; component 0 its second too,
    # and comes first.
    self.assertEqual(mixture.period([3, 1]).tolist(), [0, 0, 1, 0])
    self.assertEqual(mixture.period([1, 1, 1]).tolist(), [0, 1, 2])
    self.assertEqual(mixture.period([4]).tolist(), [0, 0, 0, 0])

  @parameterized.parameters(*((w,) for w in _UNEVEN))
  def test_after_any_draw_each_has_its_share_to_within_1(self, *weights):
    counts = mixture.whole_weights(weights[0])
    order = mixture.period(counts)
    total, m = sum(counts), len(counts)
    ordinals = np.arange(1, total + 1)
    for i, count in enumerate(counts):
      drawn = np.cumsum(order == i)
      # In whole numbers: |drawn - n w| <= 1 - 1/(2m - 2).
      gaps = np.abs(drawn * total - ordinals * count)
      self.assertLessEqual(gaps.max() * (2 * m - 2), (2 * m - 3) * total)
      self.assertEqual(drawn[-1], count)

  def test_random_weights_keep_their_shares_too(self):
    random = np.random.default_rng(0)
    for _ in range(60):
      m = random.integers(2, 9)
      counts = (random.pareto(0.7, m) * 3).astype(int).clip(0, 400) + 1
      order = mixture.period(counts.tolist())
      drawn = np.cumsum(order[:, None] == np.arange(m), 0)
      shares = np.arange(1, counts.sum() + 1)[:, None] * counts / counts.sum()
      self.assertLessEqual(
        np.abs(drawn - shares).max(), 1 - 1 / (2 * m - 2) + 1e-9
      )


class WholeWeightsTest(parameterized.TestCase):
  @parameterized.parameters(
    ((0.7, 0.2, 0.1), [7, 2, 1]),
    ((3, 1), [3, 1]),
    ((6, 3), [2, 1]),
    ((1 / 3, 2 / 3), [1, 2]),
    ((1e-7, 3e-7), [1, 3]),
    ((999_999, 1), [999_999, 1]),
    ((5,), [1]),
  )
  def test_the_smallest_whole_numbers(self, weights, counts):
    self.assertEqual(mixture.whole_weights(weights), counts)

  @parameterized.parameters(
    ((1_000_000, 1),),
    ((1e9, 1),),
    ((1, 0.123457, 0.654323),),
  )
  def test_a_long_period_names_the_flag(self, weights):
    with self.assertRaisesRegex(
      ValueError, r'at most 1,000,000; change --config\.data\.mixture'
    ):
      mixture.whole_weights(weights)


class TakeTest(parameterized.TestCase):
  def test_by_hand(self):
    # The order of 3 : 1 is 0 0 1 0; the epochs are the components' own.
    draws = _mixture((2, 1), (3, 1), shuffle=False).take(0, 8)
    self.assertEqual(
      [(d.ordinal, d.prompt.dataset, d.prompt.gold, d.epoch) for d in draws],
      [
        (0, '0', '0', 0),
        (1, '0', '1', 0),
        (2, '1', '0', 0),
        (3, '0', '0', 1),
        (4, '0', '1', 1),
        (5, '0', '0', 2),
        (6, '1', '0', 1),
        (7, '0', '1', 2),
      ],
    )

  @parameterized.parameters(*((w,) for w in _UNEVEN))
  def test_one_draw_at_a_time_is_all_at_once(self, weights):
    mixed = _mixture([3 + i for i in range(len(weights))], weights)
    straight = mixed.take(0, 150)
    again = _mixture([3 + i for i in range(len(weights))], weights)
    self.assertEqual([again.take(n, 1)[0] for n in range(150)], straight)
    self.assertEqual(again.take(0, 70) + again.take(70, 80), straight)
    self.assertEqual(again.take(149, 1), straight[149:])

  def test_a_far_draw_needs_none_before_it(self):
    mixed = _mixture((5, 7), (0.3, 0.7))
    draws = mixed.take(10**15, 20)
    self.assertEqual(draws[7:], mixed.take(10**15 + 7, 13))
    self.assertEqual(_components(draws).count(0), 6)
    # 3 tenths of 10**15 draws are 6e13 epochs of 5.
    epochs = [d.epoch for d in draws if d.prompt.dataset == '0']
    self.assertEqual(epochs, [6 * 10**13] * 5 + [6 * 10**13 + 1])

  def test_each_epoch_of_a_component_draws_every_prompt_once(self):
    # A batch that is larger than either data set.
    draws = _mixture((5, 3), (2, 1)).take(0, 60)
    for i, size in enumerate((5, 3)):
      own = [d for d in draws if d.prompt.dataset == str(i)]
      for epoch in range(len(own) // size):
        golds = [d.prompt.gold for d in own if d.epoch == epoch]
        self.assertCountEqual(golds, map(str, range(size)))

  def test_components_of_one_size_have_orders_of_their_own(self):
    draws = _mixture((30, 30), (1, 1)).take(0, 60)
    orders = [
      [d.prompt.gold for d in draws if d.prompt.dataset == i] for i in '01'
    ]
    self.assertCountEqual(*orders)
    self.assertNotEqual(*orders)

  def test_one_component_is_the_stream_itself(self):
    single = _streams((7,))[0]
    self.assertEqual(
      mixture.Mixture([single], [0.4]).take(3, 20), single.take(3, 20)
    )

  def test_no_draws_are_an_empty_list(self):
    self.assertEqual(_mixture((2, 2), (1, 1)).take(5, 0), [])


class InterleavedTest(absltest.TestCase):
  def test_the_first_are_in_proportion(self):
    # 'ab...' stand at 1/4, 3/4, 5/4, 7/4 and 'x', 'y' at 1/2, 3/2.
    found = mixture.interleaved(['abcd', 'xy'], [2, 1])
    self.assertEqual(''.join(found), 'axbcyd')

  def test_where_one_ends_the_others_go_on(self):
    found = mixture.interleaved(['a', 'xyz'], [5, 1])
    self.assertEqual(''.join(found), 'axyz')


if __name__ == '__main__':
  absltest.main()

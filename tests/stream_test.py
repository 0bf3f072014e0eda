"""Tests of `dapo_jax.data.stream`."""

from absl.testing import absltest, parameterized

from dapo_jax.data import records, stream


def _prompts(count):
  """Returns prompts whose answers are 0, 1, 2, ..."""
  return [
    records.make_prompt('d', [records.Message('user', f'{i}?')], str(i))
    for i in range(count)
  ]


def _stream(count, *, seed=0, shuffle=True):
  """Returns the stream of `_prompts(count)`."""
  return stream.Stream(_prompts(count), seed=seed, shuffle=shuffle)


def _rows(draws):
  """Returns the places of the prompts in `_prompts`."""
  return [int(draw.prompt.gold) for draw in draws]


class TakeTest(parameterized.TestCase):
  def test_the_order_of_two_epochs_of_five(self):
    # numpy.random.Philox(key=[0, epoch]).random_raw(5), sorted, the leading
    # digits in hexadecimal:
    #   epoch 0: 02f 3dd 1c8 907 809  ->  0 2 1 4 3
    #   epoch 1: d03 c05 abf 7ba b48  ->  3 2 4 1 0
    self.assertEqual(
      _rows(_stream(5).take(0, 10)), [0, 2, 1, 4, 3, 3, 2, 4, 1, 0]
    )

  def test_without_shuffling_the_order_is_that_of_the_prompts(self):
    draws = _stream(3, shuffle=False).take(0, 7)
    self.assertEqual(_rows(draws), [0, 1, 2, 0, 1, 2, 0])

  def test_a_draw_knows_its_ordinal_and_epoch(self):
    draws = _stream(5).take(3, 9)
    self.assertEqual([d.ordinal for d in draws], list(range(3, 12)))
    self.assertEqual([d.epoch for d in draws], [0, 0, 1, 1, 1, 1, 1, 2, 2])

  @parameterized.parameters(True, False)
  def test_six_draws_are_three_and_three_more(self, shuffle):
    # 4 prompts: the second half begins in one epoch and ends in the next.
    prompts = _stream(4, shuffle=shuffle)
    resumed = _stream(4, shuffle=shuffle)
    self.assertEqual(
      prompts.take(0, 6), prompts.take(0, 3) + resumed.take(3, 3)
    )

  def test_a_stop_at_the_end_of_an_epoch_skips_nothing(self):
    self.assertEqual(_stream(4).take(4, 4), _stream(4).take(0, 8)[4:])

  @parameterized.parameters(1, 2, 30)
  def test_each_epoch_draws_every_prompt_once(self, count):
    prompts = _stream(count, seed=7)
    for epoch in range(4):
      draws = prompts.take(epoch * count, count)
      self.assertCountEqual(_rows(draws), range(count))

  def test_a_batch_may_be_larger_than_the_data(self):
    draws = _stream(5).take(0, 12)
    self.assertCountEqual(_rows(draws[:5]), range(5))
    self.assertCountEqual(_rows(draws[5:10]), range(5))
    self.assertLen(set(_rows(draws[10:])), 2)

  def test_epochs_and_seeds_have_orders_of_their_own(self):
    orders = [
      tuple(_rows(_stream(30, seed=seed).take(epoch * 30, 30)))
      for seed in (0, 1, 2**64 - 1)
      for epoch in (0, 1)
    ]
    self.assertLen(set(orders), 6)

  def test_every_order_is_as_likely(self):
    # 600 epochs of 3 prompts: 100 of each of the 6 orders, +- 9.
    orders = [tuple(_rows(_stream(3).take(3 * e, 3))) for e in range(600)]
    self.assertLen(set(orders), 6)
    for order in set(orders):
      self.assertBetween(orders.count(order), 60, 140)

  def test_no_draws_are_an_empty_list(self):
    self.assertEqual(_stream(5).take(3, 0), [])

  def test_changing_the_list_later_changes_nothing(self):
    prompts = _prompts(3)
    made = stream.Stream(prompts, seed=0, shuffle=False)
    prompts.reverse()
    self.assertEqual(_rows(made.take(0, 3)), [0, 1, 2])


class ComponentTest(absltest.TestCase):
  def test_the_first_has_the_order_of_a_single_source(self):
    first = stream.Stream(_prompts(5), seed=0, shuffle=True, component=0)
    self.assertEqual(first.take(0, 10), _stream(5).take(0, 10))

  def test_each_has_orders_of_its_own(self):
    orders = {
      tuple(
        _rows(
          stream.Stream(
            _prompts(30), seed=seed, shuffle=True, component=component
          ).take(30 * epoch, 30)
        )
      )
      for seed in (0, 1)
      for component in range(3)
      for epoch in (0, 1)
    }
    self.assertLen(orders, 12)


class MultipleOfTest(parameterized.TestCase):
  def _stream(self, count, multiple_of, *, shuffle=True):
    return stream.Stream(
      _prompts(count), seed=0, shuffle=shuffle, multiple_of=multiple_of
    )

  def test_an_epoch_ends_with_a_round(self):
    # 5 prompts in rounds of 2: 4 draws of the orders of the test above, 0 2 1
    # 4 3 and 3 2 4 1 0.
    prompts = self._stream(5, 2)
    self.assertLen(prompts, 4)
    draws = prompts.take(0, 8)
    self.assertEqual(_rows(draws), [0, 2, 1, 4, 3, 2, 4, 1])
    self.assertEqual([d.epoch for d in draws], [0] * 4 + [1] * 4)
    self.assertEqual([d.ordinal for d in draws], list(range(8)))
    self.assertEqual(prompts.take(3, 3), draws[3:6])

  def test_another_rest_is_left_out_each_epoch(self):
    prompts = self._stream(5, 4)
    left = {10 - sum(_rows(prompts.take(4 * epoch, 4))) for epoch in range(100)}
    self.assertEqual(left, {0, 1, 2, 3, 4})

  def test_without_shuffling_the_rest_is_the_same(self):
    prompts = self._stream(5, 2, shuffle=False)
    self.assertEqual(_rows(prompts.take(0, 8)), [0, 1, 2, 3] * 2)

  def test_where_rounds_divide_the_data_nothing_is_left_out(self):
    self.assertEqual(self._stream(6, 3).take(0, 14), _stream(6).take(0, 14))

  def test_fewer_prompts_than_a_round_name_the_flags(self):
    self.assertLen(self._stream(4, 4), 4)
    with self.assertRaisesRegex(
      ValueError,
      r'epoch of 3 prompts: a round draws 4; change --config\.data\.tail, '
      r'--config\.rollout\.prompts_per_step, .*--config\.sft\.examples',
    ):
      self._stream(3, 4)


class StreamTest(parameterized.TestCase):
  def test_its_length_is_an_epoch(self):
    self.assertLen(_stream(5), 5)

  def test_refuses_no_prompts(self):
    with self.assertRaisesRegex(ValueError, r'got 0.*--config\.data\.source'):
      _stream(0)

  def test_refuses_two_prompts_of_one_id(self):
    with self.assertRaisesRegex(ValueError, r'got 2 ids for 3 prompts'):
      stream.Stream(_prompts(2) + _prompts(1), seed=0, shuffle=False)

  @parameterized.parameters(-1, 2**64)
  def test_refuses_a_seed_that_is_no_key(self, seed):
    with self.assertRaisesRegex(ValueError, rf'got {seed};.*--config\.seed'):
      _stream(5, seed=seed)


if __name__ == '__main__':
  absltest.main()

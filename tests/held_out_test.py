"""Tests of `dapo_jax.data.held_out`."""

from absl.testing import absltest

from dapo_jax.data import held_out, records


def _prompts(count):
  return [
    records.make_prompt('d', [records.Message('user', f'{i}?')], str(i))
    for i in range(count)
  ]


class SplitTest(absltest.TestCase):
  def test_the_smallest_hashes_are_held_out(self):
    # sha256 begins with 75a0 for '0?', 6182 for '1?', 5e05 for '2?': the
    # places are 0.459, 0.381 and 0.367.
    golds = lambda found: [p.gold for p in found]
    train, held = held_out.split(_prompts(3), 0.4)
    self.assertEqual((golds(train), golds(held)), (['0'], ['2', '1']))
    train, held = held_out.split(_prompts(3)[::-1], 0.37)
    self.assertEqual((golds(train), golds(held)), (['1', '0'], ['2']))

  def test_no_share_holds_nothing_out(self):
    self.assertEqual(len(held_out.split(_prompts(9), 0.0)[0]), 9)

  def test_what_is_held_out_stays_so(self):
    few, more = (
      {p.gold for p in held_out.split(_prompts(500), frac)[1]}
      for frac in (0.1, 0.3)
    )
    self.assertContainsSubset(few, more)
    # 150 +- 3 standard deviations of 10.2.
    self.assertBetween(len(more), 119, 181)


if __name__ == '__main__':
  absltest.main()

"""Tests of `sampling.pages`."""

import collections

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.sampling import pages

_NONE = 10  # no page of a shard of 10


def _pool(**changes):
  sizes = dict(slots=4, shards=1, shard_pages=10, page_tokens=4, row_pages=5)
  return pages.Pool(pages.Sizes(**sizes | changes))


def _start(pool, slot, prompt, tokens, *, limit=8, ahead=2):
  return pool.start(
    slot,
    prompt,
    prompt_tokens=tokens,
    limit_tokens=limit,
    ahead_tokens=ahead,
  )


def _free_count(pool):
  return sum(map(len, pool._free))


def _row(pool, slot):
  return pool.table[slot].tolist()


class StartTest(parameterized.TestCase):
  def test_a_row_gets_pages_for_its_prompt_and_the_first_tokens(self):
    pool = _pool()
    # The prompt has entries 0..5; the first token comes of feeding the last
    # of them again, the second of feeding the first to entry 6: 2 pages.
    fill = _start(pool, 2, 'a', 6)
    self.assertEqual(_row(pool, 2), [0, 1, _NONE, _NONE, _NONE])
    self.assertEqual(fill.tolist(), [0, 1, _NONE, _NONE, _NONE])
    self.assertEqual(_free_count(pool), 8)

  @parameterized.parameters(
    # Prompt, first tokens: pages, and pages of the prompt that are shared.
    (1, 1, 1, 0),
    (4, 1, 1, 0),  # entry 3 is written again
    (5, 1, 2, 1),
    (5, 4, 2, 1),
    (5, 5, 3, 1),
    (8, 1, 2, 1),
    (9, 1, 3, 2),
  )
  def test_pages_that_hold_nothing_but_the_prompt_are_shared(
    self, tokens, ahead, count, shared
  ):
    pool = _pool(row_pages=5)
    _start(pool, 0, 'a', tokens, ahead=ahead)
    self.assertEqual(10 - _free_count(pool), count)
    fill = _start(pool, 1, 'a', tokens, ahead=ahead)
    self.assertEqual(10 - _free_count(pool), 2 * count - shared)
    self.assertEqual(pool.table[0, :shared].tolist(), list(range(shared)))
    self.assertEqual(pool.table[1, :shared].tolist(), list(range(shared)))
    # What is shared was written for the first; the prompt's end is its own.
    self.assertEqual((fill[:shared] == _NONE).tolist(), [True] * shared)
    self.assertEqual(fill[shared], pool.table[1, shared])
    self.assertEqual((fill[shared + 1 :] == _NONE).sum(), 4 - shared)

  def test_another_prompt_shares_nothing(self):
    pool = _pool()
    _start(pool, 0, 'a', 5)
    _start(pool, 1, 'b', 5)
    self.assertEqual(_row(pool, 1)[:2], [2, 3])

  def test_with_too_few_pages_nothing_changes(self):
    pool = _pool(shard_pages=3)
    _start(pool, 0, 'a', 6, limit=3)  # entries 0..7: 2 pages, no more ever
    before = pool.table.copy()
    self.assertIsNone(_start(pool, 1, 'b', 6))
    np.testing.assert_array_equal(pool.table, before)
    self.assertEqual(_free_count(pool), 1)
    # One that shares a page of the prompt fits.
    self.assertIsNotNone(_start(pool, 1, 'a', 6, limit=3))

  def test_a_page_is_left_for_every_row_that_may_grow(self):
    pool = _pool(shard_pages=4)
    _start(pool, 0, 'a', 6)  # 2 pages of up to 4
    self.assertIsNone(_start(pool, 1, 'b', 6))
    self.assertIsNotNone(_start(pool, 1, 'b', 3, limit=2))

  def test_shards_have_pages_of_their_own(self):
    pool = _pool(shards=2, shard_pages=3)
    _start(pool, 0, 'a', 6)
    fill = _start(pool, 2, 'a', 6)
    self.assertEqual(_row(pool, 0)[:2], [0, 1])
    self.assertEqual(_row(pool, 2)[:2], [0, 1])
    # A prompt is written once for each shard.
    self.assertEqual(fill[:2].tolist(), [0, 1])
    self.assertEqual([pool.shard_of(s) for s in range(4)], [0, 0, 1, 1])


class ExtendTest(absltest.TestCase):
  def test_a_row_takes_pages_as_it_grows_up_to_its_limit(self):
    pool = _pool()
    _start(pool, 0, 'a', 6)  # first token at entry 5
    slots = np.array([0])
    self.assertEqual(pool.short(slots, np.array([3])), [])  # entries to 7
    self.assertEqual(pool.short(slots, np.array([4])), [0])
    self.assertTrue(pool.extend(0, 4))
    self.assertEqual(_row(pool, 0), [0, 1, 2, _NONE, _NONE])
    # 8 tokens at most: entries to 12, 4 pages.
    self.assertTrue(pool.extend(0, 100))
    self.assertEqual(_row(pool, 0), [0, 1, 2, 3, _NONE])
    self.assertEqual(pool.short(slots, np.array([999])), [])

  def test_with_too_few_pages_it_takes_none(self):
    pool = _pool(shard_pages=3)
    _start(pool, 0, 'a', 6)
    self.assertFalse(pool.extend(0, 8))
    self.assertEqual(_row(pool, 0)[:3], [0, 1, 3])
    self.assertEqual(_free_count(pool), 1)


class ReleaseTest(absltest.TestCase):
  def test_shared_pages_stay_until_the_last_of_their_rows_is_gone(self):
    pool = _pool()
    _start(pool, 0, 'a', 5)
    _start(pool, 1, 'a', 5)
    self.assertEqual(_row(pool, 1)[:2], [0, 2])
    pool.release(0)
    self.assertEqual(_row(pool, 0), [_NONE] * 5)
    self.assertEqual(_free_count(pool), 8)
    # The next of the group still finds the prompt.
    self.assertEqual(_start(pool, 2, 'a', 5)[0], _NONE)
    pool.release(1)
    pool.release(2)
    self.assertEqual(_free_count(pool), 10)
    self.assertEqual(_start(pool, 0, 'a', 5)[0], 0)

  def test_no_page_is_lost_or_has_two_owners_in_any_order_of_calls(self):
    rng = np.random.default_rng(0)
    pool = _pool(slots=8, shards=2, shard_pages=13, row_pages=6)
    lengths = {}
    refused = 0
    for _ in range(3000):
      slot = int(rng.integers(8))
      if slot not in lengths:
        prompt = int(rng.integers(3))
        fill = _start(pool, slot, prompt, 3 + 4 * prompt, limit=9, ahead=3)
        if fill is None:
          refused += 1
        else:
          lengths[slot] = [prompt, 3]
      elif rng.random() < 0.5:
        lengths[slot][1] += 3
        refused += not pool.extend(slot, lengths[slot][1])
      else:
        del lengths[slot]
        pool.release(slot)
      self._check(pool, lengths)
    self.assertGreater(refused, 100)
    for slot in lengths:
      pool.release(slot)
    self.assertEqual(_free_count(pool), 26)

  def _check(self, pool, lengths):
    held = [set(), set()]
    owners = collections.defaultdict(set)
    for slot, (prompt, _) in lengths.items():
      shard = pool.shard_of(slot)
      row = [p for p in pool.table[slot].tolist() if p != 13]
      held[shard].update(row)
      for place, page in enumerate(row):
        # A page of two rows is one of their prompt, in the same place.
        whole = place < (3 + 4 * prompt - 1) // 4
        owners[shard, page].add((place, prompt) if whole else slot)
    self.assertTrue(all(len(found) == 1 for found in owners.values()))
    self.assertEqual(_free_count(pool), 26 - len(held[0]) - len(held[1]))


class OwnTest(absltest.TestCase):
  def test_each_slot_has_pages_of_its_own_in_its_shard(self):
    sizes = pages.Sizes(
      slots=4, shards=2, shard_pages=8, page_tokens=4, row_pages=4
    )
    table = [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    self.assertEqual(pages.own_table(sizes).tolist(), table)
    self.assertEqual(pages.own_pages(sizes, 3).tolist(), [4, 5, 6, 7])

  def test_of_fewer_pages_no_slot_has_any(self):
    sizes = pages.Sizes(
      slots=4, shards=2, shard_pages=7, page_tokens=4, row_pages=4
    )
    np.testing.assert_array_equal(pages.own_table(sizes), np.full((4, 4), 7))
    with self.assertRaisesRegex(
      ValueError, r'7 pages .* 2 slots x 4 .*--config.sampler.cache_gib'
    ):
      pages.own_pages(sizes, 3)


class WholeRowsTest(absltest.TestCase):
  def test_a_page_a_slot_is_always_there(self):
    pool = _pool(slots=3, shard_pages=3, page_tokens=32, row_pages=1)
    for slot in range(3):
      self.assertIsNotNone(_start(pool, slot, 'a', 12, limit=20, ahead=5))
      self.assertTrue(pool.extend(slot, 20))
    self.assertEqual(pool.short(np.arange(3), np.full(3, 20)), [])
    pool.release(1)
    self.assertIsNotNone(_start(pool, 1, 'b', 1, limit=20, ahead=5))


if __name__ == '__main__':
  absltest.main()

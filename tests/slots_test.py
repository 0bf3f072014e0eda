"""Tests of `sampling.slots`."""

import numpy as np
from absl.testing import absltest

from dapo_jax.sampling import pages
from dapo_jax.sampling import slots as slots_lib


def _slots(count=4, *, shards=1, shard_pages=8, row_pages=4):
  sizes = pages.Sizes(
    slots=count,
    shards=shards,
    shard_pages=shard_pages,
    page_tokens=4,
    row_pages=row_pages,
  )
  return slots_lib.Slots(pages.Pool(sizes))


def _give(slots, slot, owner, *, tokens=3, limit=12, ahead=2):
  return slots.give(
    slot, owner, prompt_tokens=tokens, limit_tokens=limit, ahead_tokens=ahead
  )


def _advance(slots, *generated):
  live = np.ones(len(generated), bool)
  return slots.advance(live, np.array(generated))


class SlotsTest(absltest.TestCase):
  def test_a_slot_is_taken_until_it_is_released(self):
    slots = _slots()
    self.assertFalse(slots.busy)
    _give(slots, 1, (7, 0))
    self.assertTrue(slots.busy)
    self.assertEqual(slots.free, [0, 2, 3])
    self.assertEqual(_advance(slots, 9, 5, 9, 9), (5, []))
    self.assertEqual(slots.longest_tokens, 3 + 5)
    self.assertEqual(slots.release([1]), [((7, 0), 5)])
    self.assertEqual(slots.free, [0, 1, 2, 3])
    self.assertEqual(slots.longest_tokens, 0)

  def test_a_chunk_is_counted_by_what_owners_got(self):
    slots = _slots()
    _give(slots, 0, (0, 0))
    _give(slots, 2, (0, 1))
    live = np.array([True, False, False, True])
    self.assertEqual(slots.advance(live, np.array([2, 8, 3, 8])), (5, [2]))
    slots.release([2])
    self.assertEqual(_advance(slots, 4, 8, 3, 8), (2, []))
    self.assertEqual(slots.advanced(np.array([5, 9, 9, 9])), [0])

  def test_without_pages_a_slot_stays_free(self):
    slots = _slots(shard_pages=2)
    self.assertIsNotNone(_give(slots, 0, (0, 0), limit=2))
    self.assertIsNone(_give(slots, 1, (1, 0), limit=12, ahead=6))
    self.assertEqual(slots.free, [1, 2, 3])

  def test_the_table_is_new_only_where_it_changed(self):
    slots = _slots()
    self.assertIsNotNone(slots.new_pages())
    self.assertIsNone(slots.new_pages())
    _give(slots, 0, (0, 0))
    first = slots.new_pages()
    self.assertEqual(first[0, 0], 0)
    _advance(slots, 1, 0, 0, 0)
    self.assertEqual(slots.make_room(1), [])
    self.assertIsNone(slots.new_pages())
    self.assertEqual(slots.make_room(2), [])
    self.assertEqual(slots.new_pages()[0, :2].tolist(), [0, 1])
    # What was handed out does not change later.
    self.assertEqual(first[0, 1], 8)


class MakeRoomTest(absltest.TestCase):
  def test_the_youngest_rows_give_way_to_the_oldest(self):
    slots = _slots(shard_pages=5)
    for slot, owner in ((2, (0, 0)), (0, (0, 1)), (3, (1, 0))):
      self.assertIsNotNone(_give(slots, slot, owner, limit=14))
    _advance(slots, 2, 2, 2, 2)
    # 3 rows of a page, 2 pages are free; each wants 3 pages for 10 tokens.
    lost = slots.make_room(8)
    self.assertEqual(lost, [(3, (1, 0), 2), (0, (0, 1), 2)])
    self.assertEqual(slots.free, [0, 1, 3])
    self.assertEqual(slots.new_pages()[2, :3].tolist(), [0, 3, 4])

  def test_a_row_that_needs_no_more_gives_way_too(self):
    slots = _slots(shard_pages=4)
    _give(slots, 0, (0, 0), limit=14, ahead=6)  # 2 pages
    _give(slots, 1, (1, 0), limit=2)  # 1 page, never more
    _advance(slots, 6, 1, 0, 0)
    self.assertEqual(slots.make_room(2), [])  # the last page
    _advance(slots, 8, 1, 0, 0)
    self.assertEqual(slots.make_room(4), [(1, (1, 0), 1)])
    self.assertEqual(slots.make_room(4), [])

  def test_a_shard_leaves_the_others_alone(self):
    slots = _slots(shards=2, shard_pages=4)
    for slot in range(4):
      self.assertIsNotNone(_give(slots, slot, (slot, 0), limit=14, ahead=1))
    _advance(slots, 1, 1, 1, 1)
    lost = slots.make_room(11)
    # Each shard of 4 pages holds one row of 4.
    self.assertEqual(lost, [(1, (1, 0), 1), (3, (3, 0), 1)])


if __name__ == '__main__':
  absltest.main()

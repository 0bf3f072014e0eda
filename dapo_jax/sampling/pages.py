"""Which slot has which pages of the cache: the host's books, no device.

A row takes pages as it grows, so the pool may be smaller than what all slots
could fill. Rows of one prompt share the pages that hold nothing but it.
Everything follows from the order of calls: every host of an engine that
makes the same calls hands out the same pages.
"""

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Sizes(NamedTuple):
  """Sizes of a pool; a cache of whole rows has pages of a whole row."""

  slots: int
  shards: int  # of the slots, each with pages of its own
  shard_pages: int
  page_tokens: int
  row_pages: int  # of the longest row


def own_table(sizes: Sizes) -> Int[np.ndarray, 'S W']:
  """Returns the table in which every slot has pages of its own, for ever.

  Where there are too few for that, no slot has any.
  """
  rows, width = sizes.slots // sizes.shards, sizes.row_pages
  table = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
  if rows * width > sizes.shard_pages:
    table = np.full_like(table, sizes.shard_pages)
  return np.tile(table, (sizes.shards, 1))


def own_pages(sizes: Sizes, slot: int) -> Int[np.ndarray, ' W']:
  """Returns the pages that are a slot's own.

  Raises:
    ValueError: where there are too few.
  """
  rows, width = sizes.slots // sizes.shards, sizes.row_pages
  if rows * width > sizes.shard_pages:
    raise ValueError(
      "JetStream's requests have pages of their own: "
      f'{sizes.shard_pages} pages are too few for '
      f'{rows} slots x {width} a device; change --config.sampler.cache_gib'
    )
  return np.arange(width, dtype=np.int32) + slot % rows * width


class Pool:
  """The pages of an engine's slots."""

  def __init__(self, sizes: Sizes):
    self._sizes = sizes
    # Page numbers are within a shard; one beyond the last is no page.
    self.table = np.full(
      (sizes.slots, sizes.row_pages), sizes.shard_pages, np.int32
    )
    # The lowest number last: it is taken first.
    free = list(range(sizes.shard_pages))[::-1]
    self._free = [free.copy() for _ in range(sizes.shards)]
    self._users = [Counter() for _ in range(sizes.shards)]
    self._shared: list[dict[Hashable, list[int]]] = [
      {} for _ in range(sizes.shards)
    ]
    self._prompts: list[Hashable | None] = [None] * sizes.slots
    self._counts = np.zeros(sizes.slots, np.int64)
    self._most = np.zeros(sizes.slots, np.int64)
    self._first = np.zeros(sizes.slots, np.int64)

  def start(
    self,
    slot: int,
    prompt: Hashable,
    *,
    prompt_tokens: int,
    limit_tokens: int,
    ahead_tokens: int,
  ) -> Int[np.ndarray, ' W'] | None:
    """Gives a free slot pages for a prompt and the first response tokens.

    Args:
      slot: the slot.
      prompt: what rows of one prompt have in common.
      prompt_tokens: its length.
      limit_tokens: most response tokens.
      ahead_tokens: response tokens that must have room now.

    Returns:
      The pages that the prompt is to be written to, in order, no page where
      another row has written already; None where too few are free. A page for
      every row that may still grow is left alone.
    """
    shard = self.shard_of(slot)
    held = self._shared[shard].get(prompt, [])
    # The last prompt token is fed again, into a page of the row's own.
    whole = (prompt_tokens - 1) // self._sizes.page_tokens
    ahead = min(ahead_tokens, limit_tokens)
    count = self._pages_for(prompt_tokens - 1 + ahead)
    if len(self._free[shard]) < count - len(held) + self._growing(shard):
      return None
    pages = list(held)
    pages += [self._free[shard].pop() for _ in range(count - len(held))]
    if whole and not held:
      self._shared[shard][prompt] = pages[:whole]
    self._users[shard].update(pages)
    self.table[slot, :count] = pages
    self._prompts[slot], self._first[slot] = prompt, prompt_tokens - 1
    self._counts[slot] = count
    self._most[slot] = self._pages_for(prompt_tokens - 1 + limit_tokens)
    fill = np.full_like(self.table[slot], self._sizes.shard_pages)
    written = self._pages_for(prompt_tokens)
    fill[len(held) : written] = pages[len(held) : written]
    return fill

  def extend(self, slot: int, response_tokens: int) -> bool:
    """Gives a row pages up to so many response tokens; False: too few."""
    count = self._pages_for(int(self._first[slot]) + response_tokens)
    count = min(count, int(self._most[slot]))
    more = count - int(self._counts[slot])
    if more <= 0:
      return True
    shard = self.shard_of(slot)
    if len(self._free[shard]) < more:
      return False
    pages = [self._free[shard].pop() for _ in range(more)]
    self._users[shard].update(pages)
    self.table[slot, self._counts[slot] : count] = pages
    self._counts[slot] = count
    return True

  def short(
    self, slots: Int[np.ndarray, ' k'], response_tokens: Int[np.ndarray, ' k']
  ) -> list[int]:
    """Returns the slots that have no room for so many response tokens."""
    last = self._first[slots] + response_tokens
    wanted = -(-last // self._sizes.page_tokens)
    lacking = np.minimum(wanted, self._most[slots]) > self._counts[slots]
    return np.asarray(slots)[lacking].tolist()

  def release(self, slot: int) -> None:
    """Takes a slot's pages back; those that others share stay theirs."""
    shard = self.shard_of(slot)
    users, prompt = self._users[shard], self._prompts[slot]
    # The lowest number is to be taken first again.
    for page in sorted(self.table[slot, : self._counts[slot]], reverse=True):
      users[page] -= 1
      if not users[page]:
        del users[page]
        self._free[shard].append(int(page))
    shared = self._shared[shard].get(prompt)
    if shared and shared[0] not in users:
      del self._shared[shard][prompt]
    self.table[slot] = self._sizes.shard_pages
    self._prompts[slot], self._counts[slot], self._most[slot] = None, 0, 0

  def shard_of(self, slot: int) -> int:
    """Returns the shard that a slot's pages are of."""
    return slot * self._sizes.shards // self._sizes.slots

  def _pages_for(self, tokens: int) -> int:
    return -(-tokens // self._sizes.page_tokens)

  def _growing(self, shard: int) -> int:
    """Returns how many rows of a shard may still want another page."""
    width = self._sizes.slots // self._sizes.shards
    mine = slice(shard * width, (shard + 1) * width)
    return int(np.sum(self._counts[mine] < self._most[mine]))

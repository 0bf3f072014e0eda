"""What the host knows of the slots, without asking the device."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from dapo_jax.sampling import pages as pages_lib


class Slots:
  """Who has which slot, how long its row is and which pages it has."""

  def __init__(self, pool: pages_lib.Pool):
    slots = len(pool.table)
    self.owners: list[tuple[int, int] | None] = [None] * slots
    # What was looked at for stop strings, if there are any.
    self.texts: list[list[int]] = [[] for _ in range(slots)]
    self._pool = pool
    self._prompt_tokens = np.zeros(slots, np.int64)
    self._generated = np.zeros(slots, np.int64)
    self._taken = np.zeros(slots, bool)
    # Rows are numbered as they start.
    self._age = np.zeros(slots, np.int64)
    self._started_count = 0
    self._pages_changed = True

  @property
  def busy(self) -> bool:
    """Whether any slot has an owner."""
    return bool(self._taken.any())

  @property
  def free(self) -> list[int]:
    """The slots without an owner."""
    return np.flatnonzero(~self._taken).tolist()

  @property
  def longest_tokens(self) -> int:
    """The longest row, prompt included."""
    lengths = self._prompt_tokens + self._generated
    return int(np.max(lengths, where=self._taken, initial=0))

  def give(
    self,
    slot: int,
    owner: tuple[int, int],
    *,
    prompt_tokens: int,
    limit_tokens: int,
    ahead_tokens: int,
  ) -> Int[np.ndarray, ' W'] | None:
    """Gives a free slot to a sample; returns what `Pool.start` does."""
    fill = self._pool.start(
      slot,
      owner[0],
      prompt_tokens=prompt_tokens,
      limit_tokens=limit_tokens,
      ahead_tokens=ahead_tokens,
    )
    if fill is not None:
      self.owners[slot], self._taken[slot] = owner, True
      self._prompt_tokens[slot], self._generated[slot] = prompt_tokens, 0
      self.texts[slot] = []
      self._age[slot] = self._started_count
      self._started_count += 1
      self._pages_changed = True
    return fill

  def make_room(
    self, ahead_tokens: int
  ) -> list[tuple[int, tuple[int, int], int]]:
    """Gives every row pages for so many tokens more, the oldest first.

    Where there are too few, the youngest row of the shard has to go: it has
    the least to lose, and the oldest always gets on. Returns the slots that
    were taken away, each with its owner and the tokens it had, the youngest
    first.
    """
    taken = np.flatnonzero(self._taken)
    wanted = self._generated + ahead_tokens
    lost = []
    short = self._pool.short(taken, wanted[taken])
    for slot in sorted(short, key=lambda s: self._age[s]):
      self._pages_changed = True
      while self._taken[slot] and not self._pool.extend(
        slot, int(wanted[slot])
      ):
        youngest = self._youngest(self._pool.shard_of(slot))
        [(owner, tokens)] = self.release([youngest])
        lost.append((youngest, owner, tokens))
    return lost

  def new_pages(self) -> Int[np.ndarray, 'S W'] | None:
    """Returns the table of pages if it changed since the last call."""
    if not self._pages_changed:
      return None
    self._pages_changed = False
    return self._pool.table.copy()

  def advance(
    self, live: np.ndarray, generated: np.ndarray
  ) -> tuple[int, list[int]]:
    """Returns the tokens since the last call, and the slots that ended."""
    tokens = int(np.sum(generated - self._generated, where=self._taken))
    self._generated = np.where(self._taken, generated, 0)
    return tokens, np.flatnonzero(self._taken & ~live).tolist()

  def advanced(self, generated: np.ndarray) -> list[int]:
    """Returns the slots that have more tokens than at the last `advance`."""
    more = self._taken & (generated > self._generated)
    return np.flatnonzero(more).tolist()

  def release(self, slots: Sequence[int]) -> list[tuple[tuple[int, int], int]]:
    """Frees slots; returns the owner and the response's length of each."""
    found = []
    for slot in slots:
      found.append((self.owners[slot], int(self._generated[slot])))
      self.owners[slot], self._taken[slot] = None, False
      self._pool.release(slot)
    return found

  def _youngest(self, shard: int) -> int:
    taken = np.flatnonzero(self._taken).tolist()
    mine = [slot for slot in taken if self._pool.shard_of(slot) == shard]
    return max(mine, key=lambda slot: self._age[slot])

"""How samples are put into slots: a few at a time, in few sizes.

Most often a single slot is free, sometimes as many as a group has samples.
Each size is a program, so there are three; what is missing to one names a slot
that does not exist.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int, UInt32

from dapo_jax.sampling import token_choice

WIDTHS = (1, 4, 16)


class Samples(NamedTuple):
  """How the samples of one insertion are drawn; one entry a slot."""

  slots: Int[np.ndarray, ' G']  # a number beyond the last slot is ignored
  keys: UInt32[Array | np.ndarray, 'G 2']
  limits_tokens: Int[np.ndarray, ' G']
  choice: token_choice.Choice
  # Pages to write the prompt to, see `pages.Pool.start`; None where slots have
  # rows of their own.
  pages: Int[np.ndarray, 'G W'] | None = None


def parts(samples: Samples) -> Iterator[Samples]:
  """Yields the samples, at most as many at a time as the largest size."""
  keys = np.asarray(samples.keys)
  for begin in range(0, len(samples.slots), WIDTHS[-1]):
    part = slice(begin, begin + WIDTHS[-1])
    yield Samples(
      samples.slots[part],
      keys[part],
      samples.limits_tokens[part],
      samples.choice,
      None if samples.pages is None else samples.pages[part],
    )


def nowhere(width: int, *, slots: int, pages: Int[np.ndarray, ' W']) -> Samples:
  """Returns `width` samples that no slot takes, to compile a program with.

  Nor a page: those that are named are of no slot's shard.
  """
  return Samples(
    np.full(width, slots),
    np.zeros((width, 2), np.uint32),
    np.ones(width, np.int32),
    token_choice.Choice(temperature=0.0),
    np.tile(pages, (width, 1)),
  )


def padded(samples: Samples, *, slots: int) -> Samples:
  """Returns the samples filled up to the next size, in the slots' types.

  What is filled in has no slot, and no page either: see `cache_layout`.
  """
  count = len(samples.slots)
  width = next(w for w in WIDTHS if w >= count)
  fill = lambda x, value: np.concatenate(
    [x, np.full((width - count, *x.shape[1:]), value, x.dtype)]
  )
  return Samples(
    fill(samples.slots.astype(np.int32), slots),
    fill(np.asarray(samples.keys), 0),
    fill(samples.limits_tokens.astype(np.int32), 1),
    token_choice.as_arrays(samples.choice),
    None if samples.pages is None else fill(samples.pages, 0),
  )

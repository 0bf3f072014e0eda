"""Plans where prompts and responses stand in packed rows, from lengths alone.

Host only. Equal lengths give an equal plan, whoever makes it: what needs no
token can be known of all rows where only some of them are filled.

A micro-batch is computed up to its width: whole rows, or a quarter of them if
that holds all. So what is left when whole micro-batches are full takes no
whole one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

# Shorter rows are not cut: a program more costs more than they would save.
_LEAST_CUT_TOKENS = 128
# Four of a quarter are a whole one.
_MOST_NARROW = 3


class Length(NamedTuple):
  """What a plan knows of a segment."""

  prompt_number: int  # segments of one number have the same prompt
  prompt_tokens: int
  response_tokens: int


class Block(NamedTuple):
  """Numbers of the segments that stand behind one copy of their prompt."""

  segments: tuple[int, ...]
  tokens: int  # places in a row


# Flat row, first place and length of each segment's response.
Places = tuple[tuple[int, int, int], ...]


class Plan(NamedTuple):
  """Which blocks stand in which row, one after the other, and how full it is.

  Flat row r is row r % R of micro-batch r // R.
  """

  rows: tuple[tuple[Block, ...], ...]
  widths: tuple[int, ...]  # of the micro-batches that hold segments, falling
  real_tokens: int
  row_tokens: int  # all that is computed: R times the sum of the widths


def widths(row_tokens: int) -> tuple[int, ...]:
  """Returns the widths that programs know: whole rows, and a quarter.

  Rounded up to what kernels take whole, 128 places where rows are long. One
  more is one more copy of all layers in every program.
  """
  if row_tokens < _LEAST_CUT_TOKENS:
    return (row_tokens,)
  step = 128 if row_tokens >= 1024 else 8
  return (row_tokens, -(-row_tokens // 4 // step) * step)


def plan(
  lengths: Sequence[Length],
  *,
  row_tokens: int,
  micro_batch_rows: int,
  share_prompts: bool,
) -> Plan:
  """Returns where segments of these lengths go.

  With `share_prompts` responses to a prompt stand behind one copy of it in a
  row, else each has its own. Of the micro-batches that could hold everything,
  from the fewest places on, the first are taken in which it also fits.

  Raises:
    ValueError: when a prompt and one response are longer than a row.
  """
  parts = _parts(lengths, row_tokens=row_tokens, share_prompts=share_prompts)
  for sizes in _sizes(
    parts,
    row_tokens=row_tokens,
    micro_batch_rows=micro_batch_rows,
    most=-(-len(lengths) // micro_batch_rows),
  ):
    rooms = [size for size in sizes for _ in range(micro_batch_rows)]
    rows = _placed(parts, rooms)
    if rows is not None:
      return _made(rows, row_tokens, micro_batch_rows)
  raise AssertionError('a row for each segment holds everything')


def places(plan: Plan, lengths: Sequence[Length]) -> Places:
  """Returns where the response of each segment stands."""
  found = {}
  for row, blocks in enumerate(plan.rows):
    begin = 0
    for block in blocks:
      begin += lengths[block.segments[0]].prompt_tokens - 1
      for number in block.segments:
        tokens = lengths[number].response_tokens
        found[number] = (row, begin, tokens)
        begin += tokens
  return tuple(found[number] for number in range(len(lengths)))


class _Part(NamedTuple):
  """Segments of one prompt that stay together."""

  prompt: int  # parts of one number can share a copy
  prefix: int  # places of the copy
  tokens: int  # of the responses
  segments: tuple[int, ...]


def _parts(
  lengths: Sequence[Length], *, row_tokens: int, share_prompts: bool
) -> list[_Part]:
  """Returns the segments in parts, the longest first.

  Responses that share a prompt stay together up to a quarter of a row: small
  enough to fill rows well, and where prompts are the larger part of all
  tokens few copies of them are made.
  """
  by_prompt: dict[int, list[int]] = {}
  for number, length in enumerate(lengths):
    key = length.prompt_number if share_prompts else number
    by_prompt.setdefault(key, []).append(number)
  found = []
  for key, numbers in by_prompt.items():
    prefix = lengths[numbers[0]].prompt_tokens - 1
    tokens = [lengths[n].response_tokens for n in numbers]
    if prefix + max(tokens) > row_tokens:
      raise ValueError(
        f'a prompt and response take {prefix + max(tokens)} tokens, more '
        f'than a row of {row_tokens}; change --config.learner.pack_tokens'
      )
    for part in _together(tokens, room=row_tokens // 4 - prefix):
      members = tuple(numbers[i] for i in part)
      found.append(_Part(key, prefix, sum(tokens[i] for i in part), members))
  return sorted(found, key=lambda p: (-p.prefix - p.tokens, p.segments))


def _together(tokens: Sequence[int], *, room: int) -> list[list[int]]:
  """Returns numbers of responses that fit together; a longer one is alone."""
  short = [i for i, n in enumerate(tokens) if n <= room]
  bins = first_fit([tokens[i] for i in short], room=room)
  alone = [[i] for i, n in enumerate(tokens) if n > room]
  return alone + [[short[i] for i in part] for part in bins]


def first_fit(lengths: Sequence[int], *, room: int) -> list[list[int]]:
  """Returns bins of item numbers: first fit, the longest first."""
  order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
  bins: list[list[int]] = []
  free: list[int] = []
  for i in order:
    place = next((b for b, f in enumerate(free) if f >= lengths[i]), None)
    if place is None:
      place = len(bins)
      bins.append([])
      free.append(room)
    bins[place].append(i)
    free[place] -= lengths[i]
  return bins


def _sizes(
  parts: Sequence[_Part], *, row_tokens: int, micro_batch_rows: int, most: int
) -> Iterator[tuple[int, ...]]:
  """Yields widths of micro-batches that may hold all, the least places first.

  Whole ones and a few narrow ones; `most` whole ones hold everything, so that
  there is always an end, and there are never more.
  """
  prefixes = {p.prompt: p.prefix for p in parts}
  tokens = sum(prefixes.values()) + sum(p.tokens for p in parts)
  # No two of these share a row.
  large = sum(2 * (p.prefix + p.tokens) > row_tokens + p.prefix for p in parts)
  whole, *narrow = widths(row_tokens)
  found = [
    (whole,) * count + tuple(narrow) * more
    for count in range(-(-large // micro_batch_rows), most + 1)
    for more in range(min(_MOST_NARROW, most - count) + 1 if narrow else 1)
  ]
  enough = (s for s in found if micro_batch_rows * sum(s) >= tokens)
  yield from sorted(enough, key=lambda sizes: (sum(sizes), len(sizes)))


def _placed(
  parts: Sequence[_Part], rooms: Sequence[int]
) -> list[list[_Part]] | None:
  """Returns the parts of each row; None if one finds no place.

  A part goes where a copy of its prompt stands already, else where the least
  room is that holds it.
  """
  free = np.array(rooms, np.int64)
  rows: list[list[_Part]] = [[] for _ in rooms]
  copies: dict[int, list[int]] = {}
  for part in parts:
    known = copies.setdefault(part.prompt, [])
    tight = [r for r in known if free[r] >= part.tokens]
    if tight:
      row, takes = min(tight, key=lambda r: (free[r], r)), part.tokens
    else:
      takes = part.prefix + part.tokens
      fits = np.flatnonzero(free >= takes)
      if not len(fits):
        return None
      row = int(fits[np.argmin(free[fits])])
      known.append(row)
    free[row] -= takes
    rows[row].append(part)
  return rows


def _made(
  rows: Sequence[Sequence[_Part]], row_tokens: int, micro_batch_rows: int
) -> Plan:
  """Returns the plan of these rows, the widest micro-batches first."""
  blocks = [_blocks(row) for row in rows]
  found = []
  for begin in range(0, len(blocks), micro_batch_rows):
    batch = blocks[begin : begin + micro_batch_rows]
    used = max(sum(b.tokens for b in row) for row in batch)
    if used:
      found.append((min(w for w in widths(row_tokens) if w >= used), batch))
  # Stable: of one width they stay in order.
  found.sort(key=lambda one: -one[0])
  return Plan(
    tuple(row for _, batch in found for row in batch),
    tuple(width for width, _ in found),
    real_tokens=sum(b.tokens for row in blocks for b in row),
    row_tokens=micro_batch_rows * sum(width for width, _ in found),
  )


def _blocks(parts: Sequence[_Part]) -> tuple[Block, ...]:
  """Returns a row's blocks: its parts, those of one prompt together."""
  by_prompt: dict[int, list[_Part]] = {}
  for part in parts:
    by_prompt.setdefault(part.prompt, []).append(part)
  return tuple(
    Block(
      tuple(n for part in own for n in part.segments),
      own[0].prefix + sum(part.tokens for part in own),
    )
    for own in by_prompt.values()
  )

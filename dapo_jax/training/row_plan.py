"""Plans where prompts and responses stand in packed rows, from lengths alone.

Host only. Equal lengths give an equal plan, whoever makes it: what needs no
token can be known of all rows where only some of them are filled.
"""

from collections.abc import Sequence
from typing import NamedTuple


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
  micro_batches: int  # the first so many hold segments
  real_tokens: int
  row_tokens: int  # of the micro-batches that are computed


def plan(
  lengths: Sequence[Length],
  *,
  row_tokens: int,
  micro_batch_rows: int,
  share_prompts: bool,
) -> Plan:
  """Returns where segments of these lengths go.

  With `share_prompts` the responses to a prompt stand behind as few copies of
  it as fit, else each has its own.

  Raises:
    ValueError: when a prompt and one response are longer than a row.
  """
  parts = blocks(lengths, row_tokens=row_tokens, share_prompts=share_prompts)
  bins = first_fit([b.tokens for b in parts], room=row_tokens)
  micro_batches = -(-len(bins) // micro_batch_rows)
  return Plan(
    tuple(tuple(parts[n] for n in numbers) for numbers in bins),
    micro_batches=micro_batches,
    real_tokens=sum(b.tokens for b in parts),
    row_tokens=micro_batches * micro_batch_rows * row_tokens,
  )


def places(plan: Plan, lengths: Sequence[Length]) -> Places:
  """Returns where the response of each segment stands."""
  found = {}
  for row, parts in enumerate(plan.rows):
    begin = 0
    for block in parts:
      begin += lengths[block.segments[0]].prompt_tokens - 1
      for number in block.segments:
        tokens = lengths[number].response_tokens
        found[number] = (row, begin, tokens)
        begin += tokens
  return tuple(found[number] for number in range(len(lengths)))


def blocks(
  lengths: Sequence[Length], *, row_tokens: int, share_prompts: bool
) -> list[Block]:
  """Returns the blocks of a minibatch, none longer than a row.

  Raises:
    ValueError: when a prompt and one response are longer than a row.
  """
  by_prompt: dict[int, list[int]] = {}
  for number, length in enumerate(lengths):
    key = length.prompt_number if share_prompts else number
    by_prompt.setdefault(key, []).append(number)
  found = []
  for numbers in by_prompt.values():
    prefix = lengths[numbers[0]].prompt_tokens - 1
    tokens = [lengths[n].response_tokens for n in numbers]
    if prefix + max(tokens) > row_tokens:
      raise ValueError(
        f'a prompt and response take {prefix + max(tokens)} tokens, more '
        f'than a row of {row_tokens}; change --config.learner.pack_tokens'
      )
    found += [
      Block(
        tuple(numbers[i] for i in part), prefix + sum(tokens[i] for i in part)
      )
      for part in first_fit(tokens, room=row_tokens - prefix)
    ]
  return found


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

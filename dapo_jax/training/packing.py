"""Packs prompts and responses into rows of one length, for the update.

A segment is one prompt's copy and one response. Its last token is predicted
but never fed, so a segment takes prompt + response - 1 places: place j feeds
a token and predicts the next one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int


class Segment(NamedTuple):
  """One response and what the loss needs of it."""

  prompt_tokens: Int[np.ndarray, ' T']
  response_tokens: Int[np.ndarray, ' T']
  logp_sampler: Float[np.ndarray, ' T']
  advantage: float
  token_weight: float


class Rows(NamedTuple):
  """Packed rows of a minibatch: M micro-batches of R rows of T places.

  `token_weight` is 0 at every place that does not predict a response token;
  it alone says what counts.
  """

  tokens: Int[Array | np.ndarray, 'M R T']
  targets: Int[Array | np.ndarray, 'M R T']
  positions: Int[Array | np.ndarray, 'M R T']
  segment_ids: Int[Array | np.ndarray, 'M R T']  # 0 = padding
  is_response: Float[Array | np.ndarray, 'M R T']  # 1 where one is predicted
  token_weight: Float[Array | np.ndarray, 'M R T']
  advantage: Float[Array | np.ndarray, 'M R T']
  logp_sampler: Float[Array | np.ndarray, 'M R T']


class Packed(NamedTuple):
  """Rows, and how much of them is used."""

  rows: Rows
  micro_batches: int  # the first so many hold segments; the rest is empty
  real_tokens: int
  row_tokens: int  # of the micro-batches that are computed


def segment_tokens(segment: Segment) -> int:
  """Returns the places a segment takes in a row."""
  return len(segment.prompt_tokens) + len(segment.response_tokens) - 1


def plan(lengths_tokens: Sequence[int], *, row_tokens: int) -> list[list[int]]:
  """Returns rows of segment numbers: first fit, the longest first.

  Raises:
    ValueError: when a segment is longer than a row.
  """
  order = sorted(
    range(len(lengths_tokens)), key=lambda i: (-lengths_tokens[i], i)
  )
  rows: list[list[int]] = []
  free: list[int] = []
  for i in order:
    length = lengths_tokens[i]
    if length > row_tokens:
      raise ValueError(
        f'a prompt and response of {length} tokens do not fit a row of '
        f'{row_tokens}; change --config.learner.pack_tokens'
      )
    row = next((r for r, room in enumerate(free) if room >= length), None)
    if row is None:
      row = len(rows)
      rows.append([])
      free.append(row_tokens)
    rows[row].append(i)
    free[row] -= length
  return rows


def pack(
  segments: Sequence[Segment],
  *,
  row_tokens: int,
  micro_batch_rows: int,
  max_segments: int,
) -> Packed:
  """Returns the segments packed into rows.

  The shapes depend on the keywords alone, never on the segments: room is
  made for `max_segments` rows. How many micro-batches are computed is a
  number, so other lengths compile nothing.
  """
  lengths = [segment_tokens(s) for s in segments]
  rows_plan = plan(lengths, row_tokens=row_tokens)
  micro_batches = -(-len(rows_plan) // micro_batch_rows)
  most = -(-max_segments // micro_batch_rows)
  flat = _empty(most * micro_batch_rows, row_tokens)
  for row, numbers in enumerate(rows_plan):
    begin = 0
    for segment_id, number in enumerate(numbers, start=1):
      _write(flat, row, begin, segment_id, segments[number])
      begin += lengths[number]
  shape = (most, micro_batch_rows, row_tokens)
  return Packed(
    Rows(*(field.reshape(shape) for field in flat)),
    micro_batches=micro_batches,
    real_tokens=sum(lengths),
    row_tokens=micro_batches * micro_batch_rows * row_tokens,
  )


def _empty(rows: int, row_tokens: int) -> Rows:
  kinds = {'is_response', 'token_weight', 'advantage', 'logp_sampler'}
  return Rows(
    *(
      np.zeros(
        (rows, row_tokens),
        np.float32 if field in kinds else np.int32,
      )
      for field in Rows._fields
    )
  )


def _write(flat: Rows, row: int, begin: int, segment_id: int, s: Segment):
  """Writes one segment into its places of a row."""
  sequence = np.concatenate([s.prompt_tokens, s.response_tokens])
  length = len(sequence) - 1
  whole = slice(begin, begin + length)
  flat.tokens[row, whole] = sequence[:-1]
  flat.targets[row, whole] = sequence[1:]
  flat.positions[row, whole] = np.arange(length)
  flat.segment_ids[row, whole] = segment_id
  response = slice(begin + len(s.prompt_tokens) - 1, begin + length)
  flat.is_response[row, response] = 1.0
  flat.token_weight[row, response] = s.token_weight
  flat.advantage[row, response] = s.advantage
  flat.logp_sampler[row, response] = s.logp_sampler

"""Packs prompts and responses into rows of one length, for the update.

A row holds blocks. A block is one copy of a prompt and one or more responses
to it, each of which sees the prompt and itself. A place feeds a token and
predicts the next one; the last prompt token, which predicts the first
response token, is fed once a response. So a block of a prompt of P tokens and
responses of n tokens each takes P - 1 + sum(n) places.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from dapo_jax.training import row_plan


class Segment(NamedTuple):
  """One response and what the loss needs of it."""

  prompt_number: int  # segments of one number have the same prompt
  prompt_tokens: Int[np.ndarray, ' T']
  response_tokens: Int[np.ndarray, ' T']
  logp_sampler: Float[np.ndarray, ' T']
  token_weight: float


Places = row_plan.Places


class Rows(NamedTuple):
  """Packed rows of a minibatch: M micro-batches of R rows of T places.

  A place sees the places up to itself that have its own segment id or that
  have its prefix id as their segment id. The loss goes by
  `token_weight`, 0 where no response token is predicted; what is measured of
  the behaviour policy goes by `is_response`.
  """

  tokens: Int[Array | np.ndarray, 'M R T']
  targets: Int[Array | np.ndarray, 'M R T']
  positions: Int[Array | np.ndarray, 'M R T']
  segment_ids: Int[Array | np.ndarray, 'M R T']  # 1 to T; 0 = padding
  prefix_ids: Int[Array | np.ndarray, 'M R T']
  is_response: Float[Array | np.ndarray, 'M R T']  # 1 where one is predicted
  token_weight: Float[Array | np.ndarray, 'M R T']
  logp_sampler: Float[Array | np.ndarray, 'M R T']


_FLOATS = ('is_response', 'token_weight', 'logp_sampler')
# Of its fields.
ROW_TYPES = Rows(
  *(np.float32 if name in _FLOATS else np.int32 for name in Rows._fields)
)


class Packed(NamedTuple):
  """Rows, and how much of them is used."""

  rows: Rows
  places: Places
  micro_batches: int  # the first so many hold segments; the rest is empty
  real_tokens: int
  row_tokens: int  # of the micro-batches that are computed


def pack(
  segments: Sequence[Segment],
  *,
  row_tokens: int,
  micro_batch_rows: int,
  max_segments: int,
  share_prompts: bool,
) -> Packed:
  """Returns the segments packed into rows: a plan, filled.

  The shapes depend on the keywords alone, never on the segments: room is
  made for `max_segments` rows. How many micro-batches are computed, and which
  of their widths, is told by numbers, so other lengths compile nothing.

  Args:
    segments: of a minibatch.
    row_tokens: T.
    micro_batch_rows: R.
    max_segments: most segments that a minibatch can have.
    share_prompts: see `row_plan.plan`.

  Raises:
    ValueError: when a prompt and one response are longer than a row.
  """
  plan = row_plan.plan(
    [length(s) for s in segments],
    row_tokens=row_tokens,
    micro_batch_rows=micro_batch_rows,
    share_prompts=share_prompts,
  )
  most = -(-max_segments // micro_batch_rows)
  shape = (most, micro_batch_rows, row_tokens)
  return planned(plan, segments, shape=shape, held=range(micro_batch_rows))


def planned(
  plan: row_plan.Plan,
  segments: Sequence[Segment],
  *,
  shape: tuple[int, int, int],
  held: Container[int],
) -> Packed:
  """Returns the segments packed by a plan of their lengths.

  Args:
    plan: where they stand.
    segments: of a minibatch, those of rows that are not `held` by their
      lengths alone.
    shape: of the rows, [M, R, T].
    held: rows of a micro-batch that this process trains, and that are filled.
  """
  return Packed(
    fill(plan, segments, shape=shape, held=held),
    places=row_plan.places(plan, [length(s) for s in segments]),
    micro_batches=len(plan.widths),
    real_tokens=plan.real_tokens,
    row_tokens=plan.row_tokens,
  )


def length(segment: Segment) -> row_plan.Length:
  """Returns what a plan knows of a segment."""
  return row_plan.Length(
    segment.prompt_number,
    len(segment.prompt_tokens),
    len(segment.response_tokens),
  )


def fill(
  plan: row_plan.Plan,
  segments: Sequence[Segment],
  *,
  shape: tuple[int, int, int],
  held: Container[int],
) -> Rows:
  """Returns the rows of a plan, [M, R, T].

  Those beyond it are padding, and so are those of a micro-batch that are not
  `held`.
  """
  micro_batches, rows, row_tokens = shape
  flat = _empty(micro_batches * rows, row_tokens)
  for row, blocks in enumerate(plan.rows):
    if row % rows not in held:
      continue
    begin, free_id = 0, 1
    for block in blocks:
      members = [segments[n] for n in block.segments]
      _write(_Place(flat, row, begin, free_id), members)
      begin += block.tokens
      free_id += len(members) + _has_prefix_id(members)
  return Rows(*(field.reshape(shape) for field in flat))


def take(
  field: Float[np.ndarray, 'M R T'], places: Places
) -> list[Float[np.ndarray, ' _']]:
  """Returns what a field of the rows holds for each segment's response."""
  flat = field.reshape(-1, field.shape[-1])
  return [flat[row, begin : begin + n] for row, begin, n in places]


def spread(
  values: Sequence[float | Float[np.ndarray, ' _']],
  places: Places,
  *,
  shape: tuple[int, int, int],
) -> Float[np.ndarray, 'M R T']:
  """Returns a field of the rows: each segment's value on its response.

  The value is one number or one a token; places of no response hold 0.
  """
  flat = np.zeros((shape[0] * shape[1], shape[2]), np.float32)
  for value, (row, begin, n) in zip(values, places, strict=True):
    flat[row, begin : begin + n] = value
  return flat.reshape(shape)


class _Place(NamedTuple):
  """Where in the rows a block goes."""

  flat: Rows
  row: int
  begin: int
  free_id: int  # segment ids from here on are free in this row


def _empty(rows: int, row_tokens: int) -> Rows:
  return Rows(*(np.zeros((rows, row_tokens), kind) for kind in ROW_TYPES))


def _has_prefix_id(members: Sequence[Segment]) -> bool:
  """Returns whether the prompt of a block is a segment of its own.

  Not alone behind it, where a response is of the same segment, nor where the
  prompt has no place of its own: so a row has no more ids than places.
  """
  return len(members) > 1 and len(members[0].prompt_tokens) > 1


def _write(place: _Place, members: Sequence[Segment]) -> None:
  """Writes one prompt and the responses behind it."""
  flat, row, begin, prefix_id = place
  prompt = members[0].prompt_tokens
  prefix = slice(begin, begin + len(prompt) - 1)
  flat.tokens[row, prefix] = prompt[:-1]
  flat.targets[row, prefix] = prompt[1:]
  flat.positions[row, prefix] = np.arange(len(prompt) - 1)
  flat.segment_ids[row, prefix] = prefix_id
  flat.prefix_ids[row, prefix] = prefix_id
  begin = prefix.stop
  shared = _has_prefix_id(members)
  for number, s in enumerate(members):
    here = slice(begin, begin + len(s.response_tokens))
    flat.tokens[row, begin] = prompt[-1]
    flat.tokens[row, begin + 1 : here.stop] = s.response_tokens[:-1]
    flat.targets[row, here] = s.response_tokens
    flat.positions[row, here] = np.arange(here.stop - begin) + len(prompt) - 1
    segment_id = prefix_id + number + shared
    flat.segment_ids[row, here] = segment_id
    # Where the prompt is no segment its own id says all there is to say.
    flat.prefix_ids[row, here] = prefix_id if shared else segment_id
    flat.is_response[row, here] = 1.0
    flat.token_weight[row, here] = s.token_weight
    flat.logp_sampler[row, here] = s.logp_sampler
    begin = here.stop

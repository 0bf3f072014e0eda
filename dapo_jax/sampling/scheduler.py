"""The rollout loop over an engine: continuous batching, one group at a time.

No threads and no clocks decide anything here: which sample gets which slot
depends on the requests and the tokens alone, so every host of an engine
issues the same programs. JetStream's own driver is not used for rollouts: it
prefills a prompt once a sample, drops the EOS and carries no log-probs.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, UInt32

from dapo_jax.model import decoder
from dapo_jax.sampling import decode, stop_strings, token_choice
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import slots as slots_lib


class Request(NamedTuple):
  """A prompt that wants `samples` responses."""

  ordinal: int  # of the draw, the root of its noise
  prompt_tokens: Int[np.ndarray, ' T']
  samples: int
  # Most tokens of each sample, [tokens]; None = the call's limit for all.
  limits_tokens: Int[np.ndarray, ' G'] | None = None


class Sampling(NamedTuple):
  """How responses are drawn; the same for all requests of a call."""

  purpose: token_choice.Purpose
  seed: int
  choice: token_choice.Choice
  limit_tokens: int
  chunk_tokens: int
  find_stop: stop_strings.FindStop | None = None


class Completion(NamedTuple):
  """One response."""

  tokens: Int[np.ndarray, ' T']  # the EOS included where it was sampled
  logp: Float[np.ndarray, ' T']
  # 'eos'; 'stop' by a stop string, which its last token completes; or
  # 'length' at the most tokens, which never exceed the context.
  finish: str


class ChunkReport(NamedTuple):
  """What one decode chunk did."""

  steps: int
  tokens: int
  prefills: int
  slots: int
  seconds: float
  # Of these, seconds from when the chunk before was done until this one was
  # handed to the device, which waited.
  host_s: float = 0.0
  # Rows that gave way to older ones for want of pages, and the tokens they
  # had: they are sampled again.
  evicted: int = 0
  lost_tokens: int = 0

  @property
  def busy_frac(self) -> float:
    """Share of slot-steps that made a token."""
    return self.tokens / max(1, self.steps * self.slots)


def generate(
  engine: engine_lib.Engine,
  params: decoder.Params,
  requests: Sequence[Request],
  sampling: Sampling,
  *,
  report: Callable[[ChunkReport], None],
) -> Iterator[tuple[int, tuple[Completion, ...]]]:
  """Yields (index of the request, its completions) as groups are complete.

  Requests are served first come, first served. Each prompt is prefilled once
  and copied to slots as they become free; a request does not wait for as
  many slots as it has samples. The order of completion varies with the
  sizes; the tokens do not, as far as the arithmetic allows.
  """
  table = slots_lib.Slots(engine.new_pool())
  queue = _Queue(list(_jobs(requests, sampling)))
  done: dict[int, dict[int, Completion]] = {}
  state, ended = engine.init_decode_state(), []
  ready = time.perf_counter()
  while queue.waiting or table.busy or ended:
    begin, sent, steps = ready, _Sent(), None
    if queue.waiting or table.busy:
      state, sent = _prepare(
        engine, params, state, table, queue, sampling.chunk_tokens
      )
      state, steps = engine.generate_chunk(
        params,
        state,
        max_steps=sampling.chunk_tokens,
        # With nothing left to fill a free slot with, decode on.
        leave_after=(
          engine.refill_slots if queue.waiting else engine.limits.slots + 1
        ),
        longest_tokens=table.longest_tokens,
      )
    prepared = time.perf_counter()
    # What ended before is handed on while the device decodes.
    yield from _whole_groups(ended, done, requests, engine.eos_ids)
    ended = []
    if steps is not None:
      live, generated, steps = engine.look(state, steps)
      ready = time.perf_counter()
      stopped = np.zeros(len(live), bool)
      if sampling.find_stop is not None:
        state, generated, stopped = _stop(
          engine, state, table, generated, sampling
        )
      tokens, slots = table.advance(live & ~stopped, generated)
      ended = [
        _Ended(
          table.release(slots), stopped[slots], engine.read_rows(state, slots)
        )
      ]
      report(
        ChunkReport(
          steps=int(steps),
          tokens=tokens,
          slots=engine.limits.slots,
          seconds=ready - begin,
          host_s=prepared - begin,
          **sent._asdict(),
        )
      )


class _Ended(NamedTuple):
  """Responses that ended in a chunk, still on the device."""

  owners: list[tuple[tuple[int, int], int]]  # and how many tokens
  stopped: Bool[np.ndarray, ' k']  # by a stop string
  rows: list[tuple[jax.Array, jax.Array]]


def _whole_groups(
  ended: Iterable[_Ended],
  done: dict[int, dict[int, Completion]],
  requests: Sequence[Request],
  eos_ids: Sequence[int],
) -> Iterator[tuple[int, tuple[Completion, ...]]]:
  """Yields the groups that are complete now; keeps the others in `done`."""
  for index, g, completion in _completions(ended, eos_ids):
    group = done.setdefault(index, {})
    group[g] = completion
    if len(group) == requests[index].samples:
      del done[index]
      yield index, tuple(group[i] for i in range(len(group)))


def _completions(
  ended: Iterable[_Ended], eos_ids: Sequence[int]
) -> Iterator[tuple[int, int, Completion]]:
  """Yields (index of the request, number of the sample, what it became)."""
  for chunk in ended:
    rows = _rows(chunk.rows)
    # The last part is padded: there may be more rows than owners.
    for ((index, g), length), stopped, (tokens, logp) in zip(
      chunk.owners, chunk.stopped, rows, strict=False
    ):
      tokens, logp = tokens[:length].copy(), logp[:length].copy()
      finish = 'eos' if int(tokens[-1]) in eos_ids else 'length'
      yield index, g, Completion(tokens, logp, 'stop' if stopped else finish)


def _rows(parts) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns the rows that `Engine.read_rows` promised, on the host."""
  return [
    row for part in jax.device_get(parts) for row in zip(*part, strict=True)
  ]


def _stop(engine, state, table: slots_lib.Slots, generated, sampling: Sampling):
  """Returns (state, tokens of each slot, which have a stop string).

  Responses with a string are cut at the token that completes it; so the
  length of a chunk, which says how far they are decoded, changes no response.
  """
  after, stopped = np.array(generated), np.zeros(len(generated), bool)
  slots = table.advanced(generated)
  if not slots:
    return state, after, stopped
  # Only what is new is read. A place so near the row's end that fewer follow
  # gives the last ones.
  count = min(sampling.chunk_tokens, engine.limits.response_tokens)
  begins = [
    min(len(table.texts[s]), engine.limits.response_tokens - count)
    for s in slots
  ]
  columns = engine.read_columns(state, slots, begins, count=count)
  for slot, begin, column in zip(slots, begins, columns, strict=True):
    tokens = table.texts[slot]
    known = len(tokens)
    tokens += column[known - begin : int(after[slot]) - begin]
    length = sampling.find_stop(tokens, known)
    if length is not None:
      after[slot], stopped[slot] = length, True
  if stopped.any():
    state = engine.end_slots(state, stopped)
  return state, after, stopped


@dataclasses.dataclass
class _Job:
  """A request, and its samples that have no slot yet."""

  index: int
  request: Request
  keys: UInt32[np.ndarray, 'G 2']
  limits_tokens: Int[np.ndarray, ' G']
  choice: token_choice.Choice
  pending: deque[int]
  prefix: decode.Prefix | None = None


class _Queue:
  """The requests, and which of them wait for slots, in this order."""

  def __init__(self, jobs: Sequence[_Job]):
    self._jobs = jobs
    self.waiting = deque(jobs)

  def give_back(self, index: int, g: int) -> None:
    """Puts a sample that lost its slot before all that have not begun.

    The noise is the sample's own: it will have the same tokens again.
    """
    job = self._jobs[index]
    if not job.pending:
      if self.waiting:
        # Only the first that waits keeps its prompt on the device.
        self.waiting[0].prefix = None
      self.waiting.appendleft(job)
    job.pending.appendleft(g)


class _Sent(NamedTuple):
  """What was done before a chunk; the fields are those of `ChunkReport`."""

  prefills: int = 0
  evicted: int = 0
  lost_tokens: int = 0


def _jobs(requests: Sequence[Request], sampling: Sampling) -> Iterator[_Job]:
  """Yields the requests with their noise, which is made in one go."""
  if not requests:
    return
  most = max(r.samples for r in requests)
  keys = token_choice.request_keys(
    sampling.seed,
    sampling.purpose,
    [r.ordinal for r in requests],
    samples=most,
  )
  for i, r in enumerate(requests):
    limits = r.limits_tokens
    if limits is None:
      limits = np.full(r.samples, sampling.limit_tokens)
    pending = deque(range(r.samples))
    yield _Job(i, r, keys[i, : r.samples], limits, sampling.choice, pending)


def _prepare(engine, params, state, table, queue: _Queue, chunk_tokens: int):
  """Returns (state ready for a chunk of so many tokens, what was done)."""
  lost = table.make_room(chunk_tokens)
  if lost:
    gone = np.zeros(engine.limits.slots, bool)
    gone[[slot for slot, _, _ in lost]] = True
    state = engine.end_slots(state, gone)
  for _, (index, g), _ in lost:
    queue.give_back(index, g)
  state, prefills = _refill(
    engine, params, state, table, queue.waiting, chunk_tokens
  )
  pages = table.new_pages()
  if pages is not None:
    state = engine.set_pages(state, pages)
  return state, _Sent(prefills, len(lost), sum(tokens for _, _, tokens in lost))


def _refill(engine, params, state, table, waiting, chunk_tokens: int):
  """Returns (state with the free slots filled, prompts prefilled)."""
  free, prefills = table.free, 0
  while free and waiting:
    job = waiting[0]
    if job.prefix is None:
      engine.check_limits(job.limits_tokens)
      job.prefix = engine.prefill_prompt(params, job.request.prompt_tokens)
      prefills += 1
    numbers, slots, fills = _start(job, free, table, chunk_tokens)
    if not slots:
      break
    free = [slot for slot in free if slot not in slots]
    state = engine.insert_group(
      job.prefix,
      state,
      engine_lib.Samples(
        np.array(slots, np.int32),
        job.keys[numbers],
        job.limits_tokens[numbers],
        job.choice,
        np.array(fills),
      ),
    )
    if job.pending:
      break
    job.prefix = None
    waiting.popleft()
  return state, prefills


def _start(job: _Job, free: Sequence[int], table, chunk_tokens: int):
  """Returns (samples that got a slot, their slots, the pages to fill)."""
  numbers, slots, fills = [], [], []
  for slot in free:
    if not job.pending:
      break
    fill = table.give(
      slot,
      (job.index, job.pending[0]),
      prompt_tokens=len(job.request.prompt_tokens),
      limit_tokens=int(job.limits_tokens[job.pending[0]]),
      ahead_tokens=chunk_tokens,
    )
    # Another shard may have pages.
    if fill is not None:
      numbers.append(job.pending.popleft())
      slots.append(slot)
      fills.append(fill)
  return numbers, slots, fills

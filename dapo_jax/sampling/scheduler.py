"""The rollout loop over an engine: continuous batching, one group at a time.

No threads and no clocks decide anything here: which sample gets which slot
depends on the requests and the tokens alone, so every host of an engine
issues the same programs. JetStream's own driver is not used for rollouts: it
prefills a prompt once a sample, drops the EOS and carries no log-probs.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, UInt32

from dapo_jax.model import decoder
from dapo_jax.sampling import decode, stop_strings, token_choice
from dapo_jax.sampling import engine as engine_lib


class Request(NamedTuple):
  """A prompt that wants `samples` responses."""

  ordinal: int  # of the draw, the root of its noise
  prompt_tokens: Int[np.ndarray, ' T']
  samples: int


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
  state = engine.init_decode_state()
  eos_ids = frozenset(engine.eos_ids)
  owners: list[tuple[int, int] | None] = [None] * engine.limits.slots
  waiting = deque(_Waiting(i, r, sampling) for i, r in enumerate(requests))
  done: dict[int, dict[int, Completion]] = {}
  # Leave a chunk when an eighth of the slots can be filled again; with
  # nothing left to fill them with, decode on.
  refill_at = max(1, engine.limits.slots // 8)
  while waiting or any(owners):
    begin = time.perf_counter()
    state, prefills = _refill(engine, params, state, owners, waiting)
    generated_before = np.asarray(state.generated)
    state, steps = engine.generate_chunk(
      params,
      state,
      max_steps=sampling.chunk_tokens,
      leave_after=refill_at if waiting else engine.limits.slots + 1,
    )
    live, generated, steps = jax.device_get(
      (state.live, state.generated, steps)
    )
    stopped = np.zeros(len(owners), bool)
    if sampling.find_stop is not None:
      state, generated, stopped = _stop(
        engine, state, owners, (generated_before, generated), sampling.find_stop
      )
    ended = [
      s
      for s, o in enumerate(owners)
      if o is not None and (stopped[s] or not live[s])
    ]
    finished = _take(state, ended, generated, owners, eos_ids, stopped)
    report(
      ChunkReport(
        steps=int(steps),
        tokens=int(np.sum(generated - generated_before)),
        prefills=prefills,
        slots=engine.limits.slots,
        seconds=time.perf_counter() - begin,
      )
    )
    for (index, g), completion in finished:
      group = done.setdefault(index, {})
      group[g] = completion
      if len(group) == requests[index].samples:
        del done[index]
        yield index, tuple(group[i] for i in range(len(group)))


@dataclasses.dataclass
class _Waiting:
  """A request of which some samples have no slot yet."""

  index: int
  request: Request
  sampling: Sampling
  started: int = 0
  prefix: decode.Prefix | None = None
  keys: UInt32[np.ndarray, 'G 2'] | None = None


def _refill(engine, params, state, owners, waiting: deque):
  """Returns (state with the free slots filled, prompts prefilled)."""
  free = deque(s for s, owner in enumerate(owners) if owner is None)
  prefills = 0
  while free and waiting:
    head = waiting[0]
    if head.prefix is None:
      head.prefix = engine.prefill_prompt(params, head.request.prompt_tokens)
      head.keys = token_choice.sample_keys(
        head.sampling.seed,
        head.sampling.purpose,
        head.request.ordinal,
        samples=head.request.samples,
      )
      prefills += 1
    total = head.request.samples
    # One program serves any number of samples: unused places name a slot
    # that does not exist.
    slots = np.full(total, engine.limits.slots, np.int32)
    for g in range(head.started, min(total, head.started + len(free))):
      slots[g] = free.popleft()
      owners[slots[g]] = (head.index, g)
      head.started += 1
    state = engine.insert_group(
      head.prefix,
      state,
      engine_lib.Samples(
        slots,
        head.keys,
        head.sampling.limit_tokens,
        head.sampling.choice,
      ),
    )
    if head.started == total:
      waiting.popleft()
  return state, prefills


def _stop(engine, state, owners, generated, find_stop):
  """Returns (state, tokens of each slot, which have a stop string).

  Responses with a string are cut at the token that completes it; so the
  length of a chunk, which says how far they are decoded, changes no response.
  """
  before, after = generated[0], np.array(generated[1])
  stopped = np.zeros(len(owners), bool)
  out_tokens = np.asarray(state.out_tokens)
  for slot in np.flatnonzero(after > before):
    tokens = out_tokens[slot, : after[slot]].tolist()
    length = find_stop(tokens, int(before[slot]))
    if length is not None:
      after[slot], stopped[slot] = length, True
  if stopped.any():
    state = engine.end_slots(state, stopped)
  return state, after, stopped


def _take(state, slots, generated, owners, eos_ids, stopped):
  """Returns [(owner, completion)] of ended slots, and frees them."""
  if not slots:
    return []
  out_tokens, out_logp = jax.device_get((state.out_tokens, state.out_logp))
  finished = []
  for slot in slots:
    tokens = out_tokens[slot, : generated[slot]].copy()
    logp = out_logp[slot, : generated[slot]].copy()
    finish = 'eos' if int(tokens[-1]) in eos_ids else 'length'
    finish = 'stop' if stopped[slot] else finish
    finished.append((owners[slot], Completion(tokens, logp, finish)))
    owners[slot] = None
  return finished

"""Counts what a pool of pages is worth: the rollout loop without a model.

    python bench/page_pool.py [--slots=256] [--prompts=512] [--chunk=64]

The scheduler and its books of slots and pages are the package's own; in the
place of a model, each response has a length that its noise says, unknown to
the scheduler until it ends: log-normal with a mean of 3,000 tokens and a sigma
of 1, cut to 20,480. Prompts have 300 tokens and 16 responses each. Pools are
shares of what all slots could fill; beside each are the steps of whole rows
that take the same memory, which are fewer slots. Counts, no times.
"""

import argparse
import math
import os
import pathlib
import sys
from typing import NamedTuple

import numpy as np

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from dapo_jax.sampling import limits as limits_lib  # noqa: E402
from dapo_jax.sampling import pages as pages_lib  # noqa: E402
from dapo_jax.sampling import scheduler, token_choice  # noqa: E402

_SHARES = (1.0, 0.5, 0.33, 0.25, 0.15)
_PROMPT, _LONGEST, _MEAN, _SIGMA, _GROUP = 300, 20_480, 3_000, 1.0, 16


class State(NamedTuple):
  """The slots: what the scheduler asks for, and what it does not know."""

  live: np.ndarray
  generated: np.ndarray
  lengths: np.ndarray


class Engine:
  """What the scheduler calls of an engine; responses are nothing but long."""

  eos_ids = ()

  def __init__(self, limits: limits_lib.Limits):
    self.limits = limits
    self.refill_slots = max(1, limits.slots // 16)

  def new_pool(self) -> pages_lib.Pool:
    """Returns the books of the pages."""
    return pages_lib.Pool(limits_lib.pool_sizes(self.limits, 1))

  def init_decode_state(self) -> State:
    """Returns empty slots."""
    nothing = np.zeros(self.limits.slots, np.int64)
    return State(nothing > 0, nothing, nothing)

  def check_limits(self, limits_tokens) -> None:
    """Takes any."""

  def prefill_prompt(self, params, tokens) -> np.ndarray:
    """Returns something that is not None."""
    return tokens

  def insert_group(self, prefix, state: State, samples) -> State:
    """Returns the state with rows of the lengths that their noise says."""
    live, generated, lengths = (field.copy() for field in state)
    live[samples.slots], generated[samples.slots] = True, 0
    lengths[samples.slots] = [_length_tokens(key) for key in samples.keys]
    return State(live, generated, lengths)

  def end_slots(self, state: State, slots) -> State:
    """Returns the state with the marked slots ended."""
    return state._replace(live=state.live & ~slots)

  def set_pages(self, state: State, table) -> State:
    """Returns the state: it has no pages."""
    return state

  def generate_chunk(
    self, params, state: State, *, max_steps, leave_after, longest_tokens
  ) -> tuple[State, int]:
    """Returns the state after a chunk, as `sampling.decode.chunk` ends it."""
    left = np.sort((state.lengths - state.generated)[state.live])
    steps = min(max_steps, int(left[min(leave_after, len(left)) - 1]))
    after = np.minimum(state.generated + steps, state.lengths)
    live = state.live & (after < state.lengths)
    return State(live, after, state.lengths), steps

  def look(self, state: State, steps) -> tuple:
    """Returns which slots are live, their tokens, and `steps`."""
    return state.live, state.generated, steps

  def read_rows(self, state: State, slots) -> list[tuple]:
    """Returns rows of zeros, of no memory."""
    rows = np.broadcast_to(np.int32(0), (len(slots), _LONGEST))
    return [(rows, rows)] if slots else []


def _length_tokens(key: np.ndarray) -> int:
  """Returns the length of the response of this noise."""
  mu = math.log(_MEAN) - _SIGMA**2 / 2
  length = np.random.default_rng(key).lognormal(mu, _SIGMA)
  return min(max(1, round(length)), _LONGEST)


class Found(NamedTuple):
  """What a rollout took."""

  responses: int
  tokens: int  # of them
  steps: int
  busy_frac: float  # slot-steps that made a token
  lost_frac: float  # tokens that were sampled again, of all that were made
  evicted: int


def rollout(limits: limits_lib.Limits, *, prompts: int, chunk: int) -> Found:
  """Returns what the responses to so many prompts take."""
  requests = [
    scheduler.Request(i, np.zeros(_PROMPT, np.int32), _GROUP)
    for i in range(prompts)
  ]
  sampling = scheduler.Sampling(
    purpose=token_choice.Purpose.TRAIN,
    seed=0,
    choice=token_choice.Choice(temperature=1.0),
    limit_tokens=_LONGEST,
    chunk_tokens=chunk,
  )
  reports, responses, tokens = [], 0, 0
  for _, group in scheduler.generate(
    Engine(limits), None, requests, sampling, report=reports.append
  ):
    responses += len(group)
    tokens += sum(len(completion.tokens) for completion in group)
  steps = sum(r.steps for r in reports)
  made = sum(r.tokens for r in reports)
  lost = sum(r.lost_tokens for r in reports)
  evicted = sum(r.evicted for r in reports)
  busy_frac = made / steps / limits.slots
  return Found(responses, tokens, steps, busy_frac, lost / made, evicted)


def main() -> None:
  """Prints a line for each pool."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--slots', type=int, default=256, help='(256)')
  parser.add_argument('--prompts', type=int, default=512, help='(512)')
  parser.add_argument('--chunk', type=int, default=64, help='steps (64)')
  args = parser.parse_args()
  limits = limits_lib.Limits(args.slots, _PROMPT, _LONGEST, cache='paged')
  row = limits_lib.row_pages(limits)
  run = lambda limits: rollout(limits, prompts=args.prompts, chunk=args.chunk)
  full = run(limits)
  print(
    f'{full.responses} responses of {full.tokens / full.responses:.0f} tokens '
    f'on average, {args.slots} slots, chunks of {args.chunk}'
  )
  print(
    'memory    steps  of full  slots used  tokens lost  begun again  '
    'steps, whole rows'
  )
  for share in _SHARES:
    # The longest row must fit.
    pages = max(row, round(share * args.slots * row))
    found = run(limits._replace(pages=pages))
    rows = pages // row
    whole = run(limits._replace(slots=rows, cache='dense'))
    print(
      f'{pages / args.slots / row:6.0%} {found.steps:8d} '
      f'{found.steps / full.steps:6.2f} x {found.busy_frac:11.1%} '
      f'{found.lost_frac:12.1%} {found.evicted:12d} '
      f'{whole.steps / full.steps:5.2f} x, {rows} slots'
    )


if __name__ == '__main__':
  main()

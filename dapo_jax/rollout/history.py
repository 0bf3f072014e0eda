"""The rewards of each prompt's earlier visits, which SAS looks back on.

A visit is a draw whose group was trained; a draw that was filtered out or was
surplus is none. The history is plain numbers, so it goes into a checkpoint as
it is, and a run that resumes has the history of the step it resumes from.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from dapo_jax.data import records
from dapo_jax.objective import advantage


class Sums(NamedTuple):
  """Number, sum and sum of squares of rewards; float, since they decay."""

  count: float
  total: float
  total_squares: float


class Entry(NamedTuple):
  """What is remembered of one prompt."""

  visits: int  # that are remembered
  # One element a visit when a window is kept, else one of all visits.
  sums: tuple[Sums, ...]


UNSEEN = Entry(0, ())

# By prompt id.
History = Mapping[str, Entry]


class Memory(NamedTuple):
  """How long rewards are remembered."""

  window_visits: int | None = None  # the newest so many; None = all
  decay: float = 1.0  # factor of what is remembered, at each visit


def lookup(
  history: History, prompt_ids: Sequence[str]
) -> advantage.RewardHistory:
  """Returns the `advantage.RewardHistory` of the prompts, 0 where unknown."""
  entries = [history.get(i, UNSEEN) for i in prompt_ids]
  added = [np.sum([*e.sums, (0.0, 0.0, 0.0)], axis=0) for e in entries]
  count, total, squares = np.array(added, np.float64).reshape(-1, 3).T
  visits = np.array([e.visits for e in entries], np.int64)
  return advantage.RewardHistory(visits, count, total, squares)


def visited(
  entry: Entry, rewards: Float[np.ndarray, ' G'], memory: Memory
) -> Entry:
  """Returns the entry after one more visit, with these rewards."""
  nothing = lookup({}, [''])
  visit = advantage.updated_history(nothing, rewards[None])
  fresh = Sums(*(float(x[0]) for x in visit[1:]))
  faded = [Sums(*(memory.decay * x for x in s)) for s in entry.sums]
  if memory.window_visits is None:
    whole = Sums(*np.sum([*faded, fresh], axis=0).tolist())
    return Entry(entry.visits + 1, (whole,))
  kept = (*faded, fresh)[-memory.window_visits :]
  return Entry(len(kept), kept)


def smooth_advantages(
  groups: Sequence[records.Group],
  rewards: Float[np.ndarray, 'P G'],
  history: History,
  *,
  ddof: int,
  memory: Memory,
) -> tuple[Float[np.ndarray, 'P G'], dict[str, Entry]]:
  """Returns SAS advantages, [P, G], and the history after these groups.

  The groups are visits one after the other: a prompt that was drawn twice
  sees, at the second draw, the first.
  """
  history = dict(history)
  rows = []
  for group, row in zip(groups, rewards, strict=True):
    prompt_id = group.draw.prompt.id
    known = lookup(history, [prompt_id])
    rows.append(advantage.smooth_advantage(row[None], known, ddof=ddof)[0])
    entry = history.get(prompt_id, UNSEEN)
    history[prompt_id] = visited(entry, row, memory)
  return np.array(rows).reshape(rewards.shape), history


def to_json(history: History) -> dict[str, list]:
  """Returns the history as JSON has it; floats keep every bit."""
  return {i: [e.visits, [list(s) for s in e.sums]] for i, e in history.items()}


def from_json(saved: Mapping[str, Sequence]) -> dict[str, Entry]:
  """Returns the history that `to_json` wrote down."""
  return {
    i: Entry(visits, tuple(Sums(*s) for s in sums))
    for i, (visits, sums) in saved.items()
  }

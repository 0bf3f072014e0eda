"""Brings responses from the processes that sampled them to those that train.

Which rows a process has follows from the mesh, which response stands in which
row from the plan, who sampled it from its draw: all processes know who sends
what to whom, and only that is moved.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int, UInt32

from dapo_jax.data import records
from dapo_jax.parallel import exchange
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.training import row_plan

# Of each response of each group, the processes that have its row.
Needs = Sequence[Sequence[set[int]]]


def needs(
  plan: row_plan.Plan,
  lengths: Sequence[row_plan.Length],
  row_processes: Sequence[set[int]],
) -> list[set[int]]:
  """Returns the processes that need each segment.

  Args:
    plan: of a minibatch.
    lengths: of its segments.
    row_processes: those that have each row of a micro-batch.
  """
  return [
    row_processes[row % len(row_processes)]
    for row, _, _ in row_plan.places(plan, lengths)
  ]


def delivered(
  groups: Sequence[records.Group], needs: Needs, shares: shares_lib.Shares
) -> list[records.Group]:
  """Returns the groups with the tokens that this process needs.

  Responses that it neither needs nor sampled stay as they are.
  """
  job = shares.job
  if job.count == 1:
    return list(groups)
  sizes = np.zeros((job.count, job.count), np.int64)
  outgoing: list[list[UInt32[np.ndarray, ' _']]] = [
    [] for _ in range(job.count)
  ]
  for owner, to, _, response in _moves(groups, needs, shares):
    sizes[owner, to] += 2 * len(response.tokens)
    if owner == job.index:
      outgoing[to] += [response.tokens, response.logp_sampler]
  received = exchange.all_to_all(
    job,
    [_words(parts) for parts in outgoing],
    sizes,
    what='the tokens of the step',
  )
  return _with_received(groups, needs, shares, received)


def _moves(
  groups: Sequence[records.Group], needs: Needs, shares: shares_lib.Shares
) -> Iterator[tuple[int, int, tuple[int, int], records.Response]]:
  """Yields (from, to, numbers of group and response, the response)."""
  for i, (group, of_group) in enumerate(zip(groups, needs, strict=True)):
    owner = shares.owner(group.draw.ordinal)
    for g, wanted in enumerate(of_group):
      for to in sorted(wanted - {owner}):
        yield owner, to, (i, g), group.responses[g]


def _words(parts: Sequence[np.ndarray]) -> UInt32[np.ndarray, ' _']:
  flat = [np.ascontiguousarray(part).view(np.uint32) for part in parts]
  return np.concatenate([np.zeros(0, np.uint32), *flat])


def _with_received(
  groups: Sequence[records.Group],
  needs: Needs,
  shares: shares_lib.Shares,
  received: Sequence[UInt32[np.ndarray, ' _']],
) -> list[records.Group]:
  """Returns the groups with what came for this process put in its places."""
  begins: Int[np.ndarray, ' processes'] = np.zeros(shares.job.count, np.int64)
  found = [list(group.responses) for group in groups]
  for owner, to, (i, g), response in _moves(groups, needs, shares):
    if to != shares.job.index:
      continue
    count, begin = len(response.tokens), begins[owner]
    words = received[owner][begin : begin + 2 * count]
    begins[owner] += 2 * count
    found[i][g] = response._replace(
      tokens=words[:count].view(np.int32),
      logp_sampler=words[count:].view(np.float32),
    )
  return [
    group._replace(responses=tuple(responses))
    for group, responses in zip(groups, found, strict=True)
  ]

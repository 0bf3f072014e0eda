"""Turns a step's groups into minibatches of weighted segments."""

from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh
from ml_collections import FrozenConfigDict

from dapo_jax.data import records
from dapo_jax.objective import weighting
from dapo_jax.parallel import placement
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.training import delivery, layout, packing, row_plan


def pack_groups(
  groups: Sequence[records.Group],
  config: FrozenConfigDict,
  mesh: Mesh,
  shares: shares_lib.Shares,
) -> list[packing.Packed]:
  """Returns a step's minibatches in packed rows, on the mesh.

  The responses of a minibatch are its segments, in the order of the groups.
  All processes plan all rows, and each fills those that its devices hold.
  """
  shape = layout.rows_shape(config, mesh)
  holders = placement.row_processes(shape[1], mesh)
  held = {r for r, of in enumerate(holders) if shares.job.index in of}
  parts = split(groups, size=config.learner.minibatch_prompts)
  plans = [_plan(part, config, mesh) for part in parts]
  parts = _delivered(parts, plans, holders, shares)
  batches = []
  for part, plan in zip(parts, plans, strict=True):
    packed = packing.planned(
      plan,
      segments(
        part,
        aggregation=config.objective.aggregation,
        max_response_tokens=config.rollout.max_response_tokens,
        mask_truncated=config.overlong.truncated == 'masked',
        count_masked=config.objective.count_masked,
      ),
      shape=shape,
      held=held,
    )
    on_mesh = placement.put_rows(packed.rows, mesh)
    batches.append(packed._replace(rows=on_mesh))
  return batches


def _plan(
  part: Sequence[records.Group], config: FrozenConfigDict, mesh: Mesh
) -> row_plan.Plan:
  """Returns the plan of a minibatch."""
  return row_plan.plan(
    _lengths(part),
    row_tokens=layout.row_tokens(config),
    micro_batch_rows=layout.micro_batch_rows(config, mesh),
    share_prompts=layout.shares_prompts(config, mesh),
  )


def _lengths(part: Sequence[records.Group]) -> list[row_plan.Length]:
  """Returns the lengths of a minibatch's segments."""
  return [
    row_plan.Length(g.draw.ordinal, len(g.prompt_tokens), len(r.tokens))
    for g in part
    for r in g.responses
  ]


def _delivered(
  parts: Sequence[Sequence[records.Group]],
  plans: Sequence[row_plan.Plan],
  holders: Sequence[set[int]],
  shares: shares_lib.Shares,
) -> list[list[records.Group]]:
  """Returns minibatches with the tokens of the rows that this process holds."""
  if shares.job.count == 1:
    return [list(part) for part in parts]
  needs = []
  for part, plan in zip(parts, plans, strict=True):
    of_part = iter(delivery.needs(plan, _lengths(part), holders))
    needs += [[next(of_part) for _ in g.responses] for g in part]
  flat = [group for part in parts for group in part]
  whole = iter(delivery.delivered(flat, needs, shares))
  return [[next(whole) for _ in part] for part in parts]


def metrics(
  batches: Sequence[packing.Packed], *, epochs: int
) -> dict[str, int | float]:
  """Returns how many micro-batches `epochs` passes take, and how full."""
  if not batches:
    return {}
  computed = sum(b.row_tokens for b in batches)
  return {
    'optim/micro_batch_count': epochs * sum(b.micro_batches for b in batches),
    'pack/real_token_frac': sum(b.real_tokens for b in batches) / computed,
  }


def split(
  groups: Sequence[records.Group], *, size: int
) -> list[list[records.Group]]:
  """Returns whole groups in minibatches of at most `size`, in draw order.

  Where the groups are fewer than expected the minibatches are made as equal
  as can be, so that none steps on one group's noise.
  """
  count = -(-len(groups) // size)
  bounds = np.linspace(0, len(groups), count + 1).round().astype(int)
  return [
    list(groups[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True)
  ]


def segments(
  groups: Sequence[records.Group],
  *,
  aggregation: str,
  max_response_tokens: int,
  mask_truncated: bool = False,
  count_masked: bool = False,
) -> list[packing.Segment]:
  """Returns the segments of a minibatch, one a response.

  Token weights are taken over this whole minibatch, in float64; whatever
  happens to the segments later, packing or sharding, changes no weight.

  Args:
    groups: the judged groups of the minibatch.
    aggregation: how token losses are added up, see `weighting`.
    max_response_tokens: the divisor of the aggregation 'constant', [tokens].
    mask_truncated: leave responses that were cut off out of the loss (DAPO's
      overlong filtering, 3.4); their rewards stay in the group's mean.
    count_masked: whether what is left out is still counted, see `weighting`.
  """
  flat = [(g, r) for g in groups for r in g.responses]
  keep = np.array([not (mask_truncated and r.is_truncated) for _, r in flat])
  weights = weighting.token_weights(
    np.array([len(r.tokens) for _, r in flat]),
    np.array([g.draw.ordinal for g, _ in flat]),
    mode=aggregation,
    max_response_tokens=max_response_tokens,
    keep=keep,
    count_masked=count_masked,
  )
  return [
    packing.Segment(
      g.draw.ordinal, g.prompt_tokens, r.tokens, r.logp_sampler, float(w)
    )
    for (g, r), w in zip(flat, weights, strict=True)
  ]

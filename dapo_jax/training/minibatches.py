"""Turns a step's groups into minibatches of weighted segments."""

from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh
from ml_collections import FrozenConfigDict

from dapo_jax.data import records
from dapo_jax.objective import advantage as advantage_lib
from dapo_jax.objective import weighting
from dapo_jax.parallel import placement
from dapo_jax.rollout import dynamic_sampling
from dapo_jax.training import assemble, packing


def pack_groups(
  groups: Sequence[records.Group], config: FrozenConfigDict, mesh: Mesh
) -> list[packing.Packed]:
  """Returns a step's minibatches in packed rows, on the mesh."""
  size = config.learner.minibatch_prompts
  batches = []
  for part in split(groups, size=size):
    packed = packing.pack(
      segments(
        part,
        aggregation=config.objective.aggregation,
        max_response_tokens=config.rollout.max_response_tokens,
        ddof=config.advantage.ddof,
        scale=config.advantage.scale,
        filtered=config.filter.enabled,
      ),
      row_tokens=assemble.row_tokens(config),
      micro_batch_rows=config.learner.micro_batch_rows,
      max_segments=size * config.rollout.responses_per_prompt,
      share_prompts=config.learner.share_prompts,
    )
    rows = placement.put_rows(packed.rows, mesh)
    batches.append(packed._replace(rows=rows))
  return batches


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
  ddof: int,
  scale: str,
  filtered: bool,
) -> list[packing.Segment]:
  """Returns the segments of a minibatch, one a response.

  Token weights are taken over this whole minibatch, in float64; whatever
  happens to the segments later, packing or sharding, changes no weight.

  Args:
    groups: the judged groups of the minibatch.
    aggregation: how token losses are added up, see `weighting`.
    max_response_tokens: the divisor of the aggregation 'constant', [tokens].
    ddof: of the group's standard deviation, see `advantage`.
    scale: of the advantages, see `advantage`.
    filtered: dynamic sampling is on. A uniform group is then one that fills
      the step up: its advantage is 0, though the overlong punishment may make
      its rewards differ.
  """
  rewards = np.stack([records.group_rewards(g) for g in groups])
  advantages = advantage_lib.group_advantage(rewards, ddof=ddof, scale=scale)
  if filtered:
    signal = [[dynamic_sampling.has_signal(g)] for g in groups]
    advantages = np.where(signal, advantages, 0.0)
  lengths = np.concatenate([records.lengths_tokens(g) for g in groups])
  ordinals = np.repeat([g.draw.ordinal for g in groups], rewards.shape[1])
  weights = weighting.token_weights(
    lengths,
    ordinals,
    mode=aggregation,
    max_response_tokens=max_response_tokens,
  )
  flat = [(g, r) for g in groups for r in g.responses]
  return [
    packing.Segment(
      g.draw.ordinal,
      g.prompt_tokens,
      r.tokens,
      r.logp_sampler,
      float(a),
      float(w),
    )
    for (g, r), a, w in zip(flat, advantages.ravel(), weights, strict=True)
  ]

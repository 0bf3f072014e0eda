"""What the programs of an update tell, and the metrics that it gives."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dapo_jax.model import decoder
from dapo_jax.objective import diagnostics
from dapo_jax.training import value_fit


class RolloutStats(NamedTuple):
  """Sums over response tokens of the policy that is about to be updated."""

  token_count: Float[Array, '']
  entropy_sum: Float[Array, '']
  prob_sum: Float[Array, '']
  gap_sum: Float[Array, '']  # |logp_sampler - logp_old|
  gap_max: Float[Array, '']


class TokenStats(NamedTuple):
  """Sums over a micro-batch: of ratios, of values; None where none are."""

  ratios: diagnostics.RatioStats | None = None
  values: value_fit.ValueStats | None = None


class UpdateStats(NamedTuple):
  """What one update did."""

  loss: Float[Array, '']
  grad_norm: Float[Array, '']
  # Of the loss, then of each leaf of the gradient: whether it is not finite.
  faults: Bool[Array, ' _']
  ratios: diagnostics.RatioStats | None
  values: value_fit.ValueStats | None = None

  @property
  def is_skipped(self) -> bool:
    """Whether it moved nothing; of statistics on the host."""
    return bool(np.any(self.faults))


def norm_and_faults(
  loss: Float[Array, ''], grads: decoder.Params
) -> tuple[Float[Array, ''], Bool[Array, ' _']]:
  """Returns the gradient's global norm, and what is not finite.

  Of the loss, then of each leaf. A leaf is not finite if its square is not: the
  norm needs the squares anyway, and each sum more is one more collective.
  """
  squares = jnp.stack([jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)])
  finite = jnp.isfinite(jnp.concatenate([loss[None], squares]))
  return jnp.sqrt(jnp.sum(squares)), ~finite


class Skips(NamedTuple):
  """Updates that moved nothing, one after the other."""

  now: int  # up to the last update
  most: int  # anywhere among the updates that were looked at


def skips(before: int, skipped: Iterable[bool]) -> Skips:
  """Returns the skips in a row after `before` of them and these updates."""
  now, most = before, 0
  for is_skipped in skipped:
    now = now + 1 if is_skipped else 0
    most = max(most, now)
  return Skips(now, most)


def fault_names(
  faults: Bool[np.ndarray, ' _'], params: decoder.Params
) -> list[str]:
  """Returns what was not finite in an update of `params`: names, in order."""
  paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  names = [
    'the loss',
    *(jax.tree_util.keystr(p, simple=True, separator='.') for p in paths),
  ]
  return [n for n, fault in zip(names, faults, strict=True) if fault]


def add(a: RolloutStats, b: RolloutStats) -> RolloutStats:
  """Returns the sums over two micro-batches."""
  total = RolloutStats(*(x + y for x, y in zip(a, b, strict=True)))
  return total._replace(gap_max=jnp.maximum(a.gap_max, b.gap_max))


def merge(a: TokenStats, b: TokenStats) -> TokenStats:
  """Returns the statistics of two micro-batches together."""
  return TokenStats(
    a.ratios and diagnostics.merge(a.ratios, b.ratios),
    a.values and jax.tree.map(jnp.add, a.values, b.values),
  )


def rollout_metrics(parts: Sequence[RolloutStats]) -> dict[str, int | float]:
  """Returns the `policy/` metrics of the behaviour policy, on the host."""
  if not parts:
    return {}
  total = functools.reduce(add, parts)
  tokens = float(total.token_count)
  return {
    'policy/entropy_nats': float(total.entropy_sum) / tokens,
    'policy/mean_prob': float(total.prob_sum) / tokens,
    'policy/sampler_gap_mean_nats': float(total.gap_sum) / tokens,
    'policy/sampler_gap_max_nats': float(total.gap_max),
  }


def update_metrics(parts: Sequence[UpdateStats]) -> dict[str, int | float]:
  """Returns the metrics of a step's updates, on the host.

  Loss and gradient norm are means over the updates; ratios and clip shares
  are over all their tokens. Those that moved nothing are only counted.
  """
  skipped_count = sum(p.is_skipped for p in parts)
  parts = [p for p in parts if not p.is_skipped]
  counts = {
    'optim/update_count': len(parts),
    'optim/skipped_update_count': skipped_count,
  }
  if not parts:
    return counts
  ratios = functools.reduce(diagnostics.merge, [p.ratios for p in parts])
  critic = (
    value_fit.metrics([p.values for p in parts]) if parts[0].values else {}
  )
  return {
    **critic,
    **counts,
    'policy/loss': float(np.mean([p.loss for p in parts])),
    'optim/grad_norm': float(np.mean([p.grad_norm for p in parts])),
    **diagnostics.metrics(ratios),
  }


def add_losses(
  sums: Mapping[str, int | float], seen: Sequence[UpdateStats]
) -> dict[str, int | float]:
  """Returns sums of losses, those of more updates added, on the host.

  In their order, so that a stop between two of them changes no bit.
  """
  found = {'moved_count': 0, 'skipped_count': 0, 'loss_sum': 0.0, **sums}
  for stats in seen:
    if stats.is_skipped:
      found['skipped_count'] += 1
    else:
      found['moved_count'] += 1
      found['loss_sum'] += float(stats.loss)
  return found


def loss_metrics(sums: Mapping[str, int | float]) -> dict[str, int | float]:
  """Returns the metrics of `add_losses`, of supervised training."""
  found = {}
  if skipped := sums.get('skipped_count'):
    found['optim/skipped_update_count'] = skipped
  if moved := sums.get('moved_count'):
    found['sft/loss'] = sums['loss_sum'] / moved
  return found

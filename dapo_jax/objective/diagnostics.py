"""What importance ratios did in an update, as sums that add up.

A mean of means is wrong when the parts differ in size; so the device returns
totals and extremes, micro-batches and updates are merged, and the one division
happens on the host.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dapo_jax.objective import surrogate as surrogate_lib


class RatioStats(NamedTuple):
  """Totals and extremes over the tokens that count."""

  # Counts are integers: float32 loses ones above 16.7 million.
  token_count: Int[Array, '']
  clipped_high_count: Int[Array, '']
  clipped_low_count: Int[Array, '']
  clipped_dual_count: Int[Array, '']
  ratio_sum: Float[Array, '']
  # -inf and inf when there is no token.
  ratio_max: Float[Array, '']
  ratio_min: Float[Array, '']


def empty() -> RatioStats:
  """Returns the statistics of no tokens, which `merge` leaves others alone."""
  none = jnp.zeros((), jnp.int32)
  return RatioStats(
    token_count=none,
    clipped_high_count=none,
    clipped_low_count=none,
    clipped_dual_count=none,
    ratio_sum=jnp.zeros((), jnp.float32),
    ratio_max=jnp.full((), -jnp.inf, jnp.float32),
    ratio_min=jnp.full((), jnp.inf, jnp.float32),
  )


def ratio_stats(
  surrogate: surrogate_lib.Surrogate,
  ratio: Float[Array, '*shape'],
  mask: Bool[Array, '*shape'],
) -> RatioStats:
  """Returns the statistics of the tokens where `mask` is True.

  Args:
    surrogate: what `clipped_surrogate` returned.
    ratio: importance ratios; those outside the mask may be anything.
    mask: True = a response token that counts.
  """

  def count(flags):
    return jnp.sum(flags & mask, dtype=jnp.int32)

  return RatioStats(
    token_count=jnp.sum(mask, dtype=jnp.int32),
    clipped_high_count=count(surrogate.clipped_high),
    clipped_low_count=count(surrogate.clipped_low),
    clipped_dual_count=count(surrogate.clipped_dual),
    ratio_sum=jnp.sum(ratio, where=mask),
    ratio_max=jnp.max(ratio, where=mask, initial=-jnp.inf),
    ratio_min=jnp.min(ratio, where=mask, initial=jnp.inf),
  )


def merge(a: RatioStats, b: RatioStats) -> RatioStats:
  """Returns the statistics of the tokens of both."""
  return RatioStats(
    token_count=a.token_count + b.token_count,
    clipped_high_count=a.clipped_high_count + b.clipped_high_count,
    clipped_low_count=a.clipped_low_count + b.clipped_low_count,
    clipped_dual_count=a.clipped_dual_count + b.clipped_dual_count,
    ratio_sum=a.ratio_sum + b.ratio_sum,
    ratio_max=jnp.maximum(a.ratio_max, b.ratio_max),
    ratio_min=jnp.minimum(a.ratio_min, b.ratio_min),
  )


def metrics(stats: RatioStats) -> dict[str, float]:
  """Returns the `policy/` metrics of the statistics, on the host.

  Over no tokens there is nothing to report: the result is empty.
  """
  tokens = int(stats.token_count)
  if tokens == 0:
    return {}
  return {
    'policy/ratio_mean': float(stats.ratio_sum) / tokens,
    'policy/ratio_max': float(stats.ratio_max),
    'policy/ratio_min': float(stats.ratio_min),
    'policy/clipped_high_frac': int(stats.clipped_high_count) / tokens,
    'policy/clipped_low_frac': int(stats.clipped_low_count) / tokens,
    'policy/clipped_dual_frac': int(stats.clipped_dual_count) / tokens,
  }

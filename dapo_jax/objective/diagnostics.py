"""What importance ratios did in an update, as sums that add up.

A mean of means is wrong when the parts differ in size; so the device returns
totals and extremes, micro-batches and updates are merged, and the one division
happens on the host.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dapo_jax.objective import surrogate as surrogate_lib


class RatioStats(NamedTuple):
  """Totals and extremes over the tokens that count.

  Fields named `_max` and `_min` are extremes, all others add up.
  """

  # Counts are integers: float32 loses ones above 16.7 million.
  token_count: Int[Array, '']
  positive_count: Int[Array, '']  # advantage > 0
  negative_count: Int[Array, '']  # advantage < 0
  clipped_high_count: Int[Array, '']
  clipped_low_count: Int[Array, '']
  clipped_dual_count: Int[Array, '']
  # Of each sign, as far as its own bounds are concerned.
  positive_clipped_high_count: Int[Array, '']
  negative_clipped_low_count: Int[Array, '']
  negative_clipped_dual_count: Int[Array, '']
  # Clipped by any bound: all, and those with an advantage.
  clipped_count: Int[Array, '']
  nonzero_clipped_count: Int[Array, '']
  # Responses, and those of which every token is clipped; 0 if not asked for.
  response_count: Int[Array, '']
  clipped_response_count: Int[Array, '']
  # Tokens with a weight for the sampler's gap; 0 without a correction.
  weighted_count: Int[Array, '']
  left_out_count: Int[Array, '']
  weight_sum: Float[Array, '']
  # Parts with a token, and the sum of their shares of clipped tokens.
  part_count: Int[Array, '']
  clipped_share_sum: Float[Array, '']
  clipped_high_prob_sum: Float[Array, '']
  kl_sum: Float[Array, '']
  ratio_sum: Float[Array, '']
  ratio_square_sum: Float[Array, '']
  # -inf and inf when there is no token.
  ratio_max: Float[Array, '']
  ratio_min: Float[Array, '']


def empty() -> RatioStats:
  """Returns the statistics of no tokens, which `merge` leaves others alone."""
  zeros = {
    name: jnp.zeros((), jnp.int32 if name.endswith('_count') else jnp.float32)
    for name in RatioStats._fields
  }
  return RatioStats(**zeros)._replace(
    ratio_max=jnp.full((), -jnp.inf, jnp.float32),
    ratio_min=jnp.full((), jnp.inf, jnp.float32),
  )


def ratio_stats(
  surrogate: surrogate_lib.Surrogate,
  ratio: Float[Array, '*row T'],
  mask: Bool[Array, '*row T'],
  *,
  advantage: Float[Array, '*row T'],
  logp: Float[Array, '*row T'],
  segment_ids: Int[Array, '*row T'] | None = None,
  sampler_weight: Float[Array, '*row T'] | None = None,
) -> RatioStats:
  """Returns the statistics of the tokens where `mask` is True.

  Args:
    surrogate: what `clipped_surrogate` or `cispo` returned.
    ratio: importance ratios; those outside the mask may be anything.
    mask: True = a response token that counts.
    advantage: advantages.
    logp: log-probs under the policy in training, [nats].
    segment_ids: the response of each token, its own in its row; they rise
      along it, but for places outside the mask. None leaves the responses
      uncounted.
    sampler_weight: what `importance.sampler_weight` returned; None without.
  """
  positive, negative = advantage > 0, advantage < 0
  high, low, dual = surrogate[1:]
  clipped = high | low | dual
  count = lambda flags: jnp.sum(flags & mask, dtype=jnp.int32)
  total = lambda x: jnp.sum(x, where=mask)
  tokens, clipped_count = count(mask), count(clipped)
  responses = clipped_responses = jnp.zeros((), jnp.int32)
  if segment_ids is not None:
    responses, clipped_responses = _responses(clipped, mask, segment_ids)
  weighted = left_out = jnp.zeros((), jnp.int32)
  weight_sum = jnp.zeros(())
  if sampler_weight is not None:
    weighted, left_out = tokens, count(sampler_weight == 0.0)
    weight_sum = total(sampler_weight)
  return RatioStats(
    token_count=tokens,
    positive_count=count(positive),
    negative_count=count(negative),
    clipped_high_count=count(high),
    clipped_low_count=count(low),
    clipped_dual_count=count(dual),
    positive_clipped_high_count=count(positive & high),
    negative_clipped_low_count=count(negative & low),
    negative_clipped_dual_count=count(negative & dual),
    clipped_count=clipped_count,
    nonzero_clipped_count=count(clipped & (positive | negative)),
    response_count=responses,
    clipped_response_count=clipped_responses,
    weighted_count=weighted,
    left_out_count=left_out,
    weight_sum=weight_sum,
    part_count=jnp.minimum(tokens, 1),
    clipped_share_sum=clipped_count / jnp.maximum(tokens, 1),
    clipped_high_prob_sum=jnp.sum(jnp.exp(logp), where=mask & high),
    kl_sum=total(_k3(ratio)),
    ratio_sum=total(ratio),
    ratio_square_sum=total(ratio**2),
    ratio_max=jnp.max(ratio, where=mask, initial=-jnp.inf),
    ratio_min=jnp.min(ratio, where=mask, initial=jnp.inf),
  )


def _k3(ratio: Float[Array, '*row T']) -> Float[Array, '*row T']:
  """Returns r - 1 - log r, at a ratio that underflowed too, [nats]."""
  least = jnp.finfo(ratio.dtype).tiny
  # log1p: near 1 the estimate is far smaller than the rounding of log.
  log_ratio = jnp.where(
    ratio < 0.5, jnp.log(jnp.maximum(ratio, least)), jnp.log1p(ratio - 1.0)
  )
  return ratio - 1.0 - log_ratio


def _responses(
  clipped: Bool[Array, '*row T'],
  mask: Bool[Array, '*row T'],
  segment_ids: Int[Array, '*row T'],
) -> tuple[Int[Array, ''], Int[Array, '']]:
  """Returns how many responses there are, and how many are clipped whole.

  By running sums, which ids that rise allow: a sum for each id is a scatter,
  which a TPU does by sorting.
  """
  axis = mask.ndim - 1
  # Places in a response that do not count are still its own.
  ids = jax.lax.cummax(jnp.where(mask, segment_ids, 0), axis=axis)
  changes = ids[..., 1:] != ids[..., :-1]
  end = jnp.ones_like(mask[..., :1])
  first = jnp.concatenate([end, changes], axis=axis)
  last = jnp.concatenate([changes, end], axis=axis)

  def in_own(flags):
    total = jnp.cumsum(flags, axis=axis, dtype=jnp.int32)
    before = jnp.where(first, total - flags, 0)
    return total - jax.lax.cummax(before, axis=axis)

  there = last & (in_own(mask) > 0)
  whole = there & (in_own(mask & ~clipped) == 0)
  count = lambda flags: jnp.sum(flags, dtype=jnp.int32)
  return count(there), count(whole)


def merge(a: RatioStats, b: RatioStats) -> RatioStats:
  """Returns the statistics of the tokens of both."""
  total = RatioStats(*(x + y for x, y in zip(a, b, strict=True)))
  return total._replace(
    ratio_max=jnp.maximum(a.ratio_max, b.ratio_max),
    ratio_min=jnp.minimum(a.ratio_min, b.ratio_min),
  )


def metrics(stats: RatioStats) -> dict[str, float]:
  """Returns the `policy/` metrics of the statistics, on the host.

  A mean over nothing is not reported: over no tokens the result is empty.
  `policy/clipped_micro_batch_frac` is DCPO's TCR (2509.02333, eq. 9), the only
  one here that depends on how tokens are split into micro-batches.
  """
  s = RatioStats(*(np.asarray(x).item() for x in stats))
  if s.token_count == 0:
    return {}
  quotients = {
    'ratio_mean': (s.ratio_sum, s.token_count),
    'effective_sample_frac': (
      s.ratio_sum**2,
      s.token_count * s.ratio_square_sum,
    ),
    'kl_old_nats': (s.kl_sum, s.token_count),
    'clipped_frac': (s.clipped_count, s.token_count),
    'clipped_nonzero_frac': (
      s.nonzero_clipped_count,
      s.positive_count + s.negative_count,
    ),
    'clipped_micro_batch_frac': (s.clipped_share_sum, s.part_count),
    'clipped_high_frac': (s.clipped_high_count, s.token_count),
    'clipped_low_frac': (s.clipped_low_count, s.token_count),
    'clipped_dual_frac': (s.clipped_dual_count, s.token_count),
    'clipped_high_of_positive_frac': (
      s.positive_clipped_high_count,
      s.positive_count,
    ),
    'clipped_low_of_negative_frac': (
      s.negative_clipped_low_count,
      s.negative_count,
    ),
    'clipped_dual_of_negative_frac': (
      s.negative_clipped_dual_count,
      s.negative_count,
    ),
    'clipped_high_mean_prob': (s.clipped_high_prob_sum, s.clipped_high_count),
    'clipped_response_frac': (s.clipped_response_count, s.response_count),
    'sampler_weight_mean': (s.weight_sum, s.weighted_count),
    'sampler_left_out_frac': (s.left_out_count, s.weighted_count),
  }
  found = {
    f'policy/{name}': float(part / whole)
    for name, (part, whole) in quotients.items()
    if whole
  }
  return found | {
    'policy/ratio_max': float(s.ratio_max),
    'policy/ratio_min': float(s.ratio_min),
  }

"""The weight that corrects for the gap between sampler and trainer."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dapo_jax.objective import ratio

LEVELS = ('token', 'sequence')
RULES = ('truncate', 'mask')


def sampler_weight(
  logp_old: Float[Array, '*shape'],
  logp_sampler: Float[Array, '*shape'],
  segment_ids: Int[Array, '*shape'],
  *,
  num_segments: int,
  level: str = 'token',
  rule: str = 'truncate',
  limit: float = 2.0,
) -> Float[Array, '*shape']:
  """Returns the factor of each token's loss that undoes the sampler's gap.

  Tokens are sampled by an engine whose probabilities differ from those the
  trainer computes with the same weights, by rounding. With

      w = exp(logp_old - logp_sampler)           level 'token'
      w = exp(sum_t (logp_old - logp_sampler))   level 'sequence'

  the sum over the tokens of the response, the weight of a token is

      min(w, limit)                                rule 'truncate'
      w if 1/limit <= w <= limit, else 0           rule 'mask'

  that is, truncated importance sampling, or the tokens (responses) that the
  trainer finds far too likely or unlikely left out. The exponent is bounded to
  40; weights carry no gradient. Both log-probs are of the policy *before* the
  update. A sequence weight moves further from 1 the longer the response: watch
  how much 'mask' leaves out.

  verl truncates alike; for 'mask' it takes the bounds of 1 / w, which are the
  same. There a masked token leaves the loss's divisor too, here it stays.

  Padding has weight 1, and whatever it holds reaches nothing.

  Args:
    logp_old: the trainer's log-probs before the first update, [nats].
    logp_sampler: the sampler's log-probs, [nats].
    segment_ids: the response of each token, 1 to num_segments; 0 = padding. An
      id is one response in the whole array (`jax.vmap` for ids by row). The
      sequence weight of an id beyond num_segments is NaN.
    num_segments: largest id there can be; static.
    level: one of `LEVELS`.
    rule: one of `RULES`.
    limit: largest weight, at least 1.

  Raises:
    ValueError: on an unknown level or rule, or a limit below 1.
  """
  _check(level, rule, limit)
  counts = segment_ids > 0
  log_weight = jnp.where(counts, logp_old - logp_sampler, 0.0)
  if level == 'sequence':
    ids = jnp.where(counts, segment_ids, 0)
    totals = jax.ops.segment_sum(
      log_weight.ravel(), ids.ravel(), num_segments + 1
    )
    log_weight = jnp.take(totals, ids, mode='fill', fill_value=jnp.nan)
  weight = jnp.exp(jnp.minimum(log_weight, ratio.MAX_LOG_RATIO))
  if rule == 'truncate':
    weight = jnp.minimum(weight, limit)
  else:
    # In logarithms both bounds are rounded alike.
    outside = jnp.abs(log_weight) > math.log(limit)
    weight = jnp.where(outside, 0.0, weight)
  return jax.lax.stop_gradient(jnp.where(counts, weight, 1.0))


def _check(level: str, rule: str, limit: float) -> None:
  for name, value, choices in (('level', level, LEVELS), ('rule', rule, RULES)):
    if value not in choices:
      raise ValueError(
        f'sampler_weight {name} must be one of {", ".join(choices)}, got '
        f'{value!r}; change --config.objective.sampler_correction'
      )
  if not limit >= 1.0:
    raise ValueError(
      f'sampler_weight limit must be at least 1, got {limit}; change '
      '--config.objective.sampler_correction_limit'
    )

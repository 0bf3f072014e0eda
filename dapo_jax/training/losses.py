"""The loss of a token, put together from the objective's parts.

    l_t = w_t * surrogate_t(ratio, advantage, bounds)
          + kl_coef * KL_t - entropy_coef * H_t

w_t corrects for the gap between sampler and trainer and is 1 unless asked for.
Every term is added up with the same token weights, so all of them are the same
under any split of the minibatch.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int
from ml_collections import FrozenConfigDict

from dapo_jax.objective import (
  clip,
  diagnostics,
  divergence,
  importance,
  ratio,
  surrogate,
)


class Tokens(NamedTuple):
  """What the loss sees of a micro-batch; 0 where no token counts."""

  logp: Float[Array, 'R T']
  logp_old: Float[Array, 'R T']
  logp_sampler: Float[Array, 'R T']
  advantage: Float[Array, 'R T']
  # Under the reference policy, and the entropy of this policy: only where the
  # loss asks for them.
  logp_ref: Float[Array, 'R T'] | None
  entropy: Float[Array, 'R T'] | None
  counts: Bool[Array, 'R T']
  segment_ids: Int[Array, 'R T']  # of responses, anew in each row: 1 to T


TokenLoss = Callable[[Tokens], tuple[Array, diagnostics.RatioStats]]


def needs_reference(config: FrozenConfigDict) -> bool:
  """Returns whether the objective compares with a reference policy."""
  return config.objective.kl_coef > 0


def policy_loss(config: FrozenConfigDict) -> TokenLoss:
  """Returns the token loss that the section `objective` describes.

  Raises:
    ValueError: for values that no objective can have.
  """
  c = config.objective
  take_ratio = _ratio(config)
  take_bounds = _bounds(config)
  take_surrogate = _surrogate(config)
  take_weight = _sampler_weight(config)

  def token_loss(t: Tokens):
    r = take_ratio(t)
    low, high = take_bounds(t)
    s = take_surrogate(t, r, low, high)
    weight = take_weight(t)
    loss = s.loss if weight is None else s.loss * weight
    if needs_reference(config) and c.kl_place == 'loss':
      loss += c.kl_coef * divergence.kl(
        t.logp,
        t.logp_ref,
        estimator=c.kl_estimator,
        straight_through=c.kl_straight_through,
      )
    if c.entropy_coef > 0:
      loss -= c.entropy_coef * t.entropy
    stats = diagnostics.ratio_stats(
      s,
      r,
      t.counts,
      advantage=t.advantage,
      logp=t.logp,
      segment_ids=t.segment_ids,
      sampler_weight=weight,
    )
    return loss, stats

  return token_loss


def supervised_loss(t: Tokens) -> tuple[Array, diagnostics.RatioStats]:
  """Returns the negative log-likelihood of each token, -logp."""
  return -t.logp, diagnostics.empty()


def _ratio(config: FrozenConfigDict) -> Callable[[Tokens], Array]:
  c = config.objective
  if c.ratio == 'token':
    return lambda t: ratio.token_ratio(
      t.logp, t.logp_old, clamp=c.log_ratio_clamp
    )
  return lambda t: jax.vmap(
    functools.partial(ratio.sequence_ratio, num_segments=t.segment_ids.shape[1])
  )(t.logp, t.logp_old, t.segment_ids)


def _bounds(config: FrozenConfigDict):
  c = config.objective
  if c.bounds == 'dac':
    return lambda t: clip.dac_bounds(
      t.logp_old,
      eps_low=c.clip_low,
      eps_high=c.clip_high,
      ratio_max=c.ratio_max,
    )
  bounds = clip.fixed_bounds(c.clip_low, c.clip_high)
  return lambda t: bounds


def _surrogate(config: FrozenConfigDict):
  c = config.objective
  if c.surrogate == 'cispo':
    return lambda t, r, low, high: surrogate.cispo(
      t.logp, r, t.advantage, low, high
    )
  return lambda t, r, low, high: surrogate.clipped_surrogate(
    r, t.advantage, low, high, dual_clip=c.dual_clip
  )


def _sampler_weight(config: FrozenConfigDict):
  c = config.objective
  if c.sampler_correction == 'none':
    return lambda t: None
  level, rule = c.sampler_correction.split('_')
  return lambda t: jax.vmap(
    functools.partial(
      importance.sampler_weight,
      num_segments=t.segment_ids.shape[1],
      level=level,
      rule=rule,
      limit=c.sampler_correction_limit,
    )
  )(t.logp_old, t.logp_sampler, t.segment_ids)

"""The clipped policy-gradient loss of a token."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Surrogate(NamedTuple):
  """Losses of tokens and which bound, if any, each of them hit."""

  # Loss to minimise, not yet weighted or masked.
  loss: Float[Array, '*shape']
  # The upper bound acts: ratio > high and, in `clipped_surrogate`,
  # advantage > 0.
  clipped_high: Bool[Array, '*shape']
  # The lower bound acts: ratio < low and, in `clipped_surrogate`,
  # advantage < 0.
  clipped_low: Bool[Array, '*shape']
  # The dual clip acts: advantage < 0 and ratio > dual_clip.
  clipped_dual: Bool[Array, '*shape']


def clipped_surrogate(
  ratio: Float[Array, '*shape'],
  advantage: Float[Array, '*shape'],
  low: Float[Array, '*shape'] | float,
  high: Float[Array, '*shape'] | float,
  *,
  dual_clip: float | None = None,
) -> Surrogate:
  """Returns the clipped surrogate loss of each token (DAPO eq. 8, 10).

      loss = max(-A r, -A clip(r, low, high))
      loss = min(-A c, loss)   where A < 0, when dual_clip = c is given

  It is written as a choice of the ratio that counts (r, low, high or c), which
  is the same number; so a clipped token has a gradient of exactly 0, an
  unclipped one exactly -A r per nat, on a bound too. A token whose advantage
  is 0 is never clipped.

  The sign is that of a loss: the papers maximise its negative. The dual clip
  is not in the DAPO paper; the published script has c = 10.

  Args:
    ratio: finite importance ratios, r.
    advantage: advantages, A.
    low: lower bounds, one number or one a token; at most 1.
    high: upper bounds, one number or one a token; at least 1.
    dual_clip: bound on the ratio where the advantage is negative; None = none.

  Raises:
    ValueError: if dual_clip is not above 1.
  """
  clipped_high = (advantage > 0) & (ratio > high)
  clipped_low = (advantage < 0) & (ratio < low)
  counted_ratio = jnp.where(clipped_high, high, ratio)
  counted_ratio = jnp.where(clipped_low, low, counted_ratio)
  clipped_dual = jnp.zeros_like(clipped_low)
  if dual_clip is not None:
    if not dual_clip > 1.0:
      raise ValueError(
        f'dual_clip must be above 1 or None, got {dual_clip}; change '
        '--config.objective.dual_clip'
      )
    clipped_dual = (advantage < 0) & (ratio > dual_clip)
    counted_ratio = jnp.where(clipped_dual, dual_clip, counted_ratio)
  loss = -advantage * counted_ratio
  return Surrogate(loss, clipped_high, clipped_low, clipped_dual)


def cispo(
  logp: Float[Array, '*shape'],
  ratio: Float[Array, '*shape'],
  advantage: Float[Array, '*shape'],
  low: Float[Array, '*shape'] | float,
  high: Float[Array, '*shape'] | float,
) -> Surrogate:
  """Returns each token's loss with a clipped weight (CISPO, 2506.13585).

      loss = -sg(clip(r, low, high)) A logp            (eq. 4, 5)

  The bounds cut the weight of a token, not the token: each keeps the gradient
  -clip(r, low, high) A per nat. So the flags say where the weight was cut,
  whatever the sign of the advantage, also where it is 0; the dual clip has no
  place here. The paper bounds the weight above only: low = 0.

  Args:
    logp: log-probs of the sampled tokens under the policy in training, [nats].
    ratio: finite importance ratios, r.
    advantage: advantages, A.
    low: lower bounds, one number or one a token; 0 = none.
    high: upper bounds, one number or one a token.
  """
  clipped_high, clipped_low = ratio > high, ratio < low
  weight = jnp.where(clipped_high, high, ratio)
  weight = jax.lax.stop_gradient(jnp.where(clipped_low, low, weight))
  loss = -weight * advantage * logp
  return Surrogate(
    loss, clipped_high, clipped_low, jnp.zeros_like(clipped_high)
  )

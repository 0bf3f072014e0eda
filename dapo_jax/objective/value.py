"""The loss of a value function."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class ValueLoss(NamedTuple):
  """Losses of tokens and whether the bound on the change acts."""

  # Loss to minimise, not yet weighted or masked.
  loss: Float[Array, '*shape']
  # The bounded value is the worse one: no gradient.
  clipped: Bool[Array, '*shape']


def clipped_value_loss(
  value: Float[Array, '*shape'],
  value_old: Float[Array, '*shape'],
  returns: Float[Array, '*shape'],
  *,
  clip: float | None,
) -> ValueLoss:
  """Returns the loss of each token's value (PPO's clipped value loss).

      loss = 1/2 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2)

  It is written as a choice of the value that counts, which is the same number;
  so a clipped token has a gradient of exactly 0 and an unclipped one exactly
  v - R, also where both are as far off.

  Args:
    value: predictions of the value function in training, v.
    value_old: the same when the responses were sampled.
    returns: what is to be predicted, R.
    clip: largest change that pays, c; None = no bound.

  Raises:
    ValueError: if clip is not above 0.
  """
  if clip is None:
    clipped = jnp.zeros(value.shape, bool)
    return ValueLoss(0.5 * (value - returns) ** 2, clipped)
  if not clip > 0.0:
    raise ValueError(
      f'value_clip must be above 0 or None, got {clip}; change '
      '--config.critic.value_clip'
    )
  bounded = jnp.clip(value, value_old - clip, value_old + clip)
  clipped = jnp.abs(bounded - returns) > jnp.abs(value - returns)
  counted = jnp.where(clipped, bounded, value)
  return ValueLoss(0.5 * (counted - returns) ** 2, clipped)

"""The bounds between which an importance ratio carries a gradient."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def fixed_bounds(eps_low: float, eps_high: float) -> tuple[float, float]:
  """Returns the lower and the upper bound of the ratio (DAPO eq. 10).

      low = 1 - eps_low,   high = 1 + eps_high

  Equal values are PPO's symmetric clip; DAPO decouples them ("clip-higher",
  0.2 and 0.28) so that an unlikely token may grow more.

  Raises:
    ValueError: unless 0 <= eps_low <= 1 and eps_high >= 0.
  """
  if not 0.0 <= eps_low <= 1.0:
    raise ValueError(
      f'clip_low must be from 0 to 1, got {eps_low}; change '
      '--config.objective.clip_low'
    )
  if not eps_high >= 0.0:
    raise ValueError(
      f'clip_high must be at least 0, got {eps_high}; change '
      '--config.objective.clip_high'
    )
  return 1.0 - eps_low, 1.0 + eps_high


def dac_bounds(
  logp_old: Float[Array, '*shape'],
  *,
  eps_low: float = 0.16,
  eps_high: float = 0.2,
  ratio_max: float = 10.0,
) -> tuple[Float[Array, '*shape'], Float[Array, '*shape']]:
  """Returns each token's lower and upper bound (DCPO, 2509.02333, eq. 4).

      low(q)  = 1/2 + 1/2 sqrt(max(1 - 4 eps_low / q, 0))
      high(q) = min(1/2 + 1/2 sqrt(1 + 4 eps_high / q), ratio_max)

  with q = exp(logp_old): the ratios r for which |(r - 1) r q| stays within
  eps. An unlikely token may change much, a likely one little. low is never
  below 1/2, which it is for q <= 4 eps_low. The paper's cap of 10 on the
  ratios of negative advantages too is `clipped_surrogate`'s dual_clip.

  As q goes to 0 the bounds go to 1/2 and ratio_max, also where q underflows;
  the published code jumps to low = 1 there. No gradient passes the bounds.

  Args:
    logp_old: log-probs under the policy that sampled, [nats].
    eps_low: bound on the change below; 0 allows none.
    eps_high: bound on the change above; 0 allows none.
    ratio_max: cap on the upper bound.

  Raises:
    ValueError: unless eps_low >= 0, eps_high >= 0 and ratio_max > 1.
  """
  for name, eps in (('clip_low', eps_low), ('clip_high', eps_high)):
    if not 0.0 <= eps < math.inf:
      raise ValueError(
        f'{name} must be at least 0 and finite, got {eps}; change '
        f'--config.objective.{name}'
      )
  if not ratio_max > 1.0:
    raise ValueError(
      f'ratio_max must be above 1, got {ratio_max}; change '
      '--config.objective.ratio_max'
    )
  logp_old = jax.lax.stop_gradient(logp_old)
  below = -_quotient_less_1(eps_low, logp_old)
  above = 2.0 + _quotient_less_1(eps_high, logp_old)
  low = 0.5 + 0.5 * jnp.sqrt(jnp.maximum(below, 0.0))
  high = 0.5 + 0.5 * jnp.sqrt(above)
  return low, jnp.minimum(high, ratio_max)


def _quotient_less_1(
  eps: float, logp_old: Float[Array, '*shape']
) -> Float[Array, '*shape']:
  """Returns 4 eps / q - 1, exact to rounding also near 0, and finite."""
  if eps == 0.0:
    return jnp.full_like(logp_old, -1.0)
  # The root of `low` is infinitely steep at q = 4 eps_low, so even the
  # rounding of log(4 eps) to float32 would show: its rest is a factor.
  exact = math.log(4.0 * eps)
  rounded = float(np.float32(exact))
  log_quotient = jnp.minimum(rounded - logp_old, 80.0)
  rest = math.expm1(exact - rounded)
  return jnp.expm1(log_quotient) + rest * jnp.exp(log_quotient)

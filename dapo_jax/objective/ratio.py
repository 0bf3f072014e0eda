"""The importance ratio of a token, between two policies."""

import jax.numpy as jnp
from jaxtyping import Array, Float

# Largest log-ratio that is exponentiated, [nats]. exp(40) = 2.4e17, so the
# ratio and its square, which the norm of a gradient sums, stay below
# float32's 3.4e38. (exp alone would overflow above 88.7.)
MAX_LOG_RATIO = 40.0


def token_ratio(
  logp: Float[Array, '*shape'],
  logp_old: Float[Array, '*shape'],
  *,
  clamp: float | None = None,
) -> Float[Array, '*shape']:
  """Returns each token's importance ratio, r = pi / pi_old (DAPO eq. 9).

      r = exp(min(logp - logp_old, 40))

  The bound keeps value and gradient finite in float32. Above it the ratio is
  constant, so the gradient is exactly 0; there is none below, where exp goes
  to 0 by itself. This is what makes a padding token harmless: whatever finite
  log-probs it holds, its ratio is finite and a weight of 0 removes it
  (`0 * inf` would be NaN). Non-finite log-probs are not handled: select them
  away before the call.

  verl bounds the log-ratio to [-20, 20]; `clamp=20.0` reproduces it. The paper
  has no bound.

  Args:
    logp: log-probs of the sampled tokens under the policy in training, [nats].
    logp_old: the same under the policy that sampled them, [nats].
    clamp: when given, the log-ratio is first bounded to [-clamp, clamp].
  """
  log_ratio = logp - logp_old
  # Selection, not jnp.clip, whose gradient on the bound itself is a half.
  if clamp is not None:
    log_ratio = jnp.where(log_ratio < -clamp, -clamp, log_ratio)
    log_ratio = jnp.where(log_ratio > clamp, clamp, log_ratio)
  log_ratio = jnp.where(log_ratio > MAX_LOG_RATIO, MAX_LOG_RATIO, log_ratio)
  return jnp.exp(log_ratio)

"""The importance ratio of a token, between two policies."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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


def sequence_ratio(
  logp: Float[Array, '*shape'],
  logp_old: Float[Array, '*shape'],
  segment_ids: Int[Array, '*shape'],
  num_segments: int,
) -> Float[Array, '*shape']:
  """Returns each token's share in its response's ratio (GSPO, 2507.18071).

      s   = exp(min(mean_t (logp_t - logp_old_t), 40))       (eq. 7)
      s_t = sg(s) exp(logp_t - sg(logp_t))                   (eq. 14)

  sg stops the gradient. All tokens of a response have the value s, so they are
  clipped together; the gradient of s_t by its own logp_t is s, and where the
  bound acts it is exactly 0, as in `token_ratio`. (verl bounds the mean to 10;
  the published DCPO baseline takes one mean over a whole micro-batch.)

  Padding has ratio 1 and no gradient, and whatever it holds, NaN included,
  reaches nothing. The mean is over the tokens that are given: a response must
  not be split over calls.

  Args:
    logp: log-probs of the sampled tokens under the policy in training, [nats].
    logp_old: the same under the policy that sampled them, [nats].
    segment_ids: the response of each token, 1 to num_segments; 0 = padding. An
      id is one response in the whole array (`jax.vmap` for ids by row). The
      ratio of an id beyond num_segments is NaN.
    num_segments: largest id there can be; static.
  """
  counts = segment_ids > 0
  # Chosen before the difference: a later choice leaves its gradient NaN.
  logp = jnp.where(counts, logp, 0.0)
  log_ratio = logp - jnp.where(counts, logp_old, 0.0)
  ids = jnp.where(counts, segment_ids, 0)
  add_up = lambda x: jax.ops.segment_sum(
    x.ravel(), ids.ravel(), num_segments + 1
  )
  tokens = add_up(counts.astype(logp.dtype))
  mean = add_up(jax.lax.stop_gradient(log_ratio)) / jnp.maximum(tokens, 1)
  mean = jnp.take(mean, ids, mode='fill', fill_value=jnp.nan)
  own = jnp.exp(logp - jax.lax.stop_gradient(logp))
  own = jnp.where(counts & ~(mean > MAX_LOG_RATIO), own, 1.0)
  return jnp.exp(jnp.minimum(mean, MAX_LOG_RATIO)) * own

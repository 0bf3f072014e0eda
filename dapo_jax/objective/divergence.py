"""Estimates of the divergence from a reference policy, token by token."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dapo_jax.objective import ratio

ESTIMATORS = ('k1', 'k2', 'k3')


def kl(
  logp: Float[Array, '*shape'],
  logp_ref: Float[Array, '*shape'],
  *,
  estimator: str = 'k1',
  straight_through: bool = False,
) -> Float[Array, '*shape']:
  """Returns each token's estimate of KL(pi || pi_ref), [nats] (Schulman 2020).

      k1 = d                     d = logp - logp_ref
      k2 = d^2 / 2
      k3 = exp(-d) - 1 + d       (GRPO, 2402.03300, eq. 4)

  Over tokens sampled from pi the mean of k1 and of k3 is the divergence; k1
  varies more and can be negative, k3 is never below 0, k2 is biased a little.
  The gradients are 1, d and 1 - exp(-d) per nat: only k2's has the
  divergence's own gradient as its mean (k1's has 0), so `straight_through`
  gives any estimate k2's gradient.

  In k3, -d is bounded to 40, as in `token_ratio`: so value and gradient are
  finite, and beyond it the value is constant, the gradient exactly 0. verl
  bounds d to +-20 and then k3 to 10, where its gradient ends, at d of about
  -2.6 and 11.

  Args:
    logp: log-probs of the sampled tokens under the policy in training, [nats].
    logp_ref: the same under the reference policy, [nats].
    estimator: one of `ESTIMATORS`.
    straight_through: the value of `estimator` with the gradient of k2.

  Raises:
    ValueError: on an unknown estimator.
  """
  difference = logp - logp_ref
  k2 = 0.5 * difference**2
  if estimator == 'k1':
    value = difference
  elif estimator == 'k2':
    value = k2
  elif estimator == 'k3':
    # Selection, not jnp.minimum, whose gradient on the bound is a half.
    u = jnp.where(
      difference < -ratio.MAX_LOG_RATIO, ratio.MAX_LOG_RATIO, -difference
    )
    # expm1: near 0 the estimate is far smaller than the rounding of 1.
    value = jnp.expm1(u) - u
  else:
    raise ValueError(
      f'unknown estimator {estimator!r}; --config.objective.kl_estimator must '
      f'be one of {", ".join(ESTIMATORS)}'
    )
  if not straight_through:
    return value
  # The bracket is exactly 0, so the value is exactly the estimate.
  return jax.lax.stop_gradient(value) + (k2 - jax.lax.stop_gradient(k2))

"""How a critic is fitted: the loss of its values and what is measured of it."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dapo_jax.objective import value as value_lib


class ValueStats(NamedTuple):
  """Sums over the tokens whose value an update fits."""

  token_count: Int[Array, '']
  clipped_count: Int[Array, '']
  square_sum: Float[Array, '']  # of returns - values


def nothing() -> ValueStats:
  """Returns the statistics of no token."""
  none = jnp.zeros((), jnp.int32)
  return ValueStats(none, none, jnp.zeros(()))


def loss(
  values: Float[Array, 'R T'],
  value_old: Float[Array, 'R T'],
  returns: Float[Array, 'R T'],
  *,
  counts: Bool[Array, 'R T'],
  clip: float | None,
) -> tuple[Float[Array, 'R T'], ValueStats]:
  """Returns the value loss of each token, 0 where none counts, and sums.

  Args:
    values: what the critic expects now.
    value_old: what it expected before the rollout's first update.
    returns: what it is to expect.
    counts: which places count; the others may hold anything.
    clip: how far a value may move from the old one, see `objective.value`.
  """
  values, value_old, returns = (
    jnp.where(counts, x, 0.0) for x in (values, value_old, returns)
  )
  found = value_lib.clipped_value_loss(values, value_old, returns, clip=clip)
  return found.loss, ValueStats(
    token_count=jnp.sum(counts, dtype=jnp.int32),
    clipped_count=jnp.sum(found.clipped & counts, dtype=jnp.int32),
    square_sum=jnp.sum((values - returns) ** 2),
  )


def metrics(parts: Sequence[ValueStats]) -> dict[str, int | float]:
  """Returns the `critic/` metrics of a step's updates, on the host."""
  tokens = sum(int(p.token_count) for p in parts)
  if tokens == 0:
    return {}
  squares = sum(float(p.square_sum) for p in parts)
  clipped = sum(int(p.clipped_count) for p in parts)
  return {
    'critic/square_error_mean': squares / tokens,
    'critic/clipped_frac': clipped / tokens,
  }

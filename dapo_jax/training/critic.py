"""The critic of PPO: values of tokens, and the advantages they give.

It is a decoder with a value head. Either it has layers of its own, which begin
as a copy of the policy's, and is updated beside the policy; or it shares the
policy's layers, and the policy's loss fits its values too.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Float, Float64
from ml_collections import FrozenConfigDict

from dapo_jax.model import decoder
from dapo_jax.objective import returns as returns_lib
from dapo_jax.training import micro_batches as micro_batches_lib
from dapo_jax.training import optimizer as optimizer_lib
from dapo_jax.training import packing, update, update_stats, value_fit


class Critic(NamedTuple):
  """A critic without its state."""

  model: decoder.Abstract
  # The rest of a critic with layers of its own; None of one that shares.
  shardings: update.TrainState | None
  optimizer: Any
  update: Callable | None
  # (params, rows, number of micro-batches) -> values, [M, R, T].
  values: Callable

  @property
  def shares(self) -> bool:
    """Whether its layers are the policy's."""
    return self.update is None


class Estimates(NamedTuple):
  """Of the responses of a step, one array a response."""

  advantages: list[Float64[np.ndarray, ' _']]
  returns: list[Float64[np.ndarray, ' _']]
  # Share of the returns' variance that the values explain; None of no token.
  explained_frac: float | None


def make_update(
  model: decoder.Abstract,
  optimizer: optax.GradientTransformation,
  shardings: update.TrainState,
  *,
  clip: float | None,
) -> Callable:
  """Returns the jitted update of a critic of its own (`update.make_step`)."""

  def micro_loss(params, part: packing.Rows, known: update.Experience):
    critic = nnx.merge(model.graphdef, params)
    loss, stats = value_fit.loss(
      critic.values(update.hidden_states(critic, part)),
      known.value_old,
      known.returns,
      counts=part.token_weight > 0,
      clip=clip,
    )
    total = jnp.sum(loss * part.token_weight)
    return total, update_stats.TokenStats(values=stats)

  nothing = update_stats.TokenStats(values=value_fit.nothing())
  return update.make_step(micro_loss, optimizer, shardings, nothing=nothing)


def make_values(model: decoder.Abstract) -> Callable:
  """Returns the jitted pass of a critic over a minibatch.

  It maps (params, rows, number of micro-batches) to the values, [M, R, T], of
  the places that predict response tokens; elsewhere they mean nothing.
  """

  def values(params, rows: packing.Rows, micro_batches):
    critic = nnx.merge(model.graphdef, params)

    def body(found, i, cut):
      hidden = update.hidden_states(critic, cut(rows))
      return micro_batches_lib.put(found, i, critic.values(hidden))

    nothing = jnp.zeros_like(rows.token_weight)
    return micro_batches_lib.fold(body, nothing, rows, micro_batches)

  return jax.jit(values)


def make(
  config: FrozenConfigDict, policy: decoder.Abstract, mesh: Mesh
) -> Critic:
  """Returns the critic of a configuration; compiles nothing yet."""
  c = config.critic
  model = decoder.with_value_head(policy, keep_token_head=c.shares_layers)
  if c.shares_layers:
    return Critic(model, None, None, None, make_values(model))
  chain = optimizer_lib.adamw(
    b1=config.optim.b1,
    b2=config.optim.b2,
    eps=config.optim.eps,
    weight_decay=config.optim.weight_decay,
    max_grad_norm=c.max_grad_norm,
  )
  shardings = update.state_shardings(model, chain, mesh)
  return Critic(
    model,
    shardings,
    chain,
    make_update(model, chain, shardings, clip=c.value_clip),
    make_values(model),
  )


def first_params(
  policy_params: decoder.Params, model: decoder.Abstract, shardings: Any
) -> decoder.Params:
  """Returns a critic's first weights: the policy's, and a head of zeros."""

  def copy(params):
    # Real copies: the policy's own arrays are donated to its updates.
    return {
      name: jax.tree.map(jnp.copy, params[name])
      if name in params
      else jnp.zeros(shape.shape, shape.dtype)
      for name, shape in model.shapes.items()
    }

  return jax.jit(copy, out_shardings=shardings)(policy_params)


def estimate(
  values: Sequence[Float[np.ndarray, ' _']],
  rewards: Sequence[float],
  penalties: Sequence[Float[np.ndarray, ' _']] | None,
  *,
  gamma: float,
  lam: float,
) -> Estimates:
  """Returns the advantages of every token of a step's responses (GAE).

  A response earns its reward at its last token, and what a token costs at the
  token. Nothing comes after the last one, a truncated response's included.

  Args:
    values: what the critic expects from each token on, an array a response.
    rewards: of the responses.
    penalties: what is taken off at each token; None = nothing.
    gamma: discount of a token.
    lam: GAE's lambda.
  """
  found = []
  for i, (value, reward) in enumerate(zip(values, rewards, strict=True)):
    earned = np.zeros(len(value), np.float64)
    earned[-1] = reward
    if penalties is not None:
      earned -= penalties[i]
    found.append(
      returns_lib.gae(earned, value.astype(np.float64), gamma=gamma, lam=lam)
    )
  returns = [r for _, r in found]
  return Estimates(
    [a for a, _ in found], returns, _explained_frac(values, returns)
  )


def _explained_frac(
  values: Sequence[np.ndarray], returns: Sequence[np.ndarray]
) -> float | None:
  """Returns 1 - Var(returns - values) / Var(returns); 0 where none varies."""
  if not values:
    return None
  values, returns = np.concatenate(values), np.concatenate(returns)
  variance = float(np.var(returns))
  if variance == 0.0:
    return 0.0
  return 1.0 - float(np.var(returns - values)) / variance


def metrics(
  parts: Sequence[update_stats.UpdateStats],
) -> dict[str, int | float]:
  """Returns the metrics of a step's updates of a critic of its own.

  Those that moved nothing are only counted.
  """
  if not parts:
    return {}
  skipped_count = sum(p.is_skipped for p in parts)
  parts = [p for p in parts if not p.is_skipped]
  counts = {'critic/skipped_update_count': skipped_count}
  if not parts:
    return counts
  return counts | {
    **value_fit.metrics([p.values for p in parts]),
    'critic/grad_norm': float(np.mean([p.grad_norm for p in parts])),
  }

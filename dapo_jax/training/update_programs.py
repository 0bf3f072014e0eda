"""The programs that learn, as a configuration asks for them.

They can be compiled for devices that are not there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax.sharding import Mesh
from ml_collections import FrozenConfigDict

from dapo_jax.model import decoder
from dapo_jax.training import critic as critic_lib
from dapo_jax.training import losses, optimizer, update


class UpdatePrograms(NamedTuple):
  """Jitted functions over packed rows, and the models that they take."""

  # The policy as it is trained: with a value head if the critic shares it.
  model: decoder.Abstract
  shardings: update.TrainState
  optimizer: Any
  old_logprobs: Callable
  # Of the reference, which has no value head.
  reference_logprobs: Callable
  update: Callable
  # None where advantages need no critic.
  critic: critic_lib.Critic | None


def make(
  config: FrozenConfigDict,
  model: decoder.Abstract,
  mesh: Mesh,
  token_loss: losses.TokenLoss,
  *,
  temperature: float,
  with_critic: bool,
) -> UpdatePrograms:
  """Returns the programs; compiles none.

  Args:
    config: the run's.
    model: the policy.
    mesh: the update's.
    token_loss: the loss of each token.
    temperature: at which log-probs are taken.
    with_critic: whether there is a critic, for `advantage.estimator=gae`.
  """
  c = config.optim
  chain = optimizer.adamw(
    b1=c.b1,
    b2=c.b2,
    eps=c.eps,
    weight_decay=c.weight_decay,
    max_grad_norm=c.max_grad_norm,
  )
  critic, trained, shared = None, model, None
  if with_critic:
    critic = critic_lib.make(config, model, mesh)
    if critic.shares:
      trained = critic.model
      shared = update.Shared(config.critic.coef, config.critic.value_clip)
  shardings = update.state_shardings(trained, chain, mesh)
  chunk_tokens = config.model.logits_chunk_tokens
  forward = update.Forward(trained, temperature, chunk_tokens)
  return UpdatePrograms(
    model=trained,
    shardings=shardings,
    optimizer=chain,
    old_logprobs=update.make_old_logprobs(forward),
    reference_logprobs=update.make_logprobs(forward._replace(model=model)),
    update=update.make_update(
      forward,
      token_loss,
      chain,
      shardings,
      entropy=config.objective.entropy_coef > 0,
      shared=shared,
    ),
    critic=critic,
  )


def abstract_state(programs: UpdatePrograms) -> update.TrainState:
  """Returns the shapes of the state, the critic's included."""
  state = update.abstract_state(
    programs.model, programs.optimizer, programs.shardings
  )
  critic = programs.critic
  if critic is None or critic.shares:
    return state
  return state._replace(
    critic=update.abstract_state(
      critic.model, critic.optimizer, critic.shardings
    )
  )

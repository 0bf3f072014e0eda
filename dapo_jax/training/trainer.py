"""The trainer: what every step uses and none changes, and its first state."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import FrozenConfigDict

from dapo_jax.data import mixture, stream
from dapo_jax.model import decoder
from dapo_jax.training import (
  assemble,
  checkpoint,
  losses,
  optimizer,
  update,
)
from dapo_jax.training import critic as critic_lib
from dapo_jax.training import prompts as prompts_lib


class Trainer(NamedTuple):
  """A configured run without its state."""

  config: FrozenConfigDict
  parts: assemble.Parts
  stream: stream.Stream | mixture.Mixture
  # The policy as it is trained: with a value head if the critic shares it.
  model: decoder.Abstract
  shardings: update.TrainState
  optimizer: Any
  # Weights of the reference policy; None where the objective has none.
  reference: decoder.Params | None
  old_logprobs: Callable
  # Of the reference, which has no value head.
  reference_logprobs: Callable
  update: Callable
  # None where advantages need no critic.
  critic: critic_lib.Critic | None


def make_trainer(
  config: FrozenConfigDict,
  parts: assemble.Parts,
  token_loss: losses.TokenLoss,
  *,
  temperature: float,
  with_critic: bool,
  round_prompts: int | None = None,
) -> Trainer:
  """Returns the trainer of a configuration; compiles nothing yet.

  Args:
    config: the run's.
    parts: what it is made of.
    token_loss: the loss of each token.
    temperature: at which log-probs are taken.
    with_critic: whether there is a critic, for `advantage.estimator=gae`.
    round_prompts: prompts drawn at a time, for `data.tail`; None = those of a
      round of the rollout.
  """
  c = config.optim
  chain = optimizer.adamw(
    b1=c.b1,
    b2=c.b2,
    eps=c.eps,
    weight_decay=c.weight_decay,
    max_grad_norm=c.max_grad_norm,
  )
  critic, model, shared = None, parts.model, None
  if with_critic:
    critic = critic_lib.make(config, parts.model, parts.mesh)
    if critic.shares:
      model = critic.model
      shared = update.Shared(config.critic.coef, config.critic.value_clip)
  shardings = update.state_shardings(model, chain, parts.mesh)
  chunk_tokens = config.model.logits_chunk_tokens
  forward = update.Forward(model, temperature, chunk_tokens)
  return Trainer(
    config=config,
    parts=parts,
    stream=prompts_lib.stream_of(
      parts.train_prompts,
      config,
      round_prompts=round_prompts or prompts_lib.round_prompts(config),
    ),
    model=model,
    shardings=shardings,
    optimizer=chain,
    reference=None,
    old_logprobs=update.make_old_logprobs(forward),
    reference_logprobs=update.make_logprobs(
      forward._replace(model=parts.model)
    ),
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


def with_reference(trainer: Trainer) -> Trainer:
  """Returns the trainer with the reference policy, if its objective has one.

  The reference is the policy that the run started from; its weights are read
  anew when a run goes on.
  """
  if not losses.needs_reference(trainer.config):
    return trainer
  params = assemble.initial_params(trainer.config, trainer.parts)
  return trainer._replace(reference=params)


def start_or_resume(
  trainer: Trainer, store: checkpoint.Store
) -> tuple[update.TrainState, checkpoint.Progress]:
  """Returns the newest checkpoint, or the state before the first step."""
  if store.latest_step() is not None:
    return store.restore(_abstract_state(trainer))
  params = assemble.initial_params(trainer.config, trainer.parts)
  critic = trainer.critic
  if critic is None:
    return (
      update.init_state(params, trainer.optimizer, trainer.shardings),
      checkpoint.Progress(),
    )
  where = trainer.shardings if critic.shares else critic.shardings
  with_head = critic_lib.first_params(params, critic.model, where.params)
  if critic.shares:
    state = update.init_state(with_head, trainer.optimizer, where)
  else:
    state = update.init_state(params, trainer.optimizer, trainer.shardings)
    state = state._replace(
      critic=update.init_state(with_head, critic.optimizer, where)
    )
  return state, checkpoint.Progress()


def _abstract_state(trainer: Trainer) -> update.TrainState:
  """Returns the shapes of the state, the critic's included."""
  state = update.abstract_state(
    trainer.model, trainer.optimizer, trainer.shardings
  )
  critic = trainer.critic
  if critic is None or critic.shares:
    return state
  return state._replace(
    critic=update.abstract_state(
      critic.model, critic.optimizer, critic.shardings
    )
  )

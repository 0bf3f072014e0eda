"""The trainer: what every step uses and none changes, and its first state."""

from typing import NamedTuple

from ml_collections import FrozenConfigDict

from dapo_jax.data import mixture, stream
from dapo_jax.model import decoder
from dapo_jax.training import (
  assemble,
  checkpoint,
  losses,
  update,
  update_programs,
)
from dapo_jax.training import critic as critic_lib
from dapo_jax.training import prompts as prompts_lib


class Trainer(NamedTuple):
  """A configured run without its state."""

  config: FrozenConfigDict
  parts: assemble.Parts
  stream: stream.Stream | mixture.Mixture
  # Weights of the reference policy; None where the objective has none.
  reference: decoder.Params | None
  programs: update_programs.UpdatePrograms


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
  programs = update_programs.make(
    config,
    parts.model,
    parts.mesh,
    token_loss,
    temperature=temperature,
    with_critic=with_critic,
  )
  return Trainer(
    config=config,
    parts=parts,
    stream=prompts_lib.stream_of(
      parts.train_prompts,
      config,
      round_prompts=round_prompts or prompts_lib.round_prompts(config),
    ),
    reference=None,
    programs=programs,
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
    return store.restore(update_programs.abstract_state(trainer.programs))
  params = assemble.initial_params(trainer.config, trainer.parts)
  programs = trainer.programs
  critic = programs.critic
  if critic is None:
    return (
      update.init_state(params, programs.optimizer, programs.shardings),
      checkpoint.Progress(),
    )
  where = programs.shardings if critic.shares else critic.shardings
  with_head = critic_lib.first_params(params, critic.model, where.params)
  if critic.shares:
    state = update.init_state(with_head, programs.optimizer, where)
  else:
    state = update.init_state(params, programs.optimizer, programs.shardings)
    state = state._replace(
      critic=update.init_state(with_head, critic.optimizer, where)
    )
  return state, checkpoint.Progress()

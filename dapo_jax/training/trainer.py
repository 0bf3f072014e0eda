"""The trainer: what every step uses and none changes, and its first state."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import FrozenConfigDict

from dapo_jax.data import stream
from dapo_jax.training import assemble, checkpoint, optimizer, update


class Trainer(NamedTuple):
  """A configured run without its state."""

  config: FrozenConfigDict
  parts: assemble.Parts
  stream: stream.Stream
  shardings: update.TrainState
  optimizer: Any
  old_logprobs: Callable
  update: Callable


def make_trainer(
  config: FrozenConfigDict,
  parts: assemble.Parts,
  token_loss: update.TokenLoss,
  *,
  temperature: float,
) -> Trainer:
  """Returns the trainer of a configuration; compiles nothing yet."""
  c = config.optim
  chain = optimizer.adamw(
    b1=c.b1,
    b2=c.b2,
    eps=c.eps,
    weight_decay=c.weight_decay,
    max_grad_norm=c.max_grad_norm,
  )
  shardings = update.state_shardings(parts.model, chain, parts.mesh)
  forward = update.Forward(
    parts.model, temperature, config.model.logits_chunk_tokens
  )
  return Trainer(
    config=config,
    parts=parts,
    stream=stream.Stream(
      parts.train_prompts, seed=config.seed, shuffle=config.data.shuffle
    ),
    shardings=shardings,
    optimizer=chain,
    old_logprobs=update.make_old_logprobs(forward),
    update=update.make_update(forward, token_loss, chain, shardings),
  )


def start_or_resume(
  trainer: Trainer, store: checkpoint.Store
) -> tuple[update.TrainState, checkpoint.Progress]:
  """Returns the newest checkpoint, or the state before the first step."""
  if store.latest_step() is not None:
    return store.restore(
      update.abstract_state(
        trainer.parts.model, trainer.optimizer, trainer.shardings
      )
    )
  params = assemble.initial_params(trainer.config, trainer.parts)
  state = update.init_state(params, trainer.optimizer, trainer.shardings)
  return state, checkpoint.Progress()

"""One step's learning: log-probs, then advantages, then the updates.

The log-probs of the behaviour policy, those of the reference policy and the
critic's values, where the objective has them, are taken before anything moves.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Float64
from ml_collections import FrozenConfigDict

from dapo_jax.data import records
from dapo_jax.monitor import timers as timers_lib
from dapo_jax.objective import divergence
from dapo_jax.parallel import placement
from dapo_jax.rollout import history
from dapo_jax.training import (
  advantages,
  losses,
  minibatches,
  optimizer,
  packing,
  update,
  update_stats,
)
from dapo_jax.training import critic as critic_lib
from dapo_jax.training import trainer as trainer_lib


class Learned(NamedTuple):
  """What a step's learning leaves."""

  state: update.TrainState
  advantages: advantages.Advantages
  metrics: dict[str, int | float]
  # Of each update, in order, what was not finite in it: then it moved nothing.
  faults: list[list[str]]


class _Before(NamedTuple):
  """What the models say of a minibatch before they are updated."""

  places: packing.Places
  logp_old: Float[Array, 'M R T']
  stats: update_stats.RolloutStats
  logp_ref: Float[Array, 'M R T'] | None
  values: Float[Array, 'M R T'] | None


def learn(
  trainer: trainer_lib.Trainer,
  state: update.TrainState,
  groups: Sequence[records.Group],
  known: history.History,
  timers: timers_lib.Timers,
  *,
  step: int,
) -> Learned:
  """Returns the state after the updates of a step; donates the one given.

  Args:
    trainer: the run.
    state: the policy that sampled the groups, and its critic.
    groups: what the step trains on, by draw ordinal.
    known: rewards of the prompts' earlier visits.
    timers: gets the times of the parts.
    step: number of this rollout step, from 1.
  """
  config = trainer.config
  parts = trainer.parts
  parts.shares.job.doing(f'the updates of step {step}')
  packed = minibatches.pack_groups(groups, config, parts.mesh, parts.shares)
  with timers.measure('time/old_logp_s'):
    before = jax.block_until_ready(
      [_before(trainer, state, batch) for batch in packed]
    )
  penalties = _penalties(before, config)
  if trainer.programs.critic is None:
    rewards = _group_rewards(groups, penalties)
    found = advantages.of_groups(groups, rewards, known, config)
    each, returns, more = found.values.ravel().tolist(), None, {}
  else:
    estimates = _estimates(groups, before, penalties, config)
    each = advantages.of_tokens(estimates.advantages, groups, config)
    found = advantages.Advantages(advantages.sizes(each, groups), known)
    returns = estimates.returns
    more = {}
    if estimates.explained_frac is not None:
      more['critic/explained_frac'] = estimates.explained_frac
  experience = _experience(before, each, returns, parts.mesh)
  with timers.measure('time/update_s'):
    state, moved, faults = _update(
      trainer, state, packed, experience, step=step
    )
  metrics = {
    **minibatches.metrics(packed, epochs=config.learner.epochs),
    **update_stats.rollout_metrics(jax.device_get([b.stats for b in before])),
    **_reference_metrics(before),
    **moved,
    **more,
  }
  return Learned(state, found, metrics, faults)


def _before(
  trainer: trainer_lib.Trainer,
  state: update.TrainState,
  packed: packing.Packed,
) -> _Before:
  """Returns what the models say of a minibatch before they are updated."""
  batch = (packed.rows, packed.micro_batches)
  logp_old, stats = trainer.programs.old_logprobs(state.params, *batch)
  logp_ref = values = None
  if trainer.reference is not None:
    logp_ref = trainer.programs.reference_logprobs(trainer.reference, *batch)
  if trainer.programs.critic is not None:
    of = state if trainer.programs.critic.shares else state.critic
    values = trainer.programs.critic.values(of.params, *batch)
  return _Before(packed.places, logp_old, stats, logp_ref, values)


def _reference_metrics(before: Sequence[_Before]) -> dict[str, int | float]:
  """Returns how far the behaviour policy is from the reference."""
  if not before or before[0].logp_ref is None:
    return {}
  # Both are 0 where no response token is predicted, and so is the estimate.
  sums = [
    jnp.sum(divergence.kl(b.logp_old, b.logp_ref, estimator='k3'))
    for b in before
  ]
  tokens = [b.stats.token_count for b in before]
  sums, tokens = jax.device_get((sums, tokens))
  return {'policy/reference_kl_nats': float(sum(sums) / sum(tokens))}


def _penalties(
  before: Sequence[_Before], config: FrozenConfigDict
) -> list[np.ndarray] | None:
  """Returns kl_coef * KL of each response's tokens; None if not in rewards."""
  c = config.objective
  if not losses.needs_reference(config) or c.kl_place != 'reward':
    return None
  found = []
  for b in before:
    kl = divergence.kl(b.logp_old, b.logp_ref, estimator=c.kl_estimator)
    found += packing.take(placement.on_host(kl).astype(np.float64), b.places)
  return [c.kl_coef * kl for kl in found]


def _group_rewards(
  groups: Sequence[records.Group], penalties: list[np.ndarray] | None
) -> Float64[np.ndarray, 'P G']:
  """Returns the groups' rewards, R - kl_coef * sum_t KL_t where asked for."""
  if not groups:
    return np.zeros((0, 0))
  rewards = np.stack([records.group_rewards(g) for g in groups])
  if penalties is None:
    return rewards
  return rewards - np.reshape([p.sum() for p in penalties], rewards.shape)


def _estimates(
  groups: Sequence[records.Group],
  before: Sequence[_Before],
  penalties: list[np.ndarray] | None,
  config: FrozenConfigDict,
) -> critic_lib.Estimates:
  """Returns the critic's advantages of the groups' responses."""
  return critic_lib.estimate(
    [
      v
      for b in before
      for v in packing.take(placement.on_host(b.values), b.places)
    ],
    [r for g in groups for r in records.group_rewards(g)],
    penalties,
    gamma=config.advantage.gamma,
    lam=config.advantage.gae_lambda,
  )


def _experience(
  before: Sequence[_Before],
  each: Sequence[float | np.ndarray],
  returns: Sequence[np.ndarray] | None,
  mesh: Mesh,
) -> list[update.Experience]:
  """Returns what the updates know of each minibatch's tokens.

  Args:
    before: what was taken of each minibatch.
    each: advantages of all responses, one number or one a token.
    returns: what the critic is to expect; None without one.
    mesh: where rows live.
  """
  begin, found = 0, []
  for b in before:
    end = begin + len(b.places)

    def field(values, b=b, begin=begin, end=end):
      spread = packing.spread(
        values[begin:end], b.places, shape=b.logp_old.shape
      )
      return placement.put_rows(spread, mesh)

    found.append(
      update.Experience(
        b.logp_old,
        field(each),
        b.logp_ref,
        value_old=b.values,
        returns=None if returns is None else field(returns),
      )
    )
    begin = end
  return found


def _update(
  trainer: trainer_lib.Trainer,
  state: update.TrainState,
  packed: Sequence[packing.Packed],
  experience: Sequence[update.Experience],
  *,
  step: int,
) -> tuple[update.TrainState, dict[str, int | float], list[list[str]]]:
  """Returns the state after all updates, their metrics and their faults."""
  config, critic_state = trainer.config, state.critic
  lr = optimizer.warmed_up(
    config.optim.lr, step=step - 1, warmup_steps=config.optim.warmup_steps
  )
  critic_lr = optimizer.warmed_up(
    config.critic.lr, step=step - 1, warmup_steps=config.critic.warmup_steps
  )
  policy = state._replace(critic=None)
  moved, critic_moved = [], []
  for _ in range(config.learner.epochs):
    for batch, known in zip(packed, experience, strict=True):
      rows = (batch.rows, known, batch.micro_batches)
      policy, stats = trainer.programs.update(policy, *rows, lr)
      moved.append(stats)
      if critic_state is not None:
        critic_state, stats = trainer.programs.critic.update(
          critic_state, *rows, critic_lr
        )
        critic_moved.append(stats)
  # The host waits here: the state is a boundary once this returns.
  moved, critic_moved = jax.device_get((moved, critic_moved))
  metrics = {**update_stats.update_metrics(moved), 'optim/lr': lr}
  return (
    policy._replace(critic=critic_state),
    metrics | critic_lib.metrics(critic_moved),
    _fault_names(policy, moved, critic_state, critic_moved),
  )


def _fault_names(
  policy: update.TrainState,
  moved: Sequence[update_stats.UpdateStats],
  critic: update.TrainState | None,
  critic_moved: Sequence[update_stats.UpdateStats],
) -> list[list[str]]:
  """Returns what was not finite in each update, of policy and critic."""
  found = [update_stats.fault_names(m.faults, policy.params) for m in moved]
  for names, m in zip(found, critic_moved, strict=False):
    names += [
      f'{n} of the critic'
      for n in update_stats.fault_names(m.faults, critic.params)
    ]
  return found

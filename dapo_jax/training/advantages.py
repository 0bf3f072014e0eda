"""The advantages of a step: from rewards, and what is remembered of prompts.

Some responses carry none whatever they earned: those that are left out of the
loss (`overlong.truncated=masked`), and with dynamic sampling on all of a
uniform group, which only fills the step up, though the overlong punishment may
make its rewards differ.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64
from ml_collections import FrozenConfigDict

from dapo_jax.data import records
from dapo_jax.objective import advantage as advantage_lib
from dapo_jax.objective import returns
from dapo_jax.rollout import dynamic_sampling, history

# An advantage smaller than this moves nothing: it is rounding.
_USED = 1e-8


class Advantages(NamedTuple):
  """Of a step's groups, in their order, and the history they leave."""

  values: Float64[np.ndarray, 'P G']
  history: history.History


def of_groups(
  groups: Sequence[records.Group],
  rewards: Float64[np.ndarray, 'P G'],
  known: history.History,
  config: FrozenConfigDict,
) -> Advantages:
  """Returns the advantages that a configuration asks for.

  Args:
    groups: judged groups, by draw ordinal.
    rewards: their rewards, every component and penalty added.
    known: the rewards of earlier visits; only SAS looks at them.
    config: the sections `advantage`, `filter` and `overlong` are read.
  """
  c = config.advantage
  if not groups:
    return Advantages(rewards, known)
  if c.estimator == 'smooth':
    memory = history.Memory(c.history_window_visits, c.history_decay)
    values, known = history.smooth_advantages(
      groups, rewards, known, ddof=c.ddof, memory=memory
    )
  else:
    values = advantage_lib.group_advantage(
      rewards, ddof=c.ddof, scale=c.scale, baseline=c.baseline
    )
  return Advantages(np.where(_carries(groups, config), values, 0.0), known)


def of_tokens(
  estimated: Sequence[Float[np.ndarray, ' _']],
  groups: Sequence[records.Group],
  config: FrozenConfigDict,
) -> list[Float[np.ndarray, ' _']]:
  """Returns the advantages of tokens that a critic's estimates become.

  They are 0 in a response that carries none; the others are whitened where
  that is asked for, over all of their tokens together.

  Args:
    estimated: an array a response, in the order of the groups.
    groups: judged groups, by draw ordinal.
    config: the sections `advantage`, `filter` and `overlong` are read.
  """
  if not groups:
    return []
  carries = _carries(groups, config).ravel()
  found = [a for a, c in zip(estimated, carries, strict=True) if c]
  found = iter(returns.whiten(found) if config.advantage.whiten else found)
  return [
    next(found) if c else np.zeros_like(a)
    for a, c in zip(estimated, carries, strict=True)
  ]


def sizes(
  of_tokens: Sequence[Float[np.ndarray, ' _']],
  groups: Sequence[records.Group],
) -> Float64[np.ndarray, 'P G']:
  """Returns each response's mean absolute advantage, which is measured."""
  if not groups:
    return np.zeros((0, 0))
  means = [float(np.abs(a).mean()) for a in of_tokens]
  return np.reshape(means, (len(groups), -1))


def _carries(
  groups: Sequence[records.Group], config: FrozenConfigDict
) -> Bool[np.ndarray, 'P G']:
  """Returns which responses carry an advantage."""
  masked = config.overlong.truncated == 'masked'
  found = np.array(
    [[not (masked and r.is_truncated) for r in g.responses] for g in groups]
  )
  if config.filter.enabled:
    found &= np.array([[dynamic_sampling.has_signal(g)] for g in groups])
  return found


def idle_history(config: FrozenConfigDict, prompts_count: int) -> str:
  """Returns a warning if SAS will hardly see a prompt twice, else ''.

  Args:
    config: the run's.
    prompts_count: training problems there are.
  """
  draws = config.train.steps * config.rollout.prompts_per_step
  if config.advantage.estimator != 'smooth' or draws >= 2 * prompts_count:
    return ''
  return (
    f'smooth advantages act from the second visit of a prompt on: {draws} '
    f'draws of {prompts_count} prompts are {draws / prompts_count:.2g} visits '
    'of each; take more --config.train.steps or fewer prompts'
  )


def metrics(
  advantages: Advantages,
  groups: Sequence[records.Group],
  *,
  generated_count: int,
) -> dict[str, int | float]:
  """Returns the `advantage/` metrics of a step.

  Args:
    advantages: of the groups that are trained.
    groups: these groups.
    generated_count: all responses that were sampled for the step, those that
      the filter dropped included.
  """
  if not groups:
    return {'advantage/used_frac': 0.0}
  size = np.abs(advantages.values)
  used = size > _USED
  visits = [
    advantages.history[g.draw.prompt.id].visits
    for g in groups
    if g.draw.prompt.id in advantages.history
  ]
  found = {
    # Response utilization ratio, RUR (DCPO eq. 10).
    'advantage/used_frac': int(used.sum()) / generated_count,
    'advantage/used_of_trained_frac': float(used.mean()),
    'advantage/used_groups_frac': float(used.any(axis=1).mean()),
    'advantage/abs_mean': float(size.mean()),
  }
  if visits:
    found['advantage/visits_mean_count'] = float(np.mean(visits))
  return found

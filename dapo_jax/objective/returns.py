"""Token advantages from a value function: generalised advantage estimation.

Host only, NumPy float64.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64

from dapo_jax.objective import advantage


def gae(
  rewards: Float[np.ndarray, 'T'],
  values: Float[np.ndarray, 'T'],
  *,
  gamma: float,
  lam: float,
) -> tuple[Float64[np.ndarray, 'T'], Float64[np.ndarray, 'T']]:
  """Returns the advantages and the returns of one response's tokens (GAE).

      delta_t = r_t + gamma V_{t+1} - V_t
      A_t     = delta_t + gamma lam A_{t+1}        (1506.02438, eq. 16)
      R_t     = A_t + V_t                          the value's target

  V and A after the last token are 0: the response has ended. With gamma = lam
  = 1 and one reward at the end, R_t is that reward and A_t what the value
  lacks of it. PPO, which DAPO is compared with, trains with these.

  Args:
    rewards: reward at each token.
    values: value predicted before each token is sampled.
    gamma: discount of later rewards, 0 to 1.
    lam: weight of longer estimates, 0 to 1.

  Raises:
    ValueError: if gamma or lam is not from 0 to 1.
  """
  for name, value in (('gamma', gamma), ('lam', lam)):
    if not 0.0 <= value <= 1.0:
      raise ValueError(
        f'{name} must be from 0 to 1, got {value}; change '
        f'--config.advantage.{name}'
      )
  values = values.astype(np.float64)
  deltas = rewards.astype(np.float64) - values
  deltas[:-1] += gamma * values[1:]
  # Plain numbers: the recursion is ten times as fast on them.
  found, later = [], 0.0
  for delta in reversed(deltas.tolist()):
    later = delta + gamma * lam * later
    found.append(later)
  advantages = np.array(found[::-1], np.float64)
  return advantages, advantages + values


def whiten(
  advantages: Sequence[Float[np.ndarray, '_']],
) -> list[Float64[np.ndarray, '_']]:
  """Returns the advantages with mean 0 and std 1 over all tokens together.

  The std is of the population; verl takes the sample std and adds 1e-8 to the
  variance. Advantages that are all alike, by `group_advantage`'s rule, get
  exactly 0.

  Args:
    advantages: the tokens' advantages of each response that the mean and the
      deviation are over: in a run, all of a rollout step that the loss sees,
      whatever minibatch they come in.
  """
  sizes = [len(response) for response in advantages]
  if not sum(sizes):
    return [np.zeros(0) for _ in sizes]
  tokens = np.concatenate(list(advantages)).astype(np.float64)
  largest = max(1.0, np.abs(tokens).max())
  if np.ptp(tokens) < advantage.UNIFORM_SPREAD * largest:
    tokens = np.zeros_like(tokens)
  else:
    tokens = (tokens - tokens.mean()) / tokens.std()
  return np.split(tokens, np.cumsum(sizes)[:-1])

"""The advantage of a response over the other responses to its prompt.

Host only, NumPy float64.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Num

# A group is uniform when its rewards spread by less than this, relative to the
# largest of them (or to 1): far above float32 rounding, far below any reward
# step.
UNIFORM_SPREAD = 1e-6

SCALES = ('group', 'batch', 'none')
BASELINES = ('mean', 'leave_one_out')


class RewardHistory(NamedTuple):
  """What each prompt's responses earned on earlier visits.

  A visit is a rollout step that trained on the prompt; a draw that was
  filtered out is none. The sums are exact enough for any number of visits and
  do not ask for groups of one size.
  """

  visits: Int64[np.ndarray, 'P']
  # Rewards, their sum and the sum of their squares, float64.
  count: Num[np.ndarray, 'P']
  total: Float64[np.ndarray, 'P']
  total_squares: Float64[np.ndarray, 'P']


def group_advantage(
  rewards: Float[np.ndarray, 'P G'],
  *,
  ddof: int = 1,
  scale: str = 'group',
  baseline: str = 'mean',
) -> Float64[np.ndarray, 'P G']:
  """Returns group-normalised advantages (GRPO; DAPO eq. 9).

      A_i = (R_i - b_i) / std(R)     over the G rewards of a prompt

      mean           b_i = mean(R)
      leave_one_out  b_i = mean of the others, so that
                     R_i - b_i = G/(G-1) (R_i - mean(R))    (RLOO, 2402.14740)

  Groups whose rewards are all alike get exactly 0, and so does a group of one.
  "Alike" is judged by max - min, because the deviations of equal shaped
  rewards from their rounded mean are not 0, and a std of 1e-8 would blow them
  up. Hence no epsilon is added to the std; verl adds 1e-6 (which changes an
  advantage by about 1e-6 of itself) and gives a group of one A = R.

  The paper does not say which std. With k of G responses right and rewards of
  +-1, ddof = 1 gives A = sqrt((G-k)(G-1)/(k G)) to the right ones.

  The baseline changes no divisor: leave_one_out is G/(G-1) times mean at every
  scale.

  Args:
    rewards: rewards of each prompt's responses, all components added.
    ddof: 1 = sample std, as in the published code; 0 = population std.
    scale: 'group' divides by the std of the group; 'batch' by the std of the
      centred rewards R - mean(R) of all groups, uniform ones included, so that
      hard and easy prompts keep their proportion (REINFORCE++ with a group
      baseline, 2501.03262); 'none' only centres (Dr. GRPO).
    baseline: what is taken off a reward.

  Raises:
    ValueError: on a non-finite reward, an unknown scale or baseline or another
      ddof.
  """
  _check_choice('ddof', ddof, (0, 1))
  _check_choice('scale', scale, SCALES)
  _check_choice('baseline', baseline, BASELINES)
  _check_finite(rewards)
  prompts, group_size = rewards.shape
  if prompts == 0 or group_size <= 1:
    return np.zeros(rewards.shape, np.float64)
  rewards = rewards.astype(np.float64)
  mixed = ~_uniform(rewards)
  mean = rewards.mean(axis=1, keepdims=True)
  centred = np.where(mixed, rewards - mean, 0.0)
  divisor = np.ones((prompts, 1))
  if scale == 'group':
    divisor = rewards.std(axis=1, ddof=ddof, keepdims=True)
  elif scale == 'batch':
    divisor = np.full((prompts, 1), centred.std(ddof=ddof))
  advantage = np.where(mixed, centred / np.where(mixed, divisor, 1.0), 0.0)
  if baseline == 'leave_one_out':
    advantage *= group_size / (group_size - 1)
  return advantage


def smooth_advantage(
  rewards: Float[np.ndarray, 'P G'],
  history: RewardHistory,
  *,
  ddof: int = 0,
) -> Float64[np.ndarray, 'P G']:
  """Returns smooth advantages (SAS; DCPO, 2509.02333, eq. 5-7).

      A_new    = (R - mean_new) / std_new        over this visit's G rewards
      A_total  = (R - mean_total) / std_total    over all visits, this one too
      SA_new   = (i-1)/i A_new + 1/i A_total
      SA_total = 1/i A_new + (i-1)/i A_total
      A        = SA_new if |SA_new| < |SA_total| else SA_total

  with i = visits + 1. So a first visit has A_new alone, and on a later one a
  group of equal rewards, whose A_new is 0, has A_total / i.

  A std of nothing but rounding counts as 0, and gives 0. For this visit that
  is `group_advantage`'s rule. The rewards before are only known by their sums:
  their variance, total_squares / count - mean^2, is off by some 1e-15 of the
  mean square, so their std by up to 1e-7 of its root. It counts as 0 below
  1e-6 of that, or of the largest reward or of 1. The pool's is put together
  from the two and from the distance of the means, where nothing cancels.

  The published code pools sample stds by the formula of population stds, which
  is the std of neither, and divides by any std above 0.

  Args:
    rewards: rewards of each prompt's responses on this visit.
    history: of the same prompts, without this visit.
    ddof: 0 = population std, as in the paper; 1 = sample std of the group and
      of the pool.

  Raises:
    ValueError: on a non-finite reward or another ddof.
  """
  new = group_advantage(rewards, ddof=ddof)
  pooled = _pooled_advantage(rewards.astype(np.float64), history, ddof)
  visit = (history.visits + 1.0)[:, None]
  before, now = (visit - 1) / visit, 1 / visit
  smooth_new = before * new + now * pooled
  smooth_total = now * new + before * pooled
  smaller = np.abs(smooth_new) < np.abs(smooth_total)
  smooth = np.where(smaller, smooth_new, smooth_total)
  return np.where(visit > 1, smooth, new)


def updated_history(
  history: RewardHistory, rewards: Float[np.ndarray, 'P G']
) -> RewardHistory:
  """Returns the history with one more visit, at which `rewards` were earned.

  Raises:
    ValueError: on a non-finite reward.
  """
  _check_finite(rewards)
  rewards = rewards.astype(np.float64)
  return RewardHistory(
    visits=history.visits + 1,
    count=history.count + float(rewards.shape[1]),
    total=history.total + rewards.sum(axis=1),
    total_squares=history.total_squares + (rewards**2).sum(axis=1),
  )


def _pooled_advantage(
  rewards: Float64[np.ndarray, 'P G'], history: RewardHistory, ddof: int
) -> Float64[np.ndarray, 'P G']:
  """Returns the advantages over all rewards of the prompt, these included."""
  group_size = rewards.shape[1]
  count = history.count.astype(np.float64)
  counted = np.maximum(count, 1.0)
  old_mean = history.total / counted
  mean_square = history.total_squares / counted
  largest = np.abs(rewards).max(axis=1, initial=1.0)
  least_std = UNIFORM_SPREAD * np.maximum(largest, np.sqrt(mean_square))
  old_variance = mean_square - old_mean**2
  old_variance = np.where(old_variance < least_std**2, 0.0, old_variance)
  gap = rewards.mean(axis=1) - old_mean
  pool = np.maximum(count + group_size, 1.0)
  squares = count * (old_variance + gap**2 * group_size / pool)
  squares += np.where(
    _uniform(rewards)[:, 0], 0.0, group_size * rewards.var(axis=1)
  )
  std = np.sqrt(squares / np.maximum(pool - ddof, 1.0))
  mean = old_mean + gap * group_size / pool
  mixed = std >= least_std
  std = np.where(mixed, std, 1.0)
  advantage = (rewards - mean[:, None]) / std[:, None]
  return np.where(mixed[:, None], advantage, 0.0)


def _uniform(
  rewards: Float64[np.ndarray, 'P G'],
) -> Bool[np.ndarray, 'P 1']:
  """Returns whether each group's rewards are alike."""
  largest = np.abs(rewards).max(axis=1, keepdims=True)
  spread = np.ptp(rewards, axis=1, keepdims=True)
  return spread < UNIFORM_SPREAD * np.maximum(1.0, largest)


def _check_choice(name: str, value, choices: tuple) -> None:
  if value not in choices:
    raise ValueError(
      f'{name} must be one of {", ".join(map(str, choices))}, got {value!r}; '
      f'change --config.advantage.{name}'
    )


def _check_finite(rewards: Float[np.ndarray, 'P G']) -> None:
  bad = np.argwhere(~np.isfinite(rewards))
  if len(bad):
    prompt, response = bad[0]
    raise ValueError(
      f'rewards must be finite, got {rewards[prompt, response]} for response '
      f'{response} of group {prompt} ({len(bad)} in all)'
    )

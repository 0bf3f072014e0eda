"""The advantage of a response over the other responses to its prompt.

Host only, NumPy float64.
"""

import numpy as np
from jaxtyping import Float, Float64

# A group is uniform when its rewards spread by less than this, relative to the
# largest of them (or to 1): far above float32 rounding, far below any reward
# step.
UNIFORM_SPREAD = 1e-6


def group_advantage(
  rewards: Float[np.ndarray, 'P G'],
  *,
  ddof: int = 1,
  scale: str = 'group',
) -> Float64[np.ndarray, 'P G']:
  """Returns group-normalised advantages (GRPO; DAPO eq. 9).

      A_i = (R_i - mean(R)) / std(R)     over the G rewards of a prompt

  Groups whose rewards are all alike get exactly 0, and so does a group of one.
  "Alike" is judged by max - min, because the deviations of equal shaped
  rewards from their rounded mean are not 0, and a std of 1e-8 would blow them
  up. Hence no epsilon is added to the std; verl adds 1e-6 (which changes an
  advantage by about 1e-6 of itself) and gives a group of one A = R.

  The paper does not say which std. With k of G responses right and rewards of
  +-1, ddof = 1 gives A = sqrt((G-k)(G-1)/(k G)) to the right ones.

  Args:
    rewards: rewards of each prompt's responses, all components added.
    ddof: 1 = sample std, as in the published code; 0 = population std.
    scale: 'group' divides by the std; 'none' only centres (Dr. GRPO).

  Raises:
    ValueError: on a non-finite reward, an unknown scale or another ddof.
  """
  if ddof not in (0, 1):
    raise ValueError(
      f'ddof must be 0 or 1, got {ddof}; change --config.advantage.ddof'
    )
  if scale not in ('group', 'none'):
    raise ValueError(
      f"scale must be 'group' or 'none', got {scale!r}; change "
      '--config.advantage.scale'
    )
  bad = np.argwhere(~np.isfinite(rewards))
  if len(bad):
    prompt, response = bad[0]
    raise ValueError(
      f'rewards must be finite, got {rewards[prompt, response]} for response '
      f'{response} of group {prompt} ({len(bad)} in all)'
    )
  prompts, group_size = rewards.shape
  if prompts == 0 or group_size <= 1:
    return np.zeros(rewards.shape, np.float64)
  rewards = rewards.astype(np.float64)
  largest = np.abs(rewards).max(axis=1, keepdims=True)
  spread = np.ptp(rewards, axis=1, keepdims=True)
  mixed = spread >= UNIFORM_SPREAD * np.maximum(1.0, largest)
  advantage = rewards - rewards.mean(axis=1, keepdims=True)
  if scale == 'group':
    std = rewards.std(axis=1, ddof=ddof, keepdims=True)
    advantage /= np.where(mixed, std, 1.0)
  return np.where(mixed, advantage, 0.0)

"""The soft punishment of responses that come near the length limit.

Host only, NumPy float64.
"""

import numpy as np
from jaxtyping import Float64, Int


def soft_punishment(
  length_tokens: int | np.integer | Int[np.ndarray, '*shape'],
  *,
  expected_tokens: int,
  cache_tokens: int,
) -> float | Float64[np.ndarray, '*shape']:
  """Returns the reward that a response's length adds (DAPO eq. 13).

      0                              |y| <= expected
      (expected - |y|) / cache       expected < |y| <= expected + cache
      -1                             expected + cache < |y|

  The paper's L_max is expected + cache, so expected = L_max - L_cache. It is
  added to correct answers too. verl has no floor at -1; the two agree up to
  L_max, which a sampler does not exceed.

  Args:
    length_tokens: response length, EOS included, [tokens]; a number or an
      array, and the result is of the same kind.
    expected_tokens: longest unpunished length, [tokens].
    cache_tokens: length of the interval in which it grows, [tokens].

  Raises:
    ValueError: unless cache_tokens >= 1 and expected_tokens >= 0.
  """
  if cache_tokens < 1:
    raise ValueError(
      f'cache_tokens must be at least 1, got {cache_tokens}; change '
      '--config.overlong.cache_tokens, or switch the punishment off with '
      '--config.overlong.enabled=false'
    )
  if expected_tokens < 0:
    raise ValueError(
      'cache_tokens must not exceed the longest response, got '
      f'{cache_tokens} and {expected_tokens + cache_tokens}; change '
      '--config.overlong.cache_tokens or '
      '--config.rollout.max_response_tokens'
    )
  punishment = (expected_tokens - np.asarray(length_tokens)) / cache_tokens
  punishment = np.clip(punishment, -1.0, 0.0)
  return punishment if np.ndim(length_tokens) else float(punishment)

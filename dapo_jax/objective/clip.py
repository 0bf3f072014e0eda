"""The bounds between which an importance ratio carries a gradient."""


def fixed_bounds(eps_low: float, eps_high: float) -> tuple[float, float]:
  """Returns the lower and the upper bound of the ratio (DAPO eq. 10).

      low = 1 - eps_low,   high = 1 + eps_high

  Equal values are PPO's symmetric clip; DAPO decouples them ("clip-higher",
  0.2 and 0.28) so that an unlikely token may grow more.

  Raises:
    ValueError: unless 0 <= eps_low < 1 and eps_high >= 0.
  """
  if not 0.0 <= eps_low < 1.0:
    raise ValueError(
      f'clip_low must be in [0, 1), got {eps_low}; change '
      '--config.objective.clip_low'
    )
  if not eps_high >= 0.0:
    raise ValueError(
      f'clip_high must be at least 0, got {eps_high}; change '
      '--config.objective.clip_high'
    )
  return 1.0 - eps_low, 1.0 + eps_high

"""The one endless order in which prompts of several sources are drawn.

Host only. As with one source, there is nothing to save but the ordinal of the
next draw: the order of the components repeats, and one period of it is known
from the start.
"""

import fractions
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from dapo_jax.data import records, stream

# Draws after which the order of the components repeats, at most.
MAX_PERIOD_DRAWS = 1_000_000


class Mixture:
  """Draws from several streams in proportion to their weights.

  After any n draws, each component has had its share of n to within 1, with m
  components to within 1 - 1/(2m - 2). The k-th draw of a component is the k-th
  of its own stream; its epoch is the component's.
  """

  def __init__(
    self, streams: Sequence[stream.Stream], weights: Sequence[int | float]
  ):
    """Makes the mixture; takes up to a second where the period is long.

    Args:
      streams: the components, at least one.
      weights: their weights, above 0, of any sum.

    Raises:
      ValueError: the weights have no short period.
    """
    counts = whole_weights(weights)
    assert len(streams) == len(counts), (len(streams), len(counts))
    self._streams = tuple(streams)
    self._counts = np.array(counts)
    self._components = period(counts)
    # How many draws of the same component stand before each in the period.
    self._places = np.zeros_like(self._components)
    for i, count in enumerate(counts):
      self._places[self._components == i] = np.arange(count)

  def take(self, first_ordinal: int, count: int) -> list[records.Draw]:
    """Returns the draws `first_ordinal`, ..., `first_ordinal + count - 1`."""
    assert first_ordinal >= 0 and count >= 0, (first_ordinal, count)
    ordinals = np.arange(first_ordinal, first_ordinal + count)
    periods, within = np.divmod(ordinals, len(self._components))
    components = self._components[within]
    own = periods * self._counts[components] + self._places[within]
    found = {}
    for i, component in enumerate(self._streams):
      mine = np.flatnonzero(components == i)
      if not len(mine):
        continue
      draws = component.take(int(own[mine[0]]), len(mine))
      for ordinal, draw in zip(ordinals[mine].tolist(), draws, strict=True):
        found[ordinal] = draw._replace(ordinal=ordinal)
    return [found[ordinal] for ordinal in ordinals.tolist()]


def period(counts: Sequence[int]) -> Int64[np.ndarray, 'T']:
  """Returns the component of each draw of a period, `counts[i]` of i.

  Of the components that may draw, the one that must do so soonest does, by
  number where several must (R. Tijdeman, The chairman assignment problem,
  Discrete Mathematics 32, 1980). With m components, w_i the share of i and
  c = 1/(2m - 2), it may have its draw k, from 0, from draw (k + c)/w_i on,
  and must have it by the first draw after (k + 1 - c)/w_i. So the
  number of its draws among the first n is n w_i to within 1 - c.

  Args:
    counts: draws of each component in a period, at least 1.
  """
  total, last = sum(counts), len(counts) - 1
  if not last:
    return np.zeros(total, np.int64)
  # In whole numbers: (k + 1/(2m - 2)) / w = (k (2m - 2) + 1) total / scale.
  scales = [2 * last * count for count in counts]
  opens = [-(-total // scale) for scale in scales]
  closes = [(2 * last - 1) * total // scale for scale in scales]
  drawn = [0] * len(counts)
  components = np.empty(total, np.int64)
  for n in range(total):
    i = min(
      (i for i, first in enumerate(opens) if first <= n + 1),
      key=closes.__getitem__,
    )
    components[n] = i
    drawn[i] += 1
    numerator = 2 * last * drawn[i] * total
    opens[i] = -(-(numerator + total) // scales[i])
    closes[i] = (numerator + (2 * last - 1) * total) // scales[i]
  return components


def whole_weights(weights: Sequence[int | float]) -> list[int]:
  """Returns the smallest whole numbers in proportion to the weights.

  A weight that is no short fraction of the largest is rounded to a fraction
  with a denominator of at most a million: 1/3 comes out as it is meant.

  Raises:
    ValueError: their sum, the period, is more than a million draws.
  """
  assert weights and min(weights) > 0, weights
  largest = fractions.Fraction(max(weights))
  ratios = [
    (fractions.Fraction(weight) / largest).limit_denominator(MAX_PERIOD_DRAWS)
    for weight in weights
  ]
  common = math.lcm(*(ratio.denominator for ratio in ratios))
  counts = [int(ratio * common) for ratio in ratios]
  if not all(counts) or sum(counts) > MAX_PERIOD_DRAWS:
    raise ValueError(
      f'the weights {tuple(weights)} must be in the proportion of whole numbers'
      f' whose sum is at most {MAX_PERIOD_DRAWS:,}; change'
      ' --config.data.mixture'
    )
  return [count // math.gcd(*counts) for count in counts]


def interleaved(
  lists: Sequence[Sequence[Any]], weights: Sequence[int | float]
) -> list[Any]:
  """Returns all items, so that the first ones are in proportion to weights.

  Item k of list i stands at (k + 1/2) / weight i. Where one list ends the
  others go on.
  """
  placed = [
    ((k + 0.5) / weight, i, item)
    for i, (items, weight) in enumerate(zip(lists, weights, strict=True))
    for k, item in enumerate(items)
  ]
  return [item for *_, item in sorted(placed, key=lambda place: place[:2])]

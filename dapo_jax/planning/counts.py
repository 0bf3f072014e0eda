"""Counts of what a program does, by the loops whose trips are its arguments.

A program of ours has loops whose trips are known when it is compiled (over
layers, over parts of the vocabulary), which counts include, and a few *dynamic*
ones, whose trips are a number that it is given (over micro-batches, over
decode steps).
"""

from collections.abc import Iterable, Sequence

# What happens once, then what a trip of each dynamic loop adds, in the order in
# which they stand in the program.
Counts = tuple[int | float, ...]


def total(counts: Counts, trips: Sequence[int | float]) -> int | float:
  """Returns the count of a run in which each dynamic loop makes so many trips.

  Args:
    counts: of a program.
    trips: of its dynamic loops, all of them.
  """
  once, *per_trip = counts
  return once + sum(n * t for n, t in zip(per_trip, trips, strict=True))


def add(several: Iterable[Counts], *, loops: int) -> Counts:
  """Returns the sum of counts of one program of so many dynamic loops."""
  sums = [0.0] * (loops + 1)
  for counts in several:
    for i, n in enumerate(counts):
      sums[i] += n
  return tuple(sums)


def scaled(counts: Counts, factor: int | float) -> Counts:
  """Returns counts times a number."""
  return tuple(n * factor for n in counts)

"""Verdicts of several comparisons as one, where some may be undecided.

A verdict is True, False, or None for undecided.

Host only.
"""

import types
from collections.abc import Callable, Iterable, Sequence

Verdict = bool | None
# What a rule says that may not apply: then it is `NotImplemented`.
Attempt = Verdict | types.NotImplementedType


def every(verdicts: Iterable[Verdict]) -> Verdict:
  """Returns whether all are true; None where an undecided one matters."""
  known = True
  for verdict in verdicts:
    if verdict is False:
      return False
    known = known and verdict
  return known


def some(verdicts: Iterable[Verdict]) -> Verdict:
  """Returns whether one is true; None where an undecided one matters."""
  verdicts = list(verdicts)
  return True if True in verdicts else None if None in verdicts else False


def covered(
  some_members: Sequence, others: Sequence, alike: Callable
) -> Verdict:
  """Returns whether two have the same members, however often each."""
  return every(
    [
      *(some(alike(a, b) for b in others) for a in some_members),
      *(some(alike(a, b) for a in some_members) for b in others),
    ]
  )


def matched(members: Sequence, others: Sequence, alike: Callable) -> Verdict:
  """Returns whether two are equal one to one, in any order.

  `alike` must be an equivalence: the first equal is as good as any.
  """
  if len(members) != len(others):
    return False
  left, undecided = list(others), False
  for member in members:
    verdicts = [alike(member, other) for other in left]
    if True in verdicts:
      left.pop(verdicts.index(True))
    elif None in verdicts:
      undecided = True
    else:
      return False
  return None if undecided else True

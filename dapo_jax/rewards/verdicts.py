"""What a grader says of a response.

Host only.
"""

from typing import NamedTuple


class Verdict(NamedTuple):
  """Whether a response is right, and by which answer."""

  # +1 if right, else -1 (DAPO eq. 7); a grader of the user's: any reward.
  score: float
  correct: bool
  # The answer as it was compared; `answers.NO_ANSWER` when there was none.
  extracted: str


def of(correct: bool, extracted: str) -> Verdict:
  """Returns the verdict of a grader of ours (DAPO eq. 7)."""
  return Verdict(1.0 if correct else -1.0, correct, extracted)

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

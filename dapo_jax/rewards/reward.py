"""The reward of a response, its components kept apart.

Host only.
"""

from collections.abc import Callable
from typing import NamedTuple

from dapo_jax.rewards import answers, verdicts


class Scale(NamedTuple):
  """What answers earn."""

  right: float  # DAPO eq. 7: 1
  wrong: float  # DAPO eq. 7: -1
  # A response without an answer (DCPO eq. 15: -1, where a wrong one has 0);
  # None = as a wrong one.
  no_answer: float | None


class Judgement(NamedTuple):
  """The parts of a response's reward; the reward is their sum."""

  correct: bool
  # What the answer earns.
  correctness: float
  # What it costs to have none in the form asked for: 0 or less.
  format: float
  # What the length costs: 0 or less.
  overlong: float
  # The answer as judged; `answers.NO_ANSWER` when there was none.
  extracted: str


def judge(
  verdict: verdicts.Verdict,
  *,
  length_tokens: int,
  scale: Scale | None,
  overlong: Callable[[int], float],
) -> Judgement:
  """Returns the judgement on a response.

  Dynamic sampling and evaluation count `correct`, never the reward, so that a
  group does not look mixed because its lengths differ.

  Args:
    verdict: what the grader says.
    length_tokens: length of the response, EOS included, [tokens].
    scale: what answers earn; None = the score of the verdict.
    overlong: reward added for a length in tokens (DAPO eq. 13).
  """
  correctness, form = verdict.score, 0.0
  if scale is not None:
    correctness = scale.right if verdict.correct else scale.wrong
    if scale.no_answer is not None and verdict.extracted == answers.NO_ANSWER:
      form = scale.no_answer - scale.wrong
  return Judgement(
    correct=verdict.correct,
    correctness=correctness,
    format=form,
    overlong=overlong(length_tokens),
    extracted=verdict.extracted,
  )

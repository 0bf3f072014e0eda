"""The reward of a response, its components kept apart.

Host only.
"""

from collections.abc import Callable
from typing import NamedTuple

from dapo_jax.rewards import answers, dapo_math


class Judgement(NamedTuple):
  """The parts of a response's reward; the reward is their sum."""

  correct: bool
  # What the answer earns.
  correctness: float
  # What the length costs: 0 or less.
  overlong: float
  # The answer as judged; `answers.NO_ANSWER` when there was none.
  extracted: str


def judge(
  text: str,
  gold: str,
  *,
  length_tokens: int,
  right: float,
  wrong: float,
  no_answer: float | None,
  overlong: Callable[[int], float],
) -> Judgement:
  """Returns the judgement on a response; no text makes it raise.

  Dynamic sampling counts `correct`, never the reward, so that a group does not
  look mixed because its lengths differ.

  Args:
    text: the response, decoded without special tokens; not the prompt.
    gold: the right answer.
    length_tokens: length of the response, EOS included, [tokens].
    right: correctness of a right answer (DAPO eq. 7: 1).
    wrong: correctness of a wrong one (DAPO eq. 7: -1).
    no_answer: correctness of a response without an answer (DCPO eq. 15: -1,
      where a wrong one has 0); None = that of a wrong one.
    overlong: reward added for a length in tokens (DAPO eq. 13).
  """
  verdict = dapo_math.score(text, gold)
  if no_answer is not None and verdict.extracted == answers.NO_ANSWER:
    wrong = no_answer
  return Judgement(
    correct=verdict.correct,
    correctness=right if verdict.correct else wrong,
    overlong=overlong(length_tokens),
    extracted=verdict.extracted,
  )

"""The data sets of the papers: which problems belong to each.

Host only. The problems themselves are the user's files.
"""

import re
from typing import NamedTuple

from dapo_jax.data import schemas

# Sign and digits, without the zeros around them that mean nothing.
_INTEGER = re.compile(r'(-?)0*([0-9]+)(?:\.0+)?')


class ProblemSet(NamedTuple):
  """What is known of a data set."""

  description: str
  # Problems as published, each once; None = not one number.
  published_count: int | None = None
  integer_answers: bool = False
  # Problems of a level below are left out; None = none are.
  min_level: int | None = None
  # Whether every row must say its level.
  needs_level: bool = False


SETS = {
  'dapo_math_17k': ProblemSet(
    'DAPO-Math-17k, the training problems of DAPO',
    # 1,791,700 rows, each problem 100 times.
    published_count=17_917,
    integer_answers=True,
  ),
  'math_levels_3_5': ProblemSet(
    'MATH, the problems of level 3 to 5',
    min_level=3,
    needs_level=True,
  ),
  'dcpo_train': ProblemSet(
    'the training problems of DCPO: DAPO-Math-17k and MATH from level 3',
    min_level=3,
  ),
  'aime24': ProblemSet('AIME 2024', published_count=30, integer_answers=True),
  'aime25': ProblemSet('AIME 2025', published_count=30, integer_answers=True),
  'amc23': ProblemSet('AMC 2023', published_count=40, integer_answers=True),
  'math500': ProblemSet('MATH-500, test problems of MATH', published_count=500),
  'gsm8k': ProblemSet('GSM8K, grade school word problems'),
}


def refusal(
  problem: schemas.Problem, problem_set: ProblemSet, where: str
) -> str:
  """Returns why a row does not belong to a data set; '' if it does.

  Raises:
    ValueError: it must say its level and does not.
  """
  if problem_set.needs_level and problem.level is None:
    raise ValueError(
      f"{where}: field `level` must be like 'Level 3' or 3, got nothing"
    )
  if problem_set.min_level is not None and problem.level is not None:
    if problem.level == 0:
      return 'level unknown'
    if problem.level < problem_set.min_level:
      return f'level below {problem_set.min_level}'
  if problem_set.integer_answers:
    if not _INTEGER.fullmatch(comparable(problem.answer)):
      return 'answer no integer'
  return ''


def comparable(answer: str) -> str:
  """Returns an answer so that its ways to be written are equal: 025 is 25."""
  text = answer.strip().removeprefix('$').removesuffix('$').strip()
  found = _INTEGER.fullmatch(text)
  if not found:
    return text
  sign, digits = found.groups()
  return digits if digits == '0' else sign + digits

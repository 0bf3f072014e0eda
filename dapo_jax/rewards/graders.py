"""The graders that a configuration can name.

Host only. One of ours finds the answer of a response and compares it with the
gold one: what plain Python can decide at once, anything else in worker
processes within limits. What a generated task has for a verifier judges there
too. One of the user's is a function that does as it likes.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from dapo_jax.data import records
from dapo_jax.rewards import (
  answers,
  dapo_math,
  equivalence,
  final_answer,
  own_grader,
  verdicts,
  verifier_pools,
  verifiers,
  worked_out,
)

# Gives the verdict on (response, prompt).
Grade = Callable[[str, records.Prompt], verdicts.Verdict]

# Not imported here: it loads a large library.
_SOLVES = 'dapo_jax.rewards.tasks:solves'

# How our graders are told to find an answer, by the forms that they read.
LINE, BOX = 'Answer: {}', '\\boxed{{{}}}'
NAMES = ('equivalence', 'equivalence_box', 'dapo', 'dapo_strict_box')


class Grader(NamedTuple):
  """How responses are graded; to be closed."""

  grade: Grade
  # The forms of an answer that it reads; () = unknown, it is the user's.
  forms: tuple[str, ...]
  # Answers that could not be compared so far, and why the latest could not.
  counts: Callable[[], verifiers.Counts]
  last_fault: Callable[[], str]
  close: Callable[[], None]

  @property
  def is_own(self) -> bool:
    """Whether it is a function of the user's, whose scores are rewards."""
    return not self.forms


def make(name: str, limits: verifier_pools.Limits) -> Grader:
  """Returns the grader of a name; starts no process yet.

  Args:
    name: one of `NAMES`, or a function as `own_grader.load` reads it.
    limits: of the worker processes, where the grader needs them.

  Raises:
    ValueError: there is no such grader.
  """
  pools = verifier_pools.Pools(limits)
  if ':' in name:
    grade, forms = own_grader.load(name), ()
  elif name == 'equivalence':
    grade, forms = functools.partial(_by_meaning, pools, False), (LINE, BOX)
  elif name == 'equivalence_box':
    grade, forms = functools.partial(_by_meaning, pools, True), (BOX,)
  elif name == 'dapo':
    grade, forms = functools.partial(_by_dapo, pools, False), (LINE,)
  elif name == 'dapo_strict_box':
    grade, forms = functools.partial(_by_dapo, pools, True), (BOX,)
  else:
    raise ValueError(
      f'there is no grader {name!r}; change --config.reward.grader to one of '
      f'{", ".join(NAMES)}, or to MODULE:FUNCTION or FILE.py:FUNCTION'
    )
  return Grader(grade, forms, pools.counts, pools.last_fault, pools.close)


def _by_meaning(
  pools: verifier_pools.Pools,
  only_box: bool,
  response: str,
  prompt: records.Prompt,
) -> verdicts.Verdict:
  extracted = final_answer.find(response, only_box=only_box)
  if prompt.task:
    return _by_task(pools, extracted, prompt.task)
  try:
    correct = equivalence.quick(extracted, prompt.gold)
  except Exception:
    # A fault of ours: a worker process meets it again, and there it counts.
    correct = None
  if correct is None:
    correct = pools.equal(equivalence.symbolic, extracted, prompt.gold)
  correct = correct and worked_out.is_worked_out(
    extracted, prompt.gold, prompt.messages[-1].content
  )
  return verdicts.of(correct, extracted)


def _by_dapo(
  pools: verifier_pools.Pools,
  strict_box: bool,
  response: str,
  prompt: records.Prompt,
) -> verdicts.Verdict:
  if not prompt.task:
    return dapo_math.score(response, prompt.gold, strict_box=strict_box)
  # As it stands: the rule's clean-up is of mathematics.
  if strict_box:
    extracted = final_answer.find(response, only_box=True)
  else:
    extracted = answers.last_answer(response).strip()
  return _by_task(pools, extracted, prompt.task)


def _by_task(
  pools: verifier_pools.Pools, extracted: str, task: str
) -> verdicts.Verdict:
  correct = extracted != answers.NO_ANSWER and pools.equal(
    _SOLVES, extracted, task
  )
  return verdicts.of(correct, extracted)

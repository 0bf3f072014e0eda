"""The verdict on an answer to a generated task.

Host only. reasoning-gym gives a score from 0 to 1, and pays for parts: for an
answer that holds the right one, for a list of guesses, sometimes for garbage.
Here an answer is right or not.
"""

import ast
import contextlib
import functools
import importlib
import json
import re
from collections.abc import Callable

# Worker processes load it with this module, so that the first verdict of each
# has all its time for itself.
with contextlib.suppress(ImportError):
  importlib.import_module('reasoning_gym')

# These verifiers run the answer as Python, through `eval` or sympy's parser.
_RUN_ANSWERS = frozenset(
  (
    'binary_matrix',
    'countdown',
    'intermediate_integration',
    'n_queens',
    'polynomial_multiplication',
    'puzzle24',
    'simple_integration',
    'spiral_matrix',
    'string_insertion',
  )
)
_FUNCTIONS = (
  r'(?:a?(?:sin|cos|tan)h?|sec|csc|cot|exp|log|ln|sqrt|Abs|erf|[CES]i|Ei|li)'
)
# An expression that, without its white space, calls nothing but functions of
# mathematics: no text, no attribute, no name before a bracket.
_HARMLESS = re.compile(
  rf'(?:(?<![\w)\].]){_FUNCTIONS}?\(|[A-Za-z0-9_]+|[-+*/^),=\[\]]|'
  r'\.(?![A-Za-z_]))*',
  re.ASCII,
)
# With one of these around it, no right answer is one.
_AROUND = ('also {}', '{} also 99', '{}, 99')

_Score = Callable[[str], float]


def solves(answer: str, task: str) -> bool:
  """Returns whether an answer solves a task.

  It does if the verifier of the family gives the full score, 1, and

  - it is the answer that the family keeps, spaces around it aside; or
  - it is another one that the verifier reads as a whole: it does not hold the
    kept answer and further letters or digits, and the verifier would refuse
    it with other words around it. Where a verifier looks for the answer within
    a text, only the kept answer is right.

  Args:
    answer: the final answer, without the text around it.
    task: the problem, as `data.tasks` writes it.

  Raises:
    Exception: whatever the verifier raises; some do for what they cannot
      read.
    ValueError, KeyError: `task` is no such text.
  """
  document = json.loads(task)
  family = document['family']
  if family in _RUN_ANSWERS and not _is_harmless(answer):
    return False
  entry = ast.literal_eval(document['entry'])
  scorer = _scorer(family, document['parameters'])
  score = lambda text: scorer(answer=text, entry=entry)
  if score(answer) != 1.0:
    return False
  gold = (entry['answer'] or '').strip()
  if answer.strip() == gold:
    return True
  return not _holds(answer, gold) and not _finds_within(score, answer)


def _is_harmless(answer: str) -> bool:
  return bool(_HARMLESS.fullmatch(''.join(answer.split())))


def _holds(answer: str, gold: str) -> bool:
  """Returns whether an answer is the kept one and something else."""
  before, found, after = answer.partition(gold) if gold else ('', '', '')
  return bool(found) and any(c.isalnum() for c in before + after)


def _finds_within(score: _Score, answer: str) -> bool:
  """Returns whether a verifier is as content with more than the answer."""
  for around in _AROUND:
    # One that cannot read it refuses it.
    with contextlib.suppress(Exception):
      if score(around.format(answer)) == 1.0:
        return True
  return False


@functools.cache
def _scorer(family: str, parameters: str) -> Callable[..., float]:
  """Returns the verifier of a family with these parameters."""
  from reasoning_gym import factory

  made = factory.create_dataset(
    family, seed=0, size=1, **ast.literal_eval(parameters)
  )
  return made.score_answer

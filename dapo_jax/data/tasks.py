"""Problems of the task families of reasoning-gym, each with its verifier.

Host only. `rewards.tasks` judges their answers.
"""

import ast
import json
import os
import re
import subprocess
import sys
from typing import Any

from absl import logging

from dapo_jax.data import held_out, records, task_maker

PREFIX = 'task:'
_FLAGS = '--config.data.source, --config.data.mixture or --config.eval.source'
_SOURCE = re.compile(r'task:\s*(\w+)\s*(?:\((.*)\))?\s*', re.DOTALL)


def load(
  source: str, *, problems: int, seed: int, held_out_frac: float
) -> tuple[list[records.Prompt], list[records.Prompt]]:
  """Returns the problems to train on and those held out, in a fixed order.

  The same arguments give the same lists in every process. Of problems with
  the same text the first is kept, and the number dropped is logged: easy
  settings have few. A solution is the line `Answer: ...`, where the answer
  has one line.

  Args:
    source: `task:FAMILY` or `task:FAMILY(NAME=VALUE, ...)`.
    problems: how many are made, before repeated ones are dropped.
    seed: of the problems.
    held_out_frac: share to hold out, by the hash of the text: see `held_out`.

  Raises:
    ValueError: the source is none, or reasoning-gym is not installed.
  """
  family, parameters = parse(source)
  made = _make(
    source, family=family, parameters=parameters, seed=seed, count=problems
  )
  prompts = {}
  for problem in made:
    prompts.setdefault(problem.question, _prompt(family, parameters, problem))
  if len(prompts) < len(made):
    logging.warning(
      '%s: dropped %d duplicates of %d problems, kept %d',
      source,
      len(made) - len(prompts),
      len(made),
      len(prompts),
    )
  return held_out.split(prompts.values(), held_out_frac)


def parse(source: str) -> tuple[str, dict[str, Any]]:
  """Returns family and parameters that `task:FAMILY(NAME=VALUE)` names.

  Values are Python literals; nothing is evaluated.

  Raises:
    ValueError: it does not read so.
  """
  match = _SOURCE.fullmatch(source)
  try:
    call = ast.parse(f'f({match[2] or ""})', mode='eval').body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
      raise ValueError
    parameters = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    # A keyword without a name is **something.
    if call.args or None in parameters or len(parameters) < len(call.keywords):
      raise ValueError
  except (TypeError, ValueError, SyntaxError):
    raise ValueError(
      f'{source!r} must read task:FAMILY or task:FAMILY(NAME=VALUE, ...), '
      'where values are numbers, texts in quotes, True, False, None, and lists '
      f'of these; change {_FLAGS}'
    ) from None
  return match[1], parameters


def _make(
  source: str,
  *,
  family: str,
  parameters: dict[str, Any],
  seed: int,
  count: int,
) -> list[task_maker.Problem]:
  """Returns the problems that a process of its own makes."""
  request = {
    'paths': sys.path,
    'family': family,
    'parameters': repr(parameters),
    'seed': seed,
    'count': count,
  }
  done = subprocess.run(
    # -P: the file's folder is no place to import from.
    [sys.executable, '-P', task_maker.__file__],
    input=json.dumps(request),
    capture_output=True,
    text=True,
    env=os.environ | {'PYTHONHASHSEED': '0', 'OMP_NUM_THREADS': '1'},
  )
  if done.returncode:
    last = (done.stderr.strip().splitlines() or ['it said nothing'])[-1]
    raise RuntimeError(
      f'{source}: the process that makes the problems ended with exit code '
      f'{done.returncode}: {last}'
    )
  reply = json.loads(done.stdout)
  if 'fault' in reply:
    raise ValueError(f'{source}: {reply["fault"]}; change {_FLAGS}')
  return [task_maker.Problem(*problem) for problem in reply['problems']]


def _prompt(
  family: str, parameters: dict[str, Any], problem: task_maker.Problem
) -> records.Prompt:
  """Returns the prompt of a problem."""
  gold = problem.answer
  return records.make_prompt(
    family,
    [records.Message('user', problem.question)],
    gold,
    solution=f'Answer: {gold}' if len(gold.splitlines()) == 1 else '',
    task=json.dumps(
      {
        'family': family,
        'parameters': repr(parameters),
        'entry': problem.entry,
      }
    ),
  )

"""What a process of its own does: it makes the problems of a task family.

Host only. `data.tasks` runs this file in a new interpreter in which the order
of a set is the same always, since that of several families depends on it. So
it imports reasoning-gym and the standard library alone.
"""

import ast
import contextlib
import dataclasses
import difflib
import json
import random
import sys
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class Problem(NamedTuple):
  """A problem that was made."""

  question: str
  # '' where the family keeps none.
  answer: str
  # The whole of it, as a Python literal: JSON has no tuples and turns keys
  # into texts, which some verifiers tell apart.
  entry: str


def make(
  family: str, parameters: Mapping[str, Any], *, seed: int, count: int
) -> list[Problem]:
  """Returns so many problems, of which some may be the same.

  Raises:
    ValueError: there is no such family or parameter, it does not take that
      value, or reasoning-gym is not installed.
  """
  try:
    from reasoning_gym import factory
  except ImportError as error:
    raise ValueError(
      'generated tasks need reasoning-gym: pip install '
      f"'dapo-jax[tasks]' ({error})"
    ) from None
  # A composite's parameters are no literals; data.mixture does as much.
  families = sorted(set(factory.DATASETS) - {'composite'})
  if family not in families:
    raise ValueError(
      f'there is no family {family!r}{_nearest(family, families)}'
    )
  _check_names(family, parameters, factory.DATASETS[family][1])
  random.seed(seed)  # a few families draw from it
  try:
    made = factory.create_dataset(family, seed=seed, size=count, **parameters)
    return [_problem(made[i]) for i in range(count)]
  except Exception as error:  # what they check, they check by assertions
    reason = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise ValueError(f'the family {family} does not take this: {reason}') from (
      error
    )


def _check_names(
  family: str, parameters: Mapping[str, Any], config: type
) -> None:
  """Raises for parameters that a family does not have."""
  names = {f.name for f in dataclasses.fields(config)}
  for name in parameters:
    if name in ('seed', 'size'):
      key = {'seed': 'seed', 'size': 'problems'}[name]
      raise ValueError(f'{name} is said by --config.data.task.{key}')
    if name not in names:
      have = sorted(names - {'seed', 'size'})
      raise ValueError(
        f'the family {family} has no parameter {name!r}{_nearest(name, have)}'
      )


def _nearest(name: str, names: Collection[str]) -> str:
  """Returns what may have been meant, as the end of a sentence."""
  near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
  return f'; the nearest is {near[0]}' if near else ''


def _problem(entry: Mapping[str, Any]) -> Problem:
  answer = entry['answer']
  return Problem(
    str(entry['question']),
    '' if answer is None else str(answer),
    repr(_plain({k: entry[k] for k in ('question', 'answer', 'metadata')})),
  )


def _plain(value: Any) -> Any:
  """Returns an equal value whose `repr` is a literal.

  Raises:
    TypeError: there is none.
  """
  if isinstance(value, dict):
    return {_plain(k): _plain(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return type(value)(map(_plain, value))
  if isinstance(value, bool) or value is None:
    return value
  for kind in (str, int, float):
    if isinstance(value, kind):  # NumPy has kinds of its own of these
      return kind(value)
  if hasattr(value, 'item'):
    return _plain(value.item())
  raise TypeError(f'{type(value).__name__} is no part of a literal')


def _main() -> None:
  """Answers the one request of the standard input."""
  request = json.load(sys.stdin)
  sys.path[:] = request.pop('paths')
  parameters = ast.literal_eval(request.pop('parameters'))
  reply = {}
  # Some families print.
  with contextlib.redirect_stdout(sys.stderr):
    try:
      reply['problems'] = make(parameters=parameters, **request)
    except ValueError as error:
      reply['fault'] = str(error)
  json.dump(reply, sys.stdout)


if __name__ == '__main__':
  _main()

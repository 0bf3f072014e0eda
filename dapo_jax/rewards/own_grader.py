"""A grader of the user's: a function of a module or file that they name.

Host only.
"""

import functools
import importlib
import importlib.util
import math
import numbers
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from dapo_jax.data import records
from dapo_jax.rewards import verdicts

_FLAG = '--config.reward.grader'


def load(name: str) -> Callable[[str, records.Prompt], verdicts.Verdict]:
  """Returns the function, its results checked.

  It is called with (response, prompt) by several threads at a time, and
  returns a `Verdict`. What it raises ends the run between two steps; so does
  any other result, for which the function that is returned raises TypeError
  or ValueError.

  Args:
    name: MODULE:FUNCTION, or FILE.py:FUNCTION, which needs no import path.

  Raises:
    ValueError: there is no such module, file or function.
  """
  place, _, attribute = name.rpartition(':')
  module = _file(place) if place.endswith('.py') else _module(place)
  function = getattr(module, attribute, None)
  if not callable(function):
    raise ValueError(
      f'{place} has no function {attribute!r}; change {_FLAG} ({name})'
    )
  return functools.partial(_checked, function)


def source(name: str) -> str:
  """Returns the text of the file that has a grader; '' of one that is ours.

  Args:
    name: what `load` takes, and has taken, or the name of one of ours.
  """
  place = name.rpartition(':')[0]
  if place.endswith('.py'):
    file = str(pathlib.Path(place).expanduser())
  else:
    file = getattr(sys.modules.get(place), '__file__', None) or ''
  # One that is compiled has no text.
  text = file.endswith('.py')
  return pathlib.Path(file).read_text(errors='replace') if text else ''


def _module(name: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ValueError(
      f'module {name!r} cannot be imported: {error}; change {_FLAG}, or name '
      'its file as FILE.py:FUNCTION'
    ) from error


def _file(name: str) -> Any:
  path = pathlib.Path(name).expanduser()
  if not path.is_file():
    raise ValueError(f'there is no file {path}; change {_FLAG}')
  # A name that no import has: a file json.py is not to stand in for json.
  spec = importlib.util.spec_from_file_location(f'_own_{path.stem}', path)
  module = importlib.util.module_from_spec(spec)
  # Where a dataclass looks for what its annotations name.
  sys.modules[spec.name] = module
  spec.loader.exec_module(module)
  return module


def _checked(
  function: Callable[[str, records.Prompt], Any],
  response: str,
  prompt: records.Prompt,
) -> verdicts.Verdict:
  verdict = function(response, prompt)
  if not isinstance(verdict, verdicts.Verdict):
    raise TypeError(f'a grader must return a Verdict, got {verdict!r:.200}')
  score, correct, extracted = verdict
  if not isinstance(correct, bool) or not isinstance(extracted, str):
    raise TypeError(
      'a Verdict must have a bool and a text as `correct` and `extracted`, got '
      f'{verdict!r:.200}'
    )
  if not isinstance(score, numbers.Real):
    raise TypeError(f'the score of a Verdict must be a number, got {score!r}')
  if not math.isfinite(score):
    raise ValueError(f'the score of a Verdict must be finite, got {score}')
  return verdict

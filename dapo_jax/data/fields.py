"""The values of a row's fields, or an error that names file, row and field.

Host only. `where` is the row's place, which every message begins with.
"""

import json
from typing import Any

from dapo_jax.data import records


def filled_text(value: Any, where: str, field: str) -> str:
  """Returns `value` if it is text with something in it."""
  if not text(value, where, field).strip():
    raise ValueError(
      f'{where}: field `{field}` must not be empty, got {shown(value)}'
    )
  return value


def text(value: Any, where: str, field: str) -> str:
  """Returns `value` if it is text that can be written as UTF-8."""
  if not isinstance(value, str):
    raise ValueError(
      f'{where}: field `{field}` must be a string, got {shown(value)}'
    )
  try:
    value.encode('utf-8')
  except UnicodeEncodeError as error:
    raise ValueError(
      f'{where}: field `{field}` must be valid Unicode; {error}'
    ) from error
  return value


def answer(value: Any, where: str, field: str) -> str:
  """Returns a right answer as text; it is text or an integer.

  An integer may be a float, such as 27.0, as long as all integers of its size
  are floats: a column of numbers often has that type.
  """
  if isinstance(value, float) and abs(value) < 2**53 and value.is_integer():
    value = int(value)
  # bool is an int to Python, but "True" is no answer anybody meant.
  if isinstance(value, int) and not isinstance(value, bool):
    return str(value)
  if not isinstance(value, str):
    raise ValueError(
      f'{where}: field `{field}` must be a string or an integer, got'
      f' {shown(value)}'
    )
  return filled_text(value, where, field)


def messages(value: Any, where: str, field: str) -> list[records.Message]:
  """Returns a conversation."""
  if not isinstance(value, list) or not value:
    raise ValueError(
      f'{where}: field `{field}` must be a list of one or more objects'
      f' with `role` and `content`, got {shown(value)}'
    )
  return [_message(t, where, f'{field}[{i}]') for i, t in enumerate(value)]


def mapping(value: Any, where: str, field: str) -> dict[str, Any]:
  """Returns `value` if it is an object."""
  if not isinstance(value, dict):
    raise ValueError(
      f'{where}: field `{field}` must be an object, got {shown(value)}'
    )
  return value


def shown(value: Any) -> str:
  """Returns `value` as JSON, short enough for a message."""
  if value is None:
    return 'nothing'
  words = json.dumps(value, default=str)
  return words if len(words) <= 60 else f'{words[:57]}...'


def _message(turn: Any, where: str, field: str) -> records.Message:
  """Returns one turn of a conversation."""
  if not isinstance(turn, dict):
    raise ValueError(
      f'{where}: field `{field}` must be an object with `role` and'
      f' `content`, got {shown(turn)}'
    )
  return records.Message(
    role=filled_text(turn.get('role'), where, f'{field}.role'),
    content=filled_text(turn.get('content'), where, f'{field}.content'),
  )

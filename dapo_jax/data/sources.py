"""Prompts read from a file: JSON Lines, one problem a line.

Host only. A line is an object with these fields; others are left alone.

  problem   the problem's text, which becomes one user message; or
  messages  the conversation, a list of {"role": ..., "content": ...};
  answer    the right answer, a string or an integer;
  solution  optional: a whole right response, for supervised training.
"""

import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from dapo_jax.data import records

_FLAGS = '--config.data.source or --config.eval.source'


def load_jsonl(path: str | os.PathLike[str]) -> list[records.Prompt]:
  """Returns the prompts of a JSON Lines file, in the file's order.

  Their data set is the file's name without its ending. Of lines with the same
  messages and answer the first is kept, and the number dropped is logged:
  published data sets repeat their problems. Blank lines are skipped.

  Args:
    path: the file, in UTF-8.

  Raises:
    ValueError: there is no such file, no problem in it, or a line that is not
      as described above; the message names file, line and field.
  """
  file = pathlib.Path(path)
  prompts = {}
  read_count = 0
  for where, row in rows(file, flags=_FLAGS):
    prompt = to_prompt(row, where, dataset=file.stem)
    prompts.setdefault(prompt.id, prompt)
    read_count += 1
  if not prompts:
    raise ValueError(f'{file} holds no problem; change {_FLAGS}')
  if read_count > len(prompts):
    logging.warning(
      '%s: dropped %d duplicates of %d lines, kept %d prompts',
      file,
      read_count - len(prompts),
      read_count,
      len(prompts),
    )
  return list(prompts.values())


def rows(
  file: pathlib.Path, *, flags: str
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields ('file:number', object) of each line that is not blank.

  Args:
    file: JSON Lines, in UTF-8.
    flags: what to change where there is no such file.

  Raises:
    ValueError: there is no such file, or a line is no JSON object.
  """
  if not file.is_file():
    raise ValueError(f'there is no file {file}; change {flags}')
  for where, line in _lines(file):
    yield where, _object(line, where)


def _lines(file: pathlib.Path) -> Iterator[tuple[str, bytes]]:
  """Yields ('file:number', line) of each line that is not blank."""
  with file.open('rb') as stream:  # Bytes: only '\n' may end a line here.
    for number, line in enumerate(stream, start=1):
      if line.strip():
        yield f'{file}:{number}', line


def to_prompt(
  row: dict[str, Any], where: str, *, dataset: str
) -> records.Prompt:
  """Returns the prompt of an object, if it has the fields of one.

  Raises:
    ValueError: it has not; the message begins with `where`.
  """
  return records.make_prompt(
    dataset,
    _messages(row, where),
    _answer(row, where),
    solution=_text(row.get('solution', ''), where, 'solution'),
  )


def _object(line: bytes, where: str) -> dict[str, Any]:
  """Returns the JSON object of a line."""
  try:
    row = json.loads(line.decode('utf-8-sig'))
  except ValueError as error:  # Not UTF-8, or not JSON.
    raise ValueError(f'{where}: expected a JSON object; {error}') from error
  if not isinstance(row, dict):
    raise ValueError(f'{where}: expected a JSON object, got {_shown(row)}')
  return row


def _messages(row: dict[str, Any], where: str) -> list[records.Message]:
  """Returns the conversation of a row."""
  if ('problem' in row) == ('messages' in row):
    raise ValueError(
      f'{where}: expected one of the fields `problem` and `messages`, got'
      f' the fields {sorted(row)}'
    )
  if 'problem' in row:
    problem = _filled_text(row['problem'], where, 'problem')
    return [records.Message('user', problem)]
  turns = row['messages']
  if not isinstance(turns, list) or not turns:
    raise ValueError(
      f'{where}: field `messages` must be a list of one or more objects'
      f' with `role` and `content`, got {_shown(turns)}'
    )
  return [_message(t, where, f'messages[{i}]') for i, t in enumerate(turns)]


def _message(turn: Any, where: str, field: str) -> records.Message:
  """Returns one turn of a conversation."""
  if not isinstance(turn, dict):
    raise ValueError(
      f'{where}: field `{field}` must be an object with `role` and'
      f' `content`, got {_shown(turn)}'
    )
  return records.Message(
    role=_filled_text(turn.get('role'), where, f'{field}.role'),
    content=_filled_text(turn.get('content'), where, f'{field}.content'),
  )


def _answer(row: dict[str, Any], where: str) -> str:
  """Returns the right answer of a row as text."""
  value = row.get('answer')
  # bool is an int to Python, but "True" is no answer anybody meant.
  if isinstance(value, int) and not isinstance(value, bool):
    return str(value)
  if not isinstance(value, str):
    raise ValueError(
      f'{where}: field `answer` must be a string or an integer, got'
      f' {_shown(value)}'
    )
  return _filled_text(value, where, 'answer')


def _filled_text(value: Any, where: str, field: str) -> str:
  """Returns `value` if it is text with something in it."""
  if not _text(value, where, field).strip():
    raise ValueError(
      f'{where}: field `{field}` must not be empty, got {_shown(value)}'
    )
  return value


def _text(value: Any, where: str, field: str) -> str:
  """Returns `value` if it is text that can be written as UTF-8."""
  if not isinstance(value, str):
    raise ValueError(
      f'{where}: field `{field}` must be a string, got {_shown(value)}'
    )
  try:
    value.encode('utf-8')
  except UnicodeEncodeError as error:
    raise ValueError(
      f'{where}: field `{field}` must be valid Unicode; {error}'
    ) from error
  return value


def _shown(value: Any) -> str:
  """Returns `value` as JSON, short enough for a message."""
  if value is None:
    return 'nothing'
  text = json.dumps(value)
  return text if len(text) <= 60 else f'{text[:57]}...'


def with_shots(
  prompts: Sequence[records.Prompt], shots: Sequence[records.Prompt]
) -> list[records.Prompt]:
  """Returns the prompts with solved problems before them, turn by turn.

  Raises:
    ValueError: when an example has no solution.
  """
  unsolved = sum(not shot.solution for shot in shots)
  if unsolved:
    raise ValueError(
      f'{unsolved} of the {len(shots)} problems that are to be examples have '
      'no solution; change --config.data.shots or the data'
    )
  turns = []
  for shot in shots:
    turns += [*shot.messages, records.Message('assistant', shot.solution)]
  return [
    records.make_prompt(
      p.dataset, [*turns, *p.messages], p.gold, solution=p.solution
    )
    for p in prompts
  ]

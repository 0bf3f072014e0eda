r"""What a row says, whichever of the published schemas it has.

Host only. A row has one of these; other fields are left alone.

  verl, DAPO  prompt [{role, content}], reward_model {ground_truth}
  GSM8K       question, answer: the working, then a line `#### N`
  MATH        problem, level, solution with the answer in its last \boxed{}
  ours        one of problem, prompt, question and messages [{role, content}],
              answer, and where there is one, solution: a whole right response

What stands in `prompt` is taken as published: an instruction around the
problem is left out. `level` and `data_source` (or `source`) may stand in any.
A field that is null is none: parquet has every field in every row.
"""

import re
from typing import Any, NamedTuple

from dapo_jax.data import braces, fields, instructions, records

_TEXTS = ('problem', 'prompt', 'messages', 'question')
_GSM8K_ANSWER = re.compile(r'^#### *(\S.*?)\s*\Z', re.MULTILINE)
# What a calculator was to be asked, as in `48/2 = <<48/2=24>>24`.
_CALCULATION = re.compile(r'<<[^<>\n]*>>')
_NUMBER = re.compile(r'\s*-?[0-9][0-9,]*(?:\.[0-9]+)?\s*')
_LEVEL = re.compile(r'(?:Level )?([0-9])')
# MATH has a few boxes of another name, and without braces.
_BOX = re.compile(r'\\(?:boxed|fbox)(?![A-Za-z])\s*')
_BARE = re.compile(r'[^{}$]*(?=\$)')


class Problem(NamedTuple):
  """A row, read."""

  messages: tuple[records.Message, ...]
  answer: str
  # A whole right response; '' = unknown.
  solution: str
  # How hard it is by MATH's scale of 1 to 5; None = not said, 0 = unknown.
  level: int | None
  # Where the row says that it comes from; '' = it does not.
  source: str


def read(row: dict[str, Any], where: str) -> Problem:
  """Returns what a row says.

  Raises:
    ValueError: it has none of the schemas; the message names row and field.
  """
  row = {name: value for name, value in row.items() if value is not None}
  name = _text_field(row, where)
  messages = _messages(row[name], where, name)
  answer, solution = _answer(row, where, name)
  origin = 'data_source' if row.get('data_source') else 'source'
  return Problem(
    messages=tuple(messages),
    answer=answer,
    solution=solution,
    level=_level(row, where),
    source=fields.text(row.get(origin) or '', where, origin),
  )


def _text_field(row: dict[str, Any], where: str) -> str:
  """Returns the name of the field with the problem."""
  present = [name for name in _TEXTS if name in row]
  # Some publish a problem as `problem` and as `question`.
  is_same = all(row[name] == row[present[0]] for name in present)
  if not present or not is_same:
    raise ValueError(
      f'{where}: expected one of the fields `problem`, `prompt`, `messages`'
      f' and `question`, got the fields {sorted(row)}'
    )
  return present[0]


def _messages(value: Any, where: str, name: str) -> list[records.Message]:
  """Returns the conversation of a row."""
  if name == 'messages':
    return fields.messages(value, where, name)
  if name == 'prompt' and not isinstance(value, str):
    found = instructions.without(fields.messages(value, where, name))
    if not any(m.role == 'user' and m.content.strip() for m in found):
      raise ValueError(
        f'{where}: field `prompt` must have a message of the user with a'
        f' problem, got {fields.shown(value)}'
      )
    return found
  problem = fields.filled_text(value, where, name)
  if name == 'prompt':
    problem = instructions.text(problem)
  return [
    records.Message('user', fields.filled_text(problem, where, name)),
  ]


def _answer(row: dict[str, Any], where: str, name: str) -> tuple[str, str]:
  """Returns the answer of a row, and its solution."""
  if 'reward_model' in row:
    model = fields.mapping(row['reward_model'], where, 'reward_model')
    field = 'reward_model.ground_truth'
    return fields.answer(model.get('ground_truth'), where, field), ''
  # A number alone is no working, whatever the problem's field is called.
  if name == 'question' and not _NUMBER.fullmatch(str(row.get('answer'))):
    return _gsm8k(fields.text(row.get('answer'), where, 'answer'), where)
  solution = fields.text(row.get('solution') or '', where, 'solution')
  if 'answer' not in row and solution:
    boxed = last_boxed(solution)
    if not boxed.strip():
      raise ValueError(
        f'{where}: field `solution` must have the answer in \\boxed{{}}, as '
        f'there is no field `answer`, got {fields.shown(solution)}'
      )
    return boxed, solution
  return fields.answer(row.get('answer'), where, 'answer'), solution


def _gsm8k(text: str, where: str) -> tuple[str, str]:
  """Returns GSM8K's answer, and its working as a whole response."""
  found = _GSM8K_ANSWER.search(text)
  if not found:
    raise ValueError(
      f'{where}: field `answer` must end in a line `#### N`, got'
      f' {fields.shown(text)}'
    )
  answer = found[1].replace(',', '').removeprefix('$')
  working = _CALCULATION.sub('', text[: found.start()])
  return answer, f'{working}Answer: {answer}'


def _level(row: dict[str, Any], where: str) -> int | None:
  """Returns the level of a row; None if it has none, 0 if it is unknown."""
  value = row.get('level')
  if value is None:
    return None
  if value == 'Level ?':
    return 0
  found = _LEVEL.fullmatch(str(value))
  if not found:
    raise ValueError(
      f"{where}: field `level` must be like 'Level 3' or 3, got"
      f' {fields.shown(value)}'
    )
  return int(found[1])


def last_boxed(text: str) -> str:
  r"""Returns what the last \boxed{} of a text holds; '' if there is none.

  A box without braces, as in $x = \boxed 12$, holds what is left of the
  formula.
  """
  *_, start = -1, *(found.end() for found in _BOX.finditer(text))
  if start < 0:
    return ''
  if not text.startswith('{', start):
    bare = _BARE.match(text, start)
    return bare[0].strip() if bare else ''
  end = braces.closing(text, start + 1)
  return text[start + 1 : end] if end >= 0 else ''

"""The prompts of a file or folder that the user names.

Host only. `row_files` says which files can be read, `schemas` what the rows
may look like.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import logging

from dapo_jax.data import records, row_files, schemas

_FLAGS = '--config.data.source, --config.data.mixture or --config.eval.source'


def load(path: str | os.PathLike[str]) -> list[records.Prompt]:
  """Returns the prompts of a file, or of a data set's folder, in its order.

  Their data set is the file's name without its ending, or the data set's own.
  Of rows with the same messages and answer the first is kept, and the number
  dropped is logged: published data sets repeat their problems.

  Args:
    path: a file of JSON Lines or parquet, or a TFDS folder.

  Raises:
    ValueError: there is no such file, no problem in it, or a row that has
      none of the schemas; the message names file, row and field.
  """
  file = pathlib.Path(path)
  prompts = {}
  read_count = 0
  dataset = row_files.dataset_name(file, flags=_FLAGS)
  for where, row in row_files.rows(file, flags=_FLAGS):
    prompt = to_prompt(row, where, dataset=dataset)
    prompts.setdefault(prompt.id, prompt)
    read_count += 1
  if not prompts:
    raise ValueError(f'{file} holds no problem; change {_FLAGS}')
  if read_count > len(prompts):
    logging.warning(
      '%s: dropped %d duplicates of %d rows, kept %d prompts',
      file,
      read_count - len(prompts),
      read_count,
      len(prompts),
    )
  return list(prompts.values())


def to_prompt(
  row: dict[str, Any], where: str, *, dataset: str
) -> records.Prompt:
  """Returns the prompt of a row.

  Raises:
    ValueError: the row has none of the schemas; the message begins with
      `where`.
  """
  problem = schemas.read(row, where)
  return records.make_prompt(
    dataset, problem.messages, problem.answer, solution=problem.solution
  )


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
  return [_after(turns, prompt) for prompt in prompts]


def _after(
  turns: Sequence[records.Message], prompt: records.Prompt
) -> records.Prompt:
  """Returns the prompt with turns before it."""
  messages = (*turns, *prompt.messages)
  return prompt._replace(
    id=records.prompt_id(prompt.dataset, messages, prompt.gold),
    messages=messages,
  )

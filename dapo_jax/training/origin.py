"""What a saved state was trained from, to see that it is still the same."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dapo_jax.data import records, tokenizers


class Origin(NamedTuple):
  """The command, the tokenizer and the problems of a run."""

  command: str  # 'train' or 'sft'
  tokenizer: str  # its fingerprint
  prompts: str  # theirs, in their order
  prompts_count: int
  # The file of a tokenizer that the run trained, else None: a run whose work
  # directory is lost needs it.
  tokenizer_file: bytes | None


def of(
  command: str,
  tokenizer: tokenizers.ChatTokenizer,
  prompts: Sequence[records.Prompt],
  encode: Callable[[records.Prompt], np.ndarray],
  *,
  tokenizer_file: bytes | None,
) -> Origin:
  """Returns the origin of a run.

  The fingerprint of the problems is of their ids, which are content hashes,
  and of the tokens of the first: a template is seen in any of them.
  """
  parts = [[p.id, p.task] for p in prompts]
  text = json.dumps([parts, encode(prompts[0]).tolist()])
  return Origin(
    command=command,
    tokenizer=tokenizers.fingerprint(tokenizer),
    prompts=hashlib.sha256(text.encode('ascii')).hexdigest()[:16],
    prompts_count=len(prompts),
    tokenizer_file=tokenizer_file,
  )


def changes(
  saved: Origin, now: Origin, *, where: str, may_change_data: bool
) -> list[str]:
  """Returns a text if the problems changed and may.

  Args:
    saved: the origin of a checkpoint.
    now: that of the run that is to go on.
    where: names the checkpoint.
    may_change_data: whether other problems are allowed.

  Raises:
    ValueError: something else changed, or the problems did and may not.
  """
  if saved.command != now.command:
    raise ValueError(
      f'{where} is of `dapo-jax {saved.command}`, not of `{now.command}`; '
      'name another --workdir or --config.checkpoint.folder'
    )
  check_tokenizer(saved.tokenizer, now.tokenizer, where=where)
  old, new = (
    f'{o.prompts_count} training problems ({o.prompts})' for o in (saved, now)
  )
  if old == new:
    return []
  if not may_change_data:
    raise ValueError(
      f'{where} was trained on {old}, the data now gives {new}; bring the old '
      'data back, or go on with '
      '--config.checkpoint.allow_changed_data=true'
    )
  return [f'data: {old} -> {new}']


def check_tokenizer(saved: str, now: str, *, where: str) -> None:
  """Raises ValueError where a fingerprint is not the saved one."""
  if saved != now:
    raise ValueError(
      f'{where} was made with another tokenizer (fingerprint {saved}, now '
      f'{now}): its ids mean other texts; bring the old file back, or change '
      '--config.tokenizer.path'
    )


def to_json(origin: Origin) -> dict[str, Any]:
  """Returns the origin as JSON can hold it."""
  file = origin.tokenizer_file
  text = None if file is None else base64.b64encode(file).decode('ascii')
  return origin._asdict() | {'tokenizer_file': text}


def from_json(saved: Mapping[str, Any]) -> Origin:
  """Returns what `to_json` was given."""
  text = saved['tokenizer_file']
  file = None if text is None else base64.b64decode(text)
  return Origin(**{**saved, 'tokenizer_file': file})

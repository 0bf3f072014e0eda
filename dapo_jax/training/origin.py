"""What a saved state was trained from, to see that it is still the same."""

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dapo_jax.data import records, tokenizers
from dapo_jax.model import spec as spec_lib


class Origin(NamedTuple):
  """The command, the tokenizer, the problems and the models of a run."""

  command: str  # 'train' or 'sft'
  tokenizer: str  # its fingerprint
  prompts: str  # theirs, in their order
  prompts_count: int
  # The file of a tokenizer that the run trained, else None: a run whose work
  # directory is lost needs it.
  tokenizer_file: bytes | None
  # The spec of its model; None in checkpoints from before it was kept.
  model: dict[str, Any] | None = None
  # Digest of the reference policy, if there is one and it was in a folder.
  reference: str | None = None


def of(
  command: str,
  tokenizer: tokenizers.ChatTokenizer,
  prompts: Sequence[records.Prompt],
  encode: Callable[[records.Prompt], np.ndarray],
  *,
  tokenizer_file: bytes | None,
  model: spec_lib.Spec,
) -> Origin:
  """Returns the origin of a run, without its reference policy.

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
    model=dataclasses.asdict(model),
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
  check_model(saved, now.model, where=where)
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


def check_reference(saved: str | None, now: str, *, where: str) -> None:
  """Raises ValueError where a reference policy is not the saved one."""
  if saved not in (None, now):
    raise ValueError(
      f'{where} was trained with another reference policy (digest {saved}, now '
      f'{now}): bring the old weights back, or change --config.model.path'
    )


def check_model(saved: Origin, now: Mapping[str, Any], *, where: str) -> None:
  """Raises ValueError where a model computes otherwise than the saved one.

  The shapes of its arrays do not tell: the same weights with another base of
  their rotary frequencies are another model.
  """
  # What came later than the checkpoint has a default that changes nothing.
  old = saved.model or {}
  faults = [
    f'{name}: {old[name]} -> {value}'
    for name, value in now.items()
    if name != 'init_std' and old.get(name, value) != value
  ]
  if faults:
    raise ValueError(
      f'{where} is of another model ({"; ".join(faults)}): bring the old '
      'config.json back, or change --config.model.path'
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

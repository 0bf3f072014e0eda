"""What the JSON files beside a tokenizer say of its special tokens.

Host only.
"""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

# Where special tokens stand by id, and by text. The first to name one wins:
# chat models list all that end a turn in generation_config.json alone.
ID_FILES = ('generation_config.json', 'config.json')
TEXT_FILES = ('tokenizer_config.json', 'special_tokens_map.json')


def configured_ids(folder: pathlib.Path, kind: str) -> tuple[Any, ...]:
  """Returns the 'eos' or 'pad' ids named in a folder; () if none are."""
  ids = _first_value(folder, ID_FILES, f'{kind}_token_id', default=[])
  return tuple(ids) if isinstance(ids, list) else (ids,)


def token_text(folder: pathlib.Path, kind: str) -> str:
  """Returns the text of the 'eos', 'pad'... token; '' if no file names it."""
  token = _first_value(folder, TEXT_FILES, f'{kind}_token', default='')
  return token['content'] if isinstance(token, dict) else token


def json_object(file: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file; {} if there is none.

  Raises:
    ValueError: the file is not JSON.
  """
  if not file.is_file():
    return {}
  try:
    value = json.loads(file.read_bytes())
  except ValueError as error:
    raise ValueError(f'{file} must be JSON: {error}') from error
  return value if isinstance(value, dict) else {}


def _first_value(
  folder: pathlib.Path, names: Iterable[str], key: str, *, default: Any
) -> Any:
  """Returns what the first of the files to hold `key` says."""
  for name in names:
    value = json_object(folder / name).get(key)
    if value is not None:
      return value
  return default

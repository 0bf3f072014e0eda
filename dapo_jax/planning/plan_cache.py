"""Keeps what the compiler said of a program, so that it is asked once.

A program is known by its text as it is given to the compiler; what is kept is
small: memory and counts, no machine code. jax's own cache cannot read programs
for absent devices back.
"""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import tempfile
from typing import Any

import dapo_jax

# What is kept follows from these.
_COUNTING = ('compiling', 'hlo', 'collectives', 'cycles', 'counts')


def folder() -> pathlib.Path:
  """Returns where it is, `$XDG_CACHE_HOME/dapo_jax/plan`."""
  home = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(home) / 'dapo_jax' / 'plan'


def versions() -> dict[str, str]:
  """Returns the versions that decide on what the compiler says."""
  found = {'dapo_jax': dapo_jax.__version__}
  for name in ('jax', 'jaxlib', 'libtpu'):
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = 'absent'
  return found


def key(text: str, topology: str) -> str:
  """Returns the key of a program for a topology and the versions there are.

  The modules that count belong to it: another way to count is another count.
  """
  found = hashlib.sha256()
  here = pathlib.Path(__file__).parent
  sources = [here / f'{name}.py' for name in _COUNTING]
  parts = [text, topology, json.dumps(versions())]
  for part in [*parts, *(source.read_text() for source in sources)]:
    found.update(hashlib.sha256(part.encode()).digest())
  return found.hexdigest()


def read(key: str) -> dict[str, Any] | None:
  """Returns what was kept, None if nothing was or it is no longer whole."""
  try:
    return json.loads((folder() / f'{key}.json').read_text())
  except (OSError, json.JSONDecodeError):
    return None


def write(key: str, value: dict[str, Any]) -> None:
  """Keeps a value; without a place to keep it in, nothing happens."""
  place = folder()
  try:
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile('w', dir=place, delete=False) as file:
      json.dump(value, file)
    os.replace(file.name, place / f'{key}.json')
  except OSError:
    return

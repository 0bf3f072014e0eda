"""The response lengths of the ragged set."""

import json
import pathlib

_FILE = pathlib.Path(__file__).resolve().parent / 'peers' / 'lengths.json'


def read(count: int = 0) -> list[int]:
  """Returns the first so many, [tokens], from the start again after the last.

  0 = all of them, once.
  """
  known = json.loads(_FILE.read_text())['lengths']
  if count == 0:
    return known
  return (known * (count // len(known) + 1))[:count]


def lockstep_use(batch: int, count: int = 0) -> float:
  """Returns the useful share of slots of batches decoded in lockstep.

  Of the first `count` responses; all: 0.
  """
  known = read(count)
  batches = [known[i : i + batch] for i in range(0, len(known), batch)]
  return sum(known) / sum(len(b) * max(b) for b in batches)

"""The safetensors files of a folder: a single one, or several with an index.

Read one tensor at a time, written one file at a time: a process never holds
more of them than that. Nothing is unpickled.
"""

import json
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import Shaped

SINGLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'


class Entry(NamedTuple):
  """A tensor in a file: where it is and what."""

  file: pathlib.Path
  name: str
  shape: tuple[int, ...]
  kind: str  # as safetensors calls it: F32, BF16...

  def read(self) -> Shaped[np.ndarray, '...']:
    """Returns its values."""
    # Opened each time: an open file stays mapped, and counts as memory of the
    # process with every page that was read.
    with safetensors.safe_open(self.file, framework='numpy') as file:
      return file.get_tensor(self.name)


class Tensor(NamedTuple):
  """A tensor to write."""

  name: str
  values: Shaped[np.ndarray, '...']


def entries(folder: pathlib.Path) -> tuple[dict[str, Entry], list[str]]:
  """Returns the tensors of a folder by name, and what is wrong with its files.

  Those of `model.safetensors`, else of the files that
  `model.safetensors.index.json` names.
  """
  if (folder / SINGLE).is_file():
    paths = [folder / SINGLE]
  elif (folder / INDEX).is_file():
    index = json.loads((folder / INDEX).read_text())
    paths = [folder / name for name in sorted({*index['weight_map'].values()})]
  else:
    return {}, [f'no {SINGLE} and no {INDEX}']
  found, faults = {}, []
  for path in paths:
    if not path.is_file():
      faults.append(f'no {path.name}, which {INDEX} names')
      continue
    try:
      file = safetensors.safe_open(path, framework='numpy')
    except safetensors.SafetensorError as error:
      faults.append(f'{path.name} is broken: {error}')
      continue
    with file:
      for name in file.keys():
        if name in found:
          faults.append(f'in two files: {name}')
        part = file.get_slice(name)
        shape = tuple(part.get_shape())
        found[name] = Entry(path, name, shape, part.get_dtype())
  return found, faults


def write(
  folder: pathlib.Path, tensors: Iterable[Tensor], *, max_file_bytes: int
) -> None:
  """Writes tensors in their order to as few files as that allows.

  A file is written when the next tensor would make it larger than
  `max_file_bytes`, so a larger tensor has a file of its own. Several files get
  the index that goes with them.

  Args:
    folder: exists and holds no such files.
    tensors: may be computed as they are taken.
    max_file_bytes: largest sum of the tensors of one file.

  Raises:
    ValueError: the disk is full, say.
  """
  parts, part, size = [], {}, 0
  for name, values in tensors:
    if part and size + values.nbytes > max_file_bytes:
      parts.append(_write_part(folder, part, len(parts)))
      part, size = {}, 0
    part[name] = np.ascontiguousarray(values)
    size += values.nbytes
  parts.append(_write_part(folder, part, len(parts)))
  if len(parts) == 1:
    parts[0].path.rename(folder / SINGLE)
    return
  weight_map = {}
  for i, written in enumerate(parts):
    name = f'model-{i + 1:05}-of-{len(parts):05}.safetensors'
    written.path.rename(folder / name)
    weight_map |= dict.fromkeys(written.names, name)
  total = sum(written.size_bytes for written in parts)
  index = {'metadata': {'total_size': total}, 'weight_map': weight_map}
  (folder / INDEX).write_text(json.dumps(index, indent=2) + '\n')


class _Part(NamedTuple):
  """A file that is written but has no final name: how many is not known."""

  path: pathlib.Path
  names: tuple[str, ...]
  size_bytes: int


def _write_part(
  folder: pathlib.Path, tensors: dict[str, np.ndarray], number: int
) -> _Part:
  path = folder / f'part-{number}.safetensors'
  path.touch()
  mode = path.stat().st_mode
  # transformers refuses a file that does not name the framework.
  try:
    safetensors.numpy.save_file(tensors, path, metadata={'format': 'pt'})
  except safetensors.SafetensorError as error:
    raise ValueError(
      f'{path} could not be written ({error}); make room there or give access '
      'to it, and give the same command'
    ) from error
  # save_file lets only the owner read.
  path.chmod(mode)
  return _Part(path, tuple(tensors), sum(t.nbytes for t in tensors.values()))

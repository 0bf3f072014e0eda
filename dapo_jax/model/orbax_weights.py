"""A decoder's parameters alone, as an Orbax checkpoint.

It is the folder `params` beside the config.json of the model. Each process
writes and reads what lies on its own devices.
"""

import os
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp
from flax import traverse_util

from dapo_jax.model import decoder
from dapo_jax.parallel import placement

_NAME = 'params'


def is_there(folder: str | os.PathLike) -> bool:
  """Says whether a folder holds such a checkpoint."""
  return (pathlib.Path(folder) / _NAME).is_dir()


def save(folder: str | os.PathLike, params: decoder.Params) -> None:
  """Writes the parameters into a folder, which is made if need be."""
  path = pathlib.Path(folder).absolute() / _NAME
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(path, params)


def load(
  folder: str | os.PathLike, model: decoder.Abstract, *, shardings: Any
) -> decoder.Params:
  """Returns the parameters in a folder, placed.

  Args:
    folder: where `save` wrote them.
    model: whose parameters they are.
    shardings: one for each, or a prefix of that tree.

  Raises:
    ValueError: where a parameter is missing, unknown, or of another shape or
      type. Lists all of them.
  """
  path = pathlib.Path(folder).absolute() / _NAME
  wanted = placement.abstract(
    model.shapes, jax.tree.broadcast(shardings, model.shapes)
  )
  with ocp.StandardCheckpointer() as checkpointer:
    faults = _faults(checkpointer.metadata(path).item_metadata.tree, wanted)
    if faults:
      raise ValueError(
        f'{path} does not hold the weights of the config.json beside it '
        '(--config.model.path):\n  ' + '\n  '.join(faults)
      )
    return checkpointer.restore(path, wanted)


def _faults(found: Any, wanted: Any) -> list[str]:
  """Returns a line for each parameter that is not as the model needs it."""
  found, wanted = (
    {
      path: f'{list(leaf.shape)} {leaf.dtype}'
      for path, leaf in traverse_util.flatten_dict(tree, sep='/').items()
    }
    for tree in (found, wanted)
  )
  missing = [
    f'missing: {path} {text}'
    for path, text in wanted.items()
    if path not in found
  ]
  other = [
    f'{path}: expected {wanted[path]}, found {text}'
    for path, text in found.items()
    if wanted.get(path, text) != text
  ]
  return missing + other + [f'unknown: {p}' for p in found if p not in wanted]

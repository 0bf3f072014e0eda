"""Device meshes, and the rules that lay arrays out over them.

A weight names its logical axes where it is declared; the tables here say
which mesh axis each of them is split over, for the update and for the
sampler's engine.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# FSDP x tensor: `embed` is on every matrix, so every matrix is split.
UPDATE_RULES: Mapping[str, str | None] = {
  'layers': None,
  'vocab': 'tensor',
  'embed': 'fsdp',
  'heads': 'tensor',
  'kv_heads': 'tensor',
  'head_dim': None,
  'ffw': 'tensor',
}
# The engine keeps whole weights on each group of `tensor` devices.
ENGINE_RULES: Mapping[str, str | None] = UPDATE_RULES | {'embed': None}

# Rows of a batch are split over both, slots of the engine over `slot`.
ROW_AXES = ('data', 'fsdp')
SLOT_AXIS = 'slot'
# What the update computes between its weights. Between layers, where nothing
# else is left to split over `tensor`, it is the tokens.
ACTIVATION_RULES: Mapping[str, str | tuple[str, ...] | None] = {
  'rows': ROW_AXES,
  'tokens': None,
  'split_tokens': 'tensor',
  'embed': None,
  'heads': 'tensor',
  'kv_heads': 'tensor',
  'head_dim': None,
  'ffw': 'tensor',
}


def update_mesh(
  devices: Sequence[jax.Device], *, data: int, fsdp: int, tensor: int
) -> Mesh:
  """Returns the update's mesh; one axis may be -1, what is left.

  On TPUs neighbours on an axis are neighbours by wire; of several slices, only
  `data` goes from one to another.

  Raises:
    ValueError: when the axes do not multiply to the number of devices, or the
      slices can't be split over `data`.
  """
  sizes = {'data': data, 'fsdp': fsdp, 'tensor': tensor}
  count = len(devices)
  known = math.prod(s for s in sizes.values() if s != -1)
  free = [name for name, size in sizes.items() if size == -1]
  if len(free) == 1 and count % known == 0:
    sizes[free[0]] = count // known
  if free[1:] or math.prod(sizes.values()) != count:
    raise ValueError(
      f'the mesh data x fsdp x tensor ({data} x {fsdp} x {tensor}) must '
      f'multiply to the number of devices ({count}, which '
      f'{divisors(count)} divide), with at most one -1; change '
      '--config.mesh.data, --config.mesh.fsdp or --config.mesh.tensor'
    )
  if devices[0].platform != 'tpu':
    return _mesh(devices, sizes)
  slices = len({getattr(d, 'slice_index', 0) for d in devices})
  if sizes['data'] % slices:
    raise ValueError(
      f'mesh.data ({sizes["data"]}) must be a multiple of the {slices} slices, '
      'between which nothing else is split; change --config.mesh.data'
    )
  within = (sizes['data'] // slices, sizes['fsdp'], sizes['tensor'])
  if slices == 1:
    grid = mesh_utils.create_device_mesh(
      within, devices, allow_split_physical_axes=True
    )
  else:
    grid = mesh_utils.create_hybrid_device_mesh(
      within, (slices, 1, 1), devices, allow_split_physical_axes=True
    )
  return _mesh(grid, sizes)


def engine_mesh(devices: Sequence[jax.Device], *, tensor: int) -> Mesh:
  """Returns an engine's mesh: slots are split over what `tensor` leaves."""
  if len(devices) % tensor:
    raise ValueError(
      f'sampler.tensor ({tensor}) must divide the {len(devices)} devices of an '
      f'engine, so it can be {divisors(len(devices))}; change '
      '--config.sampler.tensor, or the size of an engine with '
      '--config.sampler.engine_chips'
    )
  return _mesh(devices, {SLOT_AXIS: len(devices) // tensor, 'tensor': tensor})


def of_engine(
  devices: Sequence[jax.Device], *, hosts: int, process: int
) -> list[jax.Device]:
  """Returns the devices of the engine that a process has a part of.

  They come in the order of `engines_mesh`.

  Args:
    devices: of all processes.
    hosts: processes of each engine, which are neighbours.
    process: the number of this one.
  """
  mine = process // hosts
  return [d for d in _by_process(devices) if d.process_index // hosts == mine]


def engines_mesh(devices: Sequence[jax.Device], like: Mesh) -> Mesh:
  """Returns the mesh of all engines, one after the other.

  Args:
    devices: of all of them.
    like: an engine's mesh, which each of them has.
  """
  devices = _by_process(devices)
  sizes = {'engine': len(devices) // like.size, **like.shape}
  return _mesh(devices, sizes)


def local_mesh() -> Mesh:
  """Returns an engine's mesh on the first device alone."""
  return engine_mesh(jax.local_devices()[:1], tensor=1)


def shardings(
  shapes: Any, logical_axes: Any, mesh: Mesh, rules: Mapping[str, str | None]
) -> Any:
  """Returns a NamedSharding for every weight, by its logical axes.

  Raises:
    ValueError: when an axis can't be split evenly; names the weight, the
      axis and both numbers.
  """

  def one(path, shape, axes):
    for size, axis in zip(shape.shape, axes, strict=True):
      name = rules[axis]
      if name is not None and size % mesh.shape[name]:
        raise ValueError(
          f'{jax.tree_util.keystr(path)}: axis {axis!r} of size {size} '
          f"can't be split over {mesh.shape[name]} devices of the mesh "
          f'axis {name!r}, which can be {divisors(size)}; change '
          f'--config.mesh.{name}, or --config.sampler.tensor'
        )
    return NamedSharding(mesh, P(*(rules[axis] for axis in axes)))

  is_axes = lambda x: isinstance(x, tuple)
  flat, tree = jax.tree_util.tree_flatten_with_path(shapes)
  axes = jax.tree.leaves(logical_axes, is_leaf=is_axes)
  return jax.tree.unflatten(
    tree, [one(p, s, a) for (p, s), a in zip(flat, axes, strict=True)]
  )


def even_sharding(
  shape: Sequence[int],
  logical_axes: Sequence[str],
  mesh: Mesh,
  rules: Mapping[str, str | tuple[str, ...] | None],
) -> NamedSharding:
  """Returns a sharding in which axes that don't split evenly stay whole."""

  def one(size, axis):
    names = rules[axis]
    names = (names,) if isinstance(names, str) else names or ()
    fits = size % math.prod(mesh.shape[name] for name in names) == 0
    return rules[axis] if fits else None

  return NamedSharding(mesh, P(*map(one, shape, logical_axes)))


def row_sharding(mesh: Mesh, *, leading_axes: int) -> NamedSharding:
  """Returns the sharding of [..., R, ...] with R after `leading_axes`."""
  return NamedSharding(mesh, P(*(None,) * leading_axes, ROW_AXES))


def row_shards(mesh: Mesh) -> int:
  """Returns over how many devices the rows of a batch are split."""
  return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of an array that every device holds whole."""
  return NamedSharding(mesh, P())


def divisors(number: int) -> str:
  """Returns what divides a number, to be read."""
  small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
  return ', '.join(map(str, sorted({*small, *(number // d for d in small)})))


def _by_process(devices: Sequence[jax.Device]) -> list[jax.Device]:
  return sorted(devices, key=lambda d: (d.process_index, d.id))


def _mesh(devices: Any, sizes: Mapping[str, int]) -> Mesh:
  grid = np.asarray(devices).reshape(tuple(sizes.values()))
  return Mesh(grid, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))

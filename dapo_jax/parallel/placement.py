"""Moves arrays to where they are used, within a process and between them.

Also says of arrays that are not there yet where they will be.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Shaped

from dapo_jax.parallel import mesh as mesh_lib


def put_rows(batch: Any, mesh: Mesh) -> Any:
  """Returns host arrays [M, R, ...] on the mesh, split by rows.

  A process reads the rows of its own devices alone.
  """
  sharding = mesh_lib.row_sharding(mesh, leading_axes=1)
  if sharding.is_fully_addressable:
    return jax.device_put(batch, sharding)
  put = lambda x: jax.make_array_from_callback(
    x.shape, sharding, lambda index: x[index]
  )
  return jax.tree.map(put, batch)


def row_processes(rows: int, mesh: Mesh) -> list[set[int]]:
  """Returns for each of R rows the processes whose devices hold it."""
  sharding = mesh_lib.row_sharding(mesh, leading_axes=0)
  found = [set() for _ in range(rows)]
  for device, (part,) in sharding.devices_indices_map((rows,)).items():
    for row in range(*part.indices(rows)):
      found[row].add(device.process_index)
  return found


def on_host(array: Array | np.ndarray) -> Shaped[np.ndarray, '...']:
  """Returns the whole of an array, in every process.

  All processes call it, or the array is whole in each.
  """
  if isinstance(array, np.ndarray):
    return array
  if array.is_fully_addressable or array.is_fully_replicated:
    return np.asarray(array)
  mesh = array.sharding.mesh
  return np.asarray(_replicate(mesh)(array))


def to_island(
  prepare: Callable[[Any], Any], params: Any, *, engines: Any, island: Any
) -> Any:
  """Returns parameters on the devices of this process's engine alone.

  They are spread over the devices of all engines, each of which then has all
  of them; what lies on ours is taken as it is, nothing is copied.

  Args:
    prepare: a jitted function of them, applied first.
    params: on all devices.
    engines: where they go, a sharding each on the mesh of all engines.
    island: the same on the mesh of ours.
  """
  spread = jax.device_put(prepare(params), engines)

  def own(array: Array, sharding) -> Array:
    parts = {shard.device: shard.data for shard in array.addressable_shards}
    mine = [parts[device] for device in sharding.addressable_devices]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, mine)

  return jax.tree.map(own, spread, island)


def abstract(shapes: Any, places: Any) -> Any:
  """Returns shapes and types with their places; allocates nothing."""
  one = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
  return jax.tree.map(one, shapes, places)


def device_bytes(shapes: Any) -> int:
  """Returns what one device holds of arrays, [B].

  Of one without a place, which is small, the whole of it; numbers are none.
  """

  def one(x: Any) -> int:
    where = getattr(x, 'sharding', None)
    shape = where.shard_shape(x.shape) if where is not None else x.shape
    return math.prod(shape) * x.dtype.itemsize

  return sum(one(x) for x in jax.tree.leaves(shapes) if hasattr(x, 'dtype'))


@functools.cache
def _replicate(mesh: Mesh) -> Callable[[Array], Array]:
  """Returns one function for all calls, which compiles once for a shape."""
  return jax.jit(lambda x: x, out_shardings=mesh_lib.replicated(mesh))

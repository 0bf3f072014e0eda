"""Moves arrays to where they are used: host to mesh, trainer to engine."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from dapo_jax.parallel import mesh as mesh_lib


def put_rows(batch: Any, mesh: Mesh) -> Any:
  """Returns host arrays [M, R, ...] on the mesh, split by rows."""
  return jax.device_put(batch, mesh_lib.row_sharding(mesh, leading_axes=1))


def resharder(
  shardings: Any, change: Callable[[Any], Any] = lambda tree: tree
) -> Callable[[Any], Any]:
  """Returns a jitted `change` that lays a tree out as `shardings` say.

  Both layouts are over the same devices, so nothing passes through the host.
  One program serves every call: new parameters of the same shapes never
  compile again.
  """
  return jax.jit(change, out_shardings=shardings)

"""Moves arrays to where they are used."""

from typing import Any

import jax
from jax.sharding import Mesh

from dapo_jax.parallel import mesh as mesh_lib


def put_rows(batch: Any, mesh: Mesh) -> Any:
  """Returns host arrays [M, R, ...] on the mesh, split by rows."""
  return jax.device_put(batch, mesh_lib.row_sharding(mesh, leading_axes=1))

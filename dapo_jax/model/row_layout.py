"""How a pass over whole rows is laid out over a mesh, between the weights.

Of the update and of log-probs before it; a sampler lays out its own.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from dapo_jax.parallel import mesh as mesh_lib


@dataclasses.dataclass(frozen=True)
class RowLayout:
  """How whole rows are computed.

  Attributes:
    attention: 'dense', 'chunked' or 'splash', see `row_attention`.
    mesh: that rows, heads and the rest are split over; None = one device, or
      as the compiler sees fit.
    interpret: whether kernels are interpreted: for tests on a CPU.
  """

  attention: str = 'dense'
  mesh: Mesh | None = None
  interpret: bool = False

  @property
  def row_shards(self) -> int:
    """Over how many devices rows are split."""
    return mesh_lib.row_shards(self.mesh) if self.mesh else 1

  @property
  def tensor_shards(self) -> int:
    """Over how many devices heads, and the vocabulary, are split."""
    return self.mesh.shape['tensor'] if self.mesh else 1

  @property
  def _splits(self) -> bool:
    return self.mesh is not None and self.mesh.size > 1

  def place(self, x: Array, *axes: str) -> Array:
    """Returns activations, split over the mesh as their axes say."""
    if not self._splits:
      return x
    sharding = self._sharding(x, axes, mesh_lib.ACTIVATION_RULES)
    return jax.lax.with_sharding_constraint(x, sharding)

  def gather(self, weight: Array, *axes: str) -> Array:
    """Returns a weight that is whole but for what `tensor` splits.

    Said once for each weight, before its products: left to itself, the
    compiler may add up products of its parts instead, which are larger.
    """
    if not self._splits:
      return weight
    sharding = self._sharding(weight, axes, mesh_lib.ENGINE_RULES)
    return jax.lax.with_sharding_constraint(weight, sharding)

  def reused(self, gathered: Array, *axes: str) -> Array:
    """Returns a gathered weight for one of many products, as it is.

    Its gradient is split as the weight was after each product. Said by
    `gather` alone it is so after the last one: until then every device would
    hold all of the sum, and all of every term would be sent to all.
    """
    if not self._splits:
      return gathered
    return _with_gradient_at(
      gathered, self._sharding(gathered, axes, mesh_lib.UPDATE_RULES)
    )

  def _sharding(self, x: Array, axes, rules) -> NamedSharding:
    return mesh_lib.even_sharding(x.shape, axes, self.mesh, rules)

  def look_up(
    self,
    table: Float[Array, 'V D'],
    tokens: Int[Array, 'B T'],
    dtype: DTypeLike,
  ) -> Float[Array, 'B T D']:
    """Returns the rows of an embedding, whose gradient adds up in its own type.

    Each device looks up what is in its part of the vocabulary: left to itself,
    the compiler gathers the whole table, and its whole gradient.
    """
    if not self._splits:
      return table[tokens].astype(dtype)
    place = functools.partial(mesh_lib.even_sharding, mesh=self.mesh)
    table_spec = place(
      table.shape, ('vocab', 'embed'), rules=mesh_lib.UPDATE_RULES
    ).spec
    out_spec = place(
      (*tokens.shape, table.shape[1]),
      ('rows', 'split_tokens', 'embed'),
      rules=mesh_lib.ACTIVATION_RULES,
    ).spec

    def local(table, tokens):
      vocab_axis, embed_axis = table_spec
      if embed_axis:
        table = jax.lax.all_gather(table, embed_axis, axis=1, tiled=True)
      if not vocab_axis:
        return table[tokens].astype(dtype)
      tokens -= jax.lax.axis_index(vocab_axis) * table.shape[0]
      here = (tokens >= 0) & (tokens < table.shape[0])
      rows = table[jnp.where(here, tokens, 0)].astype(dtype)
      rows = jnp.where(here[..., None], rows, 0)
      if not out_spec[1]:
        return jax.lax.psum(rows, vocab_axis)
      return jax.lax.psum_scatter(
        rows, vocab_axis, scatter_dimension=1, tiled=True
      )

    return jax.shard_map(
      local,
      mesh=self.mesh,
      in_specs=(table_spec, P(out_spec[0], None)),
      out_specs=out_spec,
    )(table, tokens)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _with_gradient_at(x: Array, sharding: NamedSharding) -> Array:
  del sharding
  return x


_with_gradient_at.defvjp(
  lambda x, _: (x, None),
  lambda sharding, _, grad: (jax.lax.with_sharding_constraint(grad, sharding),),
)

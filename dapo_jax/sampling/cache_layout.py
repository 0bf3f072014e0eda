"""How the slots keep keys and values: whole rows, or pages of a pool.

A layout is what the device programs need to know of it, as functions. Only
the paged one has a use for the pages that the host hands out (`pages`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dapo_jax.model import (
  decoder,
  decoding,
  kv_cache,
  paged_cache,
  paged_kernel,
)
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import pages as pages_lib

_HEADS = mesh_lib.ENGINE_RULES['kv_heads']
# Keys or values of a prompt, [L T K H].
_PREFIX = P(None, None, _HEADS, None)


class Layout(NamedTuple):
  """One way to keep keys and values."""

  # () -> an empty cache.
  empty: Callable[[], Any]
  shardings: Any
  # (model, layers, tokens, cache, positions=, live=, attend_blocks=) ->
  # (hidden states, cache), one token a slot later.
  decode: Callable[..., tuple[jax.Array, Any]]
  # (cache, k, v of a prefix, slots=, pages=) -> a cache with it in the slots.
  insert: Callable[..., Any]
  # Whether layers are scanned, so that their weights are to be stacked.
  stacked: bool


def make(
  model: decoder.Abstract, limits: limits_lib.Limits, mesh: Mesh
) -> Layout:
  """Returns the layout that the limits name.

  Raises:
    ValueError: when there is none of that name.
  """
  kinds = {'dense': _dense, 'dense_int8': _dense, 'paged': _paged}
  return kinds[limits.cache](model, limits, mesh)


def choose(
  model: decoder.Abstract, limits: limits_lib.Limits, mesh: Mesh
) -> tuple[str, str]:
  """Returns the layout for 'auto' and 'paged', and why ('' = as asked).

  Pages want the kernel on a TPU: without it, every page of a row would be
  copied for every token. Where it refuses a model, rows are whole.
  """
  on_tpu = mesh.devices.flat[0].platform == 'tpu'
  if not on_tpu:
    auto = limits.cache == 'auto'
    return ('dense', '') if auto else (limits.cache, '')
  if limits.cache not in ('auto', 'paged'):
    return limits.cache, ''
  why = paged_kernel.refusal(
    model.spec,
    tensor=mesh.shape['tensor'],
    dtype=_compute_dtype(model),
    table_shape=(
      limits.slots // mesh.shape[mesh_lib.SLOT_AXIS],
      limits_lib.row_pages(limits),
    ),
  )
  if why is None:
    return 'paged', ''
  return 'dense', f'rows are kept whole, not in pages: {why}'


def _compute_dtype(model: decoder.Abstract) -> jnp.dtype:
  return jnp.dtype(nnx.merge(model.graphdef, model.shapes).dtype)


def _dense(model, limits, mesh) -> Layout:
  int8 = limits.cache == 'dense_int8'
  empty = functools.partial(
    kv_cache.empty,
    model.spec,
    slots=limits.slots,
    cache_tokens=limits_lib.cache_tokens(limits),
    dtype=jnp.int8 if int8 else _compute_dtype(model),
  )

  def decode(model, layers, tokens, cache, *, positions, live, attend_blocks):
    del live  # A slot that stands still writes into its own row.
    return decoding.dense(
      model,
      layers,
      tokens,
      cache,
      positions=positions,
      attend_blocks=attend_blocks,
    )

  slot = mesh_lib.SLOT_AXIS
  shard_slots = limits.slots // mesh.shape[slot]
  specs = kv_cache.partition_specs(
    jax.eval_shape(empty), slots=slot, heads=_HEADS
  )

  def insert_mine(cache, k, v, slots):
    mine = slots // shard_slots == jax.lax.axis_index(slot)
    slots = jnp.where(mine, slots % shard_slots, shard_slots)
    return kv_cache.insert(cache, k, v, slots=slots)

  def insert(cache, k, v, *, slots, pages):
    del pages
    # Mapped over the shards: XLA would gather all slots to write to some.
    return jax.shard_map(
      insert_mine,
      mesh=mesh,
      in_specs=(specs, _PREFIX, _PREFIX, P()),
      out_specs=specs,
      check_vma=False,
    )(cache, k, v, slots)

  return Layout(empty, _named(specs, mesh), decode, insert, stacked=False)


def _paged(model, limits, mesh) -> Layout:
  slot = mesh_lib.SLOT_AXIS
  shards = mesh.shape[slot]
  shard_slots = limits.slots // shards
  pages = limits_lib.shard_pages(limits, shards)
  specs = paged_cache.PagedCache(
    P(None, slot, None, _HEADS, None), P(slot, None)
  )
  mapped = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
  heads = P(slot, _HEADS, None)

  def empty():
    cache = paged_cache.empty(
      model.spec,
      pages=pages * shards,
      page_tokens=limits.page_tokens,
      table_shape=(limits.slots, limits_lib.row_pages(limits)),
      dtype=_compute_dtype(model),
    )
    own = pages_lib.own_table(limits_lib.pool_sizes(limits, shards))
    return cache._replace(table=jnp.asarray(own))

  attend = functools.partial(
    paged_cache.attend,
    kernel=mesh.devices.flat[0].platform == 'tpu',
    window_tokens=model.spec.window_tokens,
  )

  def attend_shards(q, k, v, cache, *, layer, positions):
    return mapped(
      lambda q, k, v, cache, layer, positions: attend(
        q, k, v, cache, layer=layer, positions=positions
      ),
      in_specs=(heads, heads, heads, specs, P(), P(slot)),
      out_specs=(heads, specs),
    )(q, k, v, cache, layer, positions)

  def decode(model, layers, tokens, cache, *, positions, live, attend_blocks):
    del attend_blocks  # A row is read as far as it is long.
    return decoding.paged(
      model,
      layers,
      tokens,
      cache,
      positions=positions,
      live=live,
      attend=attend_shards,
    )

  def insert_mine(cache, k, v, slots, numbers):
    mine = slots // shard_slots == jax.lax.axis_index(slot)
    numbers = jnp.where(mine[:, None], numbers, pages)
    return paged_cache.insert(cache, k, v, pages=numbers)

  def insert(cache, k, v, *, slots, pages):
    return mapped(
      insert_mine,
      in_specs=(specs, _PREFIX, _PREFIX, P(), P()),
      out_specs=specs,
    )(cache, k, v, slots, pages)

  return Layout(empty, _named(specs, mesh), decode, insert, stacked=True)


def _named(specs: Any, mesh: Mesh) -> Any:
  return jax.tree.map(
    lambda spec: NamedSharding(mesh, spec),
    specs,
    is_leaf=lambda x: isinstance(x, P),
  )

"""How the slots keep keys and values: whole rows, or pages of a pool.

A layout is what the device programs need to know of it, as functions. Only
the paged one has a use for the pages that the host hands out (`pages`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging
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


def resolved(
  model: decoder.Abstract, limits: limits_lib.Limits, mesh: Mesh
) -> limits_lib.Limits:
  """Returns the limits with the layout that suits model and devices.

  Pages want the kernel on a TPU: without it, every page of a row would be
  copied for every token. Where it refuses a model, rows are whole, and the log
  says why.
  """
  if mesh.devices.flat[0].platform != 'tpu':
    kind = 'dense' if limits.cache == 'auto' else limits.cache
    return limits._replace(cache=kind)
  if limits.cache not in ('auto', 'paged'):
    return limits
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
    return limits._replace(cache='paged')
  logging.warning('rows are kept whole, not in pages: %s', why)
  return limits._replace(cache='dense')


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
  specs = kv_cache.partition_specs(
    jax.eval_shape(empty), slots=mesh_lib.SLOT_AXIS, heads=_HEADS
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

  def insert(cache, k, v, slots, pages):
    del pages
    return kv_cache.insert(cache, k, v, slots=slots)

  return Layout(
    empty,
    _named(specs, mesh),
    decode,
    _by_shards(insert, specs, limits, mesh),
    stacked=False,
  )


def _paged(model, limits, mesh) -> Layout:
  slot = mesh_lib.SLOT_AXIS
  shards = mesh.shape[slot]
  specs = paged_cache.PagedCache(
    P(None, slot, None, _HEADS, None), P(slot, None)
  )
  heads = P(slot, _HEADS, None)

  def empty():
    sizes = limits_lib.pool_sizes(limits, shards)
    cache = paged_cache.empty(
      model.spec,
      pages=sizes.shard_pages * shards,
      page_tokens=sizes.page_tokens,
      table_shape=(sizes.slots, sizes.row_pages),
      dtype=_compute_dtype(model),
    )
    return cache._replace(table=jnp.asarray(pages_lib.own_table(sizes)))

  def attend(q, k, v, cache, layer, positions):
    return paged_cache.attend(
      q,
      k,
      v,
      cache,
      layer=layer,
      positions=positions,
      kernel=mesh.devices.flat[0].platform == 'tpu',
      window_tokens=model.spec.window_tokens,
    )

  attend_shards = jax.shard_map(
    attend,
    mesh=mesh,
    in_specs=(heads, heads, heads, specs, P(), P(slot)),
    out_specs=(heads, specs),
    check_vma=False,
  )

  def decode(model, layers, tokens, cache, *, positions, live, attend_blocks):
    del attend_blocks  # A row is read as far as it is long.
    where = jnp.where(live, positions, -1)
    return decoding.paged(
      model,
      layers,
      tokens,
      cache,
      positions=positions,
      attend=lambda q, k, v, cache, layer: attend_shards(
        q, k, v, cache, layer, where
      ),
    )

  def insert(cache, k, v, slots, pages):
    exists = slots < limits.slots // shards
    numbers = jnp.where(exists[:, None], pages, cache.pages.shape[1])
    return paged_cache.insert(cache, k, v, pages=numbers)

  return Layout(
    empty,
    _named(specs, mesh),
    decode,
    _by_shards(insert, specs, limits, mesh),
    stacked=True,
  )


def _by_shards(insert, specs, limits, mesh):
  """Returns an insertion in which each shard of the slots takes its own.

  Without, XLA would gather all slots to write to some. A slot of another shard
  is one beyond the last.
  """
  slot = mesh_lib.SLOT_AXIS
  shard_slots = limits.slots // mesh.shape[slot]

  def of_shard(cache, k, v, slots, pages):
    mine = slots // shard_slots == jax.lax.axis_index(slot)
    slots = jnp.where(mine, slots % shard_slots, shard_slots)
    return insert(cache, k, v, slots, pages)

  mapped = jax.shard_map(
    of_shard,
    mesh=mesh,
    in_specs=(specs, _PREFIX, _PREFIX, P(), P()),
    out_specs=specs,
    check_vma=False,
  )
  return lambda cache, k, v, *, slots, pages: mapped(cache, k, v, slots, pages)


def _named(specs: Any, mesh: Mesh) -> Any:
  return jax.tree.map(
    lambda spec: NamedSharding(mesh, spec),
    specs,
    is_leaf=lambda x: isinstance(x, P),
  )

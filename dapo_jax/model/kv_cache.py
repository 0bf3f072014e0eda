"""The key-value cache of the decoding slots."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from dapo_jax.model import spec as spec_lib


class KVCache(NamedTuple):
  """Keys and values of every slot, one pair of buffers a layer.

  A tuple of buffers, not one stacked array: each is donated and updated in
  place, while a scan over a stacked cache would copy all of it every token.
  Entry c of slot s is its token at position c; entries beyond a slot's
  position hold leftovers and are never read. Heads stand before entries, as
  the products over them want it: the other way round, XLA:CPU transposes the
  whole cache for every token.
  """

  k: tuple[Float[Array, 'S K C H'], ...]
  v: tuple[Float[Array, 'S K C H'], ...]


def empty(
  spec: spec_lib.Spec, *, slots: int, cache_tokens: int, dtype: DTypeLike
) -> KVCache:
  """Returns a cache of zeros."""
  shape = (slots, spec.kv_heads, cache_tokens, spec.head_dim)
  buffers = lambda: tuple(jnp.zeros(shape, dtype) for _ in range(spec.layers))
  return KVCache(buffers(), buffers())


def write(
  buffer: Float[Array, 'S K C H'],
  new: Float[Array, 'S K H'],
  *,
  positions: Int[Array, ' S'],
) -> Float[Array, 'S K C H']:
  """Returns the buffer with one entry a slot set at its position."""
  rows = jnp.arange(buffer.shape[0])
  return buffer.at[rows, :, positions].set(
    new.astype(buffer.dtype), mode='drop'
  )


def insert(
  cache: KVCache,
  prefix_k: Float[Array, 'L T K H'],
  prefix_v: Float[Array, 'L T K H'],
  *,
  slots: Int[Array, ' G'],
) -> KVCache:
  """Returns the cache with one prompt's entries copied to several slots.

  A slot number beyond the last is dropped, so that one compiled program
  serves any number of slots up to G.
  """
  tokens = prefix_k.shape[1]
  fill = lambda buffers, prefix: tuple(
    b.at[slots, :, :tokens].set(
      jnp.swapaxes(p, 0, 1).astype(b.dtype), mode='drop'
    )
    for b, p in zip(buffers, prefix, strict=True)
  )
  return KVCache(fill(cache.k, prefix_k), fill(cache.v, prefix_v))

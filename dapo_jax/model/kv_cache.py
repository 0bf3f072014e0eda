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
  position hold leftovers and are never read.
  """

  k: tuple[Float[Array, 'S C K H'], ...]
  v: tuple[Float[Array, 'S C K H'], ...]


def empty(
  spec: spec_lib.Spec, *, slots: int, cache_tokens: int, dtype: DTypeLike
) -> KVCache:
  """Returns a cache of zeros."""
  shape = (slots, cache_tokens, spec.kv_heads, spec.head_dim)
  buffers = lambda: tuple(jnp.zeros(shape, dtype) for _ in range(spec.layers))
  return KVCache(buffers(), buffers())


def write(
  buffer: Float[Array, 'S C K H'],
  new: Float[Array, 'S K H'],
  *,
  positions: Int[Array, ' S'],
) -> Float[Array, 'S C K H']:
  """Returns the buffer with one entry a slot set at its position."""
  rows = jnp.arange(buffer.shape[0])
  return buffer.at[rows, positions].set(new.astype(buffer.dtype), mode='drop')


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
    b.at[slots, :tokens].set(p.astype(b.dtype), mode='drop')
    for b, p in zip(buffers, prefix, strict=True)
  )
  return KVCache(fill(cache.k, prefix_k), fill(cache.v, prefix_v))

"""The key-value cache of the decoding slots."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from dapo_jax.model import spec as spec_lib

# A cache of fewer entries than this is one block.
_SPLIT_TOKENS = 256


class KVCache(NamedTuple):
  """Keys and values of every slot: blocks of entries, for each layer.

  A tuple of buffers, not one stacked array: each is donated and updated in
  place, while a scan over a stacked cache would copy all of it every token.
  Blocks, because a step attends to the first few alone, and a slice of one
  buffer would be copied before the product over it. Keys have their entries
  last and values before the head, as the two products want them; any other way
  round XLA:CPU transposes the cache for every token.

  Entry c of slot s, counted over the blocks, is its token at position c;
  entries beyond a slot's position hold leftovers, which weigh 0. They are
  finite, always: 0 times NaN would be NaN, and a row that overflowed once
  would spoil whatever follows in its slot.
  """

  k: tuple[tuple[Float[Array, 'S K H _'], ...], ...]
  v: tuple[tuple[Float[Array, 'S K _ H'], ...], ...]


def block_tokens(cache_tokens: int) -> tuple[int, ...]:
  """Returns the entries of each block: four alike, or one if they are few."""
  if cache_tokens < _SPLIT_TOKENS:
    return (cache_tokens,)
  quarter = -(-cache_tokens // 4)
  return (quarter, quarter, quarter, cache_tokens - 3 * quarter)


def empty(
  spec: spec_lib.Spec, *, slots: int, cache_tokens: int, dtype: DTypeLike
) -> KVCache:
  """Returns a cache of zeros."""
  k_shape = lambda c: (slots, spec.kv_heads, spec.head_dim, c)
  v_shape = lambda c: (slots, spec.kv_heads, c, spec.head_dim)

  def buffers(shape):
    sizes = block_tokens(cache_tokens)
    return tuple(
      tuple(jnp.zeros(shape(c), dtype) for c in sizes)
      for _ in range(spec.layers)
    )

  return KVCache(buffers(k_shape), buffers(v_shape))


def write_keys(
  blocks: tuple[Float[Array, 'S K H _'], ...],
  new: Float[Array, 'S K H'],
  *,
  positions: Int[Array, ' S'],
) -> tuple[Float[Array, 'S K H _'], ...]:
  """Returns the blocks of a layer with one key a slot at its position.

  A position beyond the blocks is dropped.
  """
  rows = jnp.arange(new.shape[0])
  places = _places(positions, [b.shape[3] for b in blocks])
  return tuple(
    b.at[rows, :, :, place].set(_finite(new, b.dtype), mode='drop')
    for b, place in zip(blocks, places, strict=True)
  )


def write_values(
  blocks: tuple[Float[Array, 'S K _ H'], ...],
  new: Float[Array, 'S K H'],
  *,
  positions: Int[Array, ' S'],
) -> tuple[Float[Array, 'S K _ H'], ...]:
  """Returns the blocks of a layer with one value a slot at its position.

  A position beyond the blocks is dropped.
  """
  rows = jnp.arange(new.shape[0])
  places = _places(positions, [b.shape[2] for b in blocks])
  return tuple(
    b.at[rows, :, place].set(_finite(new, b.dtype), mode='drop')
    for b, place in zip(blocks, places, strict=True)
  )


def _places(
  positions: Int[Array, ' S'], sizes: list[int]
) -> list[Int[Array, ' S']]:
  """Returns the place of each position in each block, its size if elsewhere."""
  places, begin = [], 0
  for size in sizes:
    place = positions - begin
    # A negative place would count from the block's end.
    places.append(jnp.where(place < 0, size, place))
    begin += size
  return places


def _finite(x: Float[Array, '...'], dtype: DTypeLike) -> Float[Array, '...']:
  """Returns the entries in the cache's type, 0 where they are not finite."""
  x = x.astype(dtype)
  return jnp.where(jnp.isfinite(x), x, 0)


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

  def fill(blocks, prefix, *, keys: bool):
    filled, begin = [], 0
    for b in blocks:
      size = b.shape[3] if keys else b.shape[2]
      part = prefix[begin : begin + size]
      begin += size
      count = part.shape[0]
      if keys:
        part = _finite(jnp.moveaxis(part, 0, 2), b.dtype)
        b = b.at[slots, :, :, :count].set(part, mode='drop')
      else:
        part = _finite(jnp.swapaxes(part, 0, 1), b.dtype)
        b = b.at[slots, :, :count].set(part, mode='drop')
      filled.append(b)
    return tuple(filled)

  each = lambda layers, prefix, keys: tuple(
    fill(blocks, p, keys=keys) for blocks, p in zip(layers, prefix, strict=True)
  )
  return KVCache(each(cache.k, prefix_k, True), each(cache.v, prefix_v, False))

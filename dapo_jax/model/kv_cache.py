"""The key-value cache of the decoding slots."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, BFloat16, Float, Int, Int8

from dapo_jax.model import spec as spec_lib

# A cache of fewer entries than this is one block.
_SPLIT_TOKENS = 256


class Quantized(NamedTuple):
  """A block of an int8 cache: each entry is its `values` times its `scale`.

  One scale for each slot, head and entry, a 127th of the entry's largest
  magnitude. In bfloat16: entries are divided by the scale as it is stored, so
  its rounding makes a step wider by a 2^-8th at most, and no more than that.
  """

  values: Int8[Array, 'S K _ _']
  scale: BFloat16[Array, 'S K _']


KeyBlock = Float[Array, 'S K H _'] | Quantized
ValueBlock = Float[Array, 'S K _ H'] | Quantized


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

  k: tuple[tuple[KeyBlock, ...], ...]
  v: tuple[tuple[ValueBlock, ...], ...]


def block_tokens(cache_tokens: int) -> tuple[int, ...]:
  """Returns the entries of each block: four alike, or one if they are few."""
  if cache_tokens < _SPLIT_TOKENS:
    return (cache_tokens,)
  quarter = -(-cache_tokens // 4)
  return (quarter, quarter, quarter, cache_tokens - 3 * quarter)


def empty(
  spec: spec_lib.Spec, *, slots: int, cache_tokens: int, dtype: DTypeLike
) -> KVCache:
  """Returns a cache of zeros; with int8, one of `Quantized` blocks.

  A key or value then takes H + 2 bytes, where bfloat16 takes 2 H.
  """
  k_shape = lambda c: (slots, spec.kv_heads, spec.head_dim, c)
  v_shape = lambda c: (slots, spec.kv_heads, c, spec.head_dim)

  def block(shape, entries):
    values = jnp.zeros(shape(entries), dtype)
    if values.dtype != jnp.int8:
      return values
    scale = jnp.zeros((slots, spec.kv_heads, entries), jnp.bfloat16)
    return Quantized(values, scale)

  def buffers(shape):
    sizes = block_tokens(cache_tokens)
    return tuple(
      tuple(block(shape, c) for c in sizes) for _ in range(spec.layers)
    )

  return KVCache(buffers(k_shape), buffers(v_shape))


def partition_specs(
  cache_shapes: KVCache, *, slots: str, heads: str | None
) -> KVCache:
  """Returns how each array of a cache is split over a mesh.

  Args:
    cache_shapes: a cache, or what `jax.eval_shape` says of one.
    slots: the mesh axis that the slots are split over.
    heads: the mesh axis that the heads are split over; None = whole.

  Returns:
    A cache with a `PartitionSpec` for each array.
  """
  rest = lambda x: (None,) * (x.ndim - 2)
  return jax.tree.map(lambda x: P(slots, heads, *rest(x)), cache_shapes)


def stored(
  block: KeyBlock | ValueBlock,
) -> tuple[Array, BFloat16[Array, 'S K _'] | None]:
  """Returns a block's numbers and the scale of each entry, None = 1."""
  if isinstance(block, Quantized):
    return block.values, block.scale
  return block, None


def write_keys(
  blocks: tuple[KeyBlock, ...],
  new: Float[Array, 'S K H'],
  *,
  positions: Int[Array, ' S'],
) -> tuple[KeyBlock, ...]:
  """Returns the blocks of a layer with one key a slot at its position.

  A position beyond the blocks is dropped. Mapped over the slots, which tells
  XLA that each is written by the device that holds it: with slots as indices
  every device gathers the keys and places of all.
  """
  places = _places(positions, [stored(b)[0].shape[3] for b in blocks])
  # The dots stand for heads and their size; a scale has heads alone.
  each = jax.vmap(lambda b, place, x: _set(b, (..., place), x))
  return tuple(
    each(b, place, _encode(new, b))
    for b, place in zip(blocks, places, strict=True)
  )


def write_values(
  blocks: tuple[ValueBlock, ...],
  new: Float[Array, 'S K H'],
  *,
  positions: Int[Array, ' S'],
) -> tuple[ValueBlock, ...]:
  """Returns the blocks of a layer with one value a slot at its position.

  A position beyond the blocks is dropped; see `write_keys`.
  """
  places = _places(positions, [stored(b)[0].shape[2] for b in blocks])
  each = jax.vmap(lambda b, place, x: _set(b, (slice(None), place), x))
  return tuple(
    each(b, place, _encode(new, b))
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
  # As the blocks hold them, once for all slots.
  prefix = KVCache(
    _in_blocks(prefix_k, cache.k, axis=-1),
    _in_blocks(prefix_v, cache.v, axis=1),
  )

  # Slot by slot, in place: a scatter would copy the prompt for each first.
  def put(i, filled):
    slot = slots[i]

    def one(block, part):
      exists = slot < block.shape[0]
      at = (jnp.minimum(slot, block.shape[0] - 1),) + (0,) * part.ndim
      before = jax.lax.dynamic_slice(block, at, (1, *part.shape))
      part = jnp.where(exists, part[None], before)
      return jax.lax.dynamic_update_slice(block, part, at)

    return jax.tree.map(one, filled, prefix)

  return jax.lax.fori_loop(0, len(slots), put, cache)


def _in_blocks(prefix: Float[Array, 'L T K H'], layers, *, axis: int):
  """Returns a prompt's entries as the blocks of a slot, entries on an axis."""
  tokens = prefix.shape[1]
  found = []
  for of_layer, blocks in zip(prefix, layers, strict=True):
    parts, begin = [], 0
    for b in blocks:
      # A scale has no axis of the head's size.
      entries = stored(b)[0].shape[axis if axis < 0 else axis + 1]
      part = of_layer[begin : min(begin + entries, tokens)]
      begin += entries
      to_block = lambda x: jnp.moveaxis(x, 0, axis)
      parts.append(jax.tree.map(to_block, _encode(part, b)))
    found.append(tuple(parts))
  return tuple(found)


def _set(block, index, new):
  """Returns a block with each array's part at the index replaced."""
  put = lambda old, part: old.at[index].set(part, mode='drop')
  return jax.tree.map(put, block, new)


def _encode(x: Float[Array, '... H'], block: KeyBlock | ValueBlock):
  """Returns entries as a block of this kind holds them, in the order of x."""
  if isinstance(block, Quantized):
    return _quantized(_finite(x, jnp.float32))
  return _finite(x, block.dtype)


def _quantized(x: Float[Array, '... H']) -> Quantized:
  """Returns finite entries in int8, none further off than half a scale."""
  scale = jnp.max(jnp.abs(x), axis=-1) * (1 / 127)
  # Entries of zeros divide by this; below it numbers lose their precision.
  scale = jnp.maximum(scale, jnp.finfo(jnp.float32).tiny)
  # Rounded by itself: XLA may leave out a cast to bfloat16 and back. If down,
  # quotients reach 127 (1 + 2^-8) < 127.5: there is nothing to clip.
  scale = jax.lax.reduce_precision(scale, exponent_bits=8, mantissa_bits=7)
  values = jnp.round(x / scale[..., None]).astype(jnp.int8)
  return Quantized(values, scale.astype(jnp.bfloat16))


def _finite(x: Float[Array, '...'], dtype: DTypeLike) -> Float[Array, '...']:
  """Returns the entries in the cache's type, 0 where they are not finite."""
  x = x.astype(dtype)
  return jnp.where(jnp.isfinite(x), x, 0)

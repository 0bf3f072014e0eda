"""The key-value cache in pages: what a slot holds grows with what it needs.

A slot's row of the table names the pages of its tokens, in order. Pages are
handed out on the host (`sampling/pages.py`); two slots of one prompt name the
same pages for what they have in common. Slots of one shard of devices draw on
one pool and the table holds numbers within it, so each function here is of one
shard: the caller maps it over the shards.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from dapo_jax.model import attention
from dapo_jax.model import spec as spec_lib


class PagedCache(NamedTuple):
  """Pages of all layers, and which of them each slot has.

  A page holds the keys and values of p tokens, the heads of both in turns: key
  head 0, value head 0, key head 1, ... (X = 2 K), as the kernel wants them. A
  number beyond the last page is no page: what is written there is dropped.
  """

  pages: Float[Array, 'L Q p X H']
  table: Int[Array, 'S W']


def empty(
  spec: spec_lib.Spec,
  *,
  pages: int,
  page_tokens: int,
  table_shape: tuple[int, int],
  dtype: DTypeLike,
) -> PagedCache:
  """Returns pages of zeros that no slot has."""
  shape = (spec.layers, pages, page_tokens, 2 * spec.kv_heads, spec.head_dim)
  return PagedCache(
    jnp.zeros(shape, dtype), jnp.full(table_shape, pages, jnp.int32)
  )


def attend(
  q: Float[Array, 'S N H'],
  k: Float[Array, 'S K H'],
  v: Float[Array, 'S K H'],
  cache: PagedCache,
  *,
  layer: Int[Array, ''],
  positions: Int[Array, ' S'],
  kernel: bool,
  window_tokens: int | None = None,
) -> tuple[Float[Array, 'S N H'], PagedCache]:
  """Returns attention over what the slots hold with one token more, and that.

  A slot with a negative position writes nothing, what it gets means nothing:
  its pages may have another owner. With `kernel`, by the TPU kernel.
  """
  layers, count, page_tokens, heads, head_dim = cache.pages.shape
  # One page number for all layers: a slice of a layer would be copied.
  flat = cache.pages.reshape(layers * count, page_tokens, heads, head_dim)
  column = jnp.clip(positions // page_tokens, 0, cache.table.shape[1] - 1)
  page = jnp.take_along_axis(cache.table, column[:, None], axis=1)[:, 0]
  exists = (positions >= 0) & (page < count)
  page = jnp.where(exists, page + layer * count, layers * count)
  flat = flat.at[page, positions % page_tokens].set(
    _interleaved(k, v, flat.dtype), mode='drop'
  )
  out = attention.paged_attention(
    q,
    flat,
    # What is read of a page that does not exist weighs nothing.
    table=jnp.minimum(cache.table, count - 1) + layer * count,
    positions=jnp.maximum(positions, 0),
    kernel=kernel,
    window_tokens=window_tokens,
  )
  return out, cache._replace(pages=flat.reshape(cache.pages.shape))


def insert(
  cache: PagedCache,
  prefix_k: Float[Array, 'L T K H'],
  prefix_v: Float[Array, 'L T K H'],
  *,
  pages: Int[Array, 'G n'],
) -> PagedCache:
  """Returns the cache with a prompt copied to the pages of several slots.

  Page i of a slot takes the prompt's tokens from i p on. A number beyond the
  last page is dropped: of pages that slots share, one of them writes.
  """
  layers, count, page_tokens = cache.pages.shape[:3]
  missing = -prefix_k.shape[1] % page_tokens
  fill = lambda x: jnp.pad(x, ((0, 0), (0, missing), (0, 0), (0, 0)))
  prefix_k, prefix_v = fill(prefix_k), fill(prefix_v)
  # The bucket of a prompt may be longer than a row.
  width = min(pages.shape[1], prefix_k.shape[1] // page_tokens)

  # Page by page, where a scatter would copy either the prompt for every slot
  # or all pages.
  def write(i, filled):
    cut = lambda x: jax.lax.dynamic_slice_in_dim(
      x, i // len(pages) * page_tokens, page_tokens, axis=1
    )
    page = _interleaved(cut(prefix_k), cut(prefix_v), filled.dtype)
    number = pages[i % len(pages), i // len(pages)]
    at = (0, jnp.minimum(number, count - 1), 0, 0, 0)
    before = jax.lax.dynamic_slice(filled, at, (layers, 1, *page.shape[1:]))
    page = jnp.where(number < count, page[:, None], before)
    return jax.lax.dynamic_update_slice(filled, page, at)

  filled = jax.lax.fori_loop(0, width * len(pages), write, cache.pages)
  return cache._replace(pages=filled)


def _interleaved(
  k: Float[Array, '... K H'], v: Float[Array, '... K H'], dtype: DTypeLike
) -> Float[Array, '... X H']:
  """Returns the heads of both in turns, 0 where an entry is not finite.

  0 times NaN would be NaN: a row that overflowed once would spoil whatever
  comes into its pages.
  """
  both = jnp.stack([k, v], axis=-2).astype(dtype)
  both = both.reshape(*k.shape[:-2], 2 * k.shape[-2], k.shape[-1])
  return jnp.where(jnp.isfinite(both), both, 0)

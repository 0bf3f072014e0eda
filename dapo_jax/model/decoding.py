"""One token a slot through the decoder, over either kind of cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from dapo_jax.model import attention, decoder, kv_cache, paged_cache

# As `paged_cache.attend`, perhaps mapped over shards.
AttendPaged = Callable[..., tuple[Array, paged_cache.PagedCache]]


def dense(
  model: decoder.Decoder,
  tokens: Int[Array, ' S'],
  cache: kv_cache.KVCache,
  *,
  positions: Int[Array, ' S'],
  attend_blocks: int | None = None,
) -> tuple[Float[Array, 'S D'], kv_cache.KVCache]:
  """Returns the hidden state after one token a slot, and the new cache.

  It attends to the first `attend_blocks` blocks of the cache, None = all: no
  position of a slot that counts may be beyond them. Layers are unrolled here:
  each updates its own donated buffers.
  """
  x = model.embed(tokens[:, None])
  graphdef, weights = nnx.split(model.block)
  keys, values = [], []
  for i in range(model.spec.layers):

    def attend(q, k, v, i=i):
      k_blocks = kv_cache.write_keys(
        cache.k[i][:attend_blocks], k[:, 0], positions=positions
      )
      v_blocks = kv_cache.write_values(
        cache.v[i][:attend_blocks], v[:, 0], positions=positions
      )
      out = attention.cached_attention(
        q[:, 0],
        k_blocks,
        v_blocks,
        positions=positions,
        window_tokens=model.spec.window_tokens,
      )
      rest = len(k_blocks)
      return out[:, None], (
        k_blocks + cache.k[i][rest:],
        v_blocks + cache.v[i][rest:],
      )

    layer = nnx.merge(graphdef, jax.tree.map(lambda w, i=i: w[i], weights))
    x, (k, v) = layer(x, positions[:, None], attend)
    keys.append(k)
    values.append(v)
  return model.normed(x[:, 0]), kv_cache.KVCache(tuple(keys), tuple(values))


def paged(
  model: decoder.Decoder,
  tokens: Int[Array, ' S'],
  cache: paged_cache.PagedCache,
  *,
  positions: Int[Array, ' S'],
  live: Bool[Array, ' S'],
  attend: AttendPaged,
) -> tuple[Float[Array, 'S D'], paged_cache.PagedCache]:
  """Returns the hidden state after one token a slot, and the new cache.

  The layers are scanned, the pages of all of them carried along: they are
  updated in place, and the time to compile does not grow with the depth.
  """
  graphdef, weights = nnx.split(model.block)

  def layer(carry, given: tuple[Any, Any]):
    x, cache = carry
    number, layer_weights = given

    def attend_token(q, k, v):
      out, after = attend(
        q[:, 0],
        k[:, 0],
        v[:, 0],
        cache,
        layer=number,
        positions=jnp.where(live, positions, -1),
      )
      return out[:, None], after

    block = nnx.merge(graphdef, layer_weights)
    return block(x, positions[:, None], attend_token), None

  start = (model.embed(tokens[:, None]), cache)
  given = (jnp.arange(model.spec.layers), weights)
  (x, cache), _ = jax.lax.scan(layer, start, given)
  return model.normed(x[:, 0]), cache

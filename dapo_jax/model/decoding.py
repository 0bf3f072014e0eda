"""The decoder at work in a sampler: prompts, then a token a slot at a time.

All functions take the decoder and its layers, as `bind` gives them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from dapo_jax.model import attention, decoder, kv_cache, paged_cache

# The weights of all layers stacked, or a tuple of those of each: the first is
# scanned, which compiles fast; the second unrolled, which copies nothing.
Layers = Any
# (q, k, v, cache, number of the layer) -> as `paged_cache.attend` returns.
AttendPaged = Callable[..., tuple[Array, paged_cache.PagedCache]]


def bind(
  graphdef: Any, params: decoder.Params
) -> tuple[decoder.Decoder, Layers]:
  """Returns the decoder and its layers, stacked or not as the parameters."""
  layers = params['block']
  if isinstance(layers, tuple):
    params = params | {'block': layers[0]}
  return nnx.merge(graphdef, params), layers


def prefill(
  model: decoder.Decoder, layers: Layers, tokens: Int[Array, 'B T']
) -> tuple[Float[Array, 'L B T K H'], Float[Array, 'L B T K H']]:
  """Returns the keys and values of prompts that start at position 0."""
  segment_ids = jnp.ones_like(tokens)
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)

  def layer(block, x, _):
    def attend(q, k, v):
      out = attention.attention(
        q,
        k,
        v,
        segment_ids=segment_ids,
        positions=positions,
        window_tokens=model.spec.window_tokens,
      )
      return out, (k, v)

    return block(x, positions, attend)

  return _kept(model, layers, tokens, layer, None)


def prefill_part(
  model: decoder.Decoder,
  layers: Layers,
  tokens: Int[Array, 'B T'],
  keys_values: tuple[Float[Array, 'L B C K H'], Float[Array, 'L B C K H']],
  *,
  begin: Int[Array, ''],
) -> tuple[Float[Array, 'L B C K H'], Float[Array, 'L B C K H']]:
  """Returns keys and values with those of a part of the prompts written.

  The part stands at positions `begin`, `begin` + 1, ...; what is before it
  must have been written. Scores exist for T x C pairs at a time.
  """
  places = jnp.arange(keys_values[0].shape[2])[None]
  positions = begin + jnp.broadcast_to(
    jnp.arange(tokens.shape[1]), tokens.shape
  )
  write = lambda whole, part: jax.lax.dynamic_update_slice_in_dim(
    whole, part.astype(whole.dtype), begin, axis=1
  )

  def layer(block, x, written):
    def attend(q, k, v):
      k, v = write(written[0], k), write(written[1], v)
      out = attention.continued_attention(
        q,
        k,
        v,
        q_positions=positions,
        k_positions=places,
        window_tokens=model.spec.window_tokens,
      )
      return out, (k, v)

    return block(x, positions, attend)

  return _kept(model, layers, tokens, layer, keys_values)


def dense(
  model: decoder.Decoder,
  layers: Layers,
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
  graphdef, _ = nnx.split(model.block)
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

    block = nnx.merge(graphdef, _layer(layers, i))
    x, (k, v) = block(x, positions[:, None], attend)
    keys.append(k)
    values.append(v)
  return model.normed(x[:, 0]), kv_cache.KVCache(tuple(keys), tuple(values))


def paged(
  model: decoder.Decoder,
  layers: Layers,
  tokens: Int[Array, ' S'],
  cache: paged_cache.PagedCache,
  *,
  positions: Int[Array, ' S'],
  attend: AttendPaged,
) -> tuple[Float[Array, 'S D'], paged_cache.PagedCache]:
  """Returns the hidden state after one token a slot, and the new cache.

  Of stacked layers, which are scanned with the pages of all of them carried
  along: they are updated in place.
  """
  graphdef, _ = nnx.split(model.block)

  def layer(carry, given: tuple[Any, Any]):
    x, cache = carry
    number, weights = given

    def attend_token(q, k, v):
      out, after = attend(q[:, 0], k[:, 0], v[:, 0], cache, number)
      return out[:, None], after

    block = nnx.merge(graphdef, weights)
    return block(x, positions[:, None], attend_token), None

  start = (model.embed(tokens[:, None]), cache)
  given = (jnp.arange(model.spec.layers), layers)
  (x, cache), _ = jax.lax.scan(layer, start, given)
  return model.normed(x[:, 0]), cache


def _layer(layers: Layers, i: int) -> Any:
  if isinstance(layers, tuple):
    return layers[i]
  return jax.tree.map(lambda w: w[i], layers)


def _kept(model, layers: Layers, tokens, layer, given: Any) -> Any:
  """Returns what `layer(block, x, given)` keeps of each layer, stacked.

  It is given its own part of `given`, which has a leading axis L.
  """
  graphdef, _ = nnx.split(model.block)
  x = model.embed(tokens)
  if not isinstance(layers, tuple):
    step = lambda x, own: layer(nnx.merge(graphdef, own[0]), x, own[1])
    return jax.lax.scan(step, x, (layers, given))[1]
  kept = []
  for i, weights in enumerate(layers):
    own = jax.tree.map(lambda g, i=i: g[i], given)
    x, of_layer = layer(nnx.merge(graphdef, weights), x, own)
    kept.append(of_layer)
  return jax.tree.map(lambda *parts: jnp.stack(parts), *kept)

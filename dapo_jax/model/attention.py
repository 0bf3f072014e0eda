"""Attention, the one door: whole rows, and one token against a cache."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from dapo_jax.model import kv_cache, paged_kernel


def attention(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
  *,
  segment_ids: Int[Array, 'B T'],
  prefix_ids: Int[Array, 'B T'] | None = None,
  positions: Int[Array, 'B T'] | None = None,
  window_tokens: int | None = None,
) -> Float[Array, 'B T N H']:
  """Returns causal softmax attention inside each segment of each row.

  A token sees the tokens of its own segment up to itself and, with
  `prefix_ids`, those of the segment that its prefix id names: so the
  responses to a prompt stand behind one copy of it. It sees no further back
  than a window of `window_tokens` positions, its own included; without
  `positions` a token's position is its place in the row. Padding is segment
  0: it sees only padding, so no row of the mask is empty. Scores are scaled
  by H^-1/2 and normalised in float32.
  """
  seen = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
  if prefix_ids is not None:
    seen |= prefix_ids[:, None, :, None] == segment_ids[:, None, None, :]
  if window_tokens is not None:
    if positions is None:
      positions = jnp.arange(q.shape[1])[None]
    back = positions[:, None, :, None] - positions[:, None, None, :]
    seen &= back < window_tokens
  return jax.nn.dot_product_attention(q, k, v, mask=seen, is_causal=True)


def continued_attention(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B C K H'],
  v: Float[Array, 'B C K H'],
  *,
  q_positions: Int[Array, '#B T'],
  k_positions: Int[Array, '#B C'],
  window_tokens: int | None = None,
) -> Float[Array, 'B T N H']:
  """Returns causal attention of queries over keys at positions of their own.

  For a prompt that is computed in parts: the keys are those of all of it.
  """
  back = q_positions[:, None, :, None] - k_positions[:, None, None, :]
  seen = back >= 0
  if window_tokens is not None:
    seen &= back < window_tokens
  return jax.nn.dot_product_attention(q, k, v, mask=seen)


def cached_attention(
  q: Float[Array, 'S N H'],
  k: Sequence[kv_cache.KeyBlock],
  v: Sequence[kv_cache.ValueBlock],
  *,
  positions: Int[Array, ' S'],
  window_tokens: int | None = None,
) -> Float[Array, 'S N H']:
  """Returns attention of one query a slot over cache entries 0..position.

  With a window, over the last `window_tokens` of them. Keys and values come
  in blocks, entry after entry; those that are not given are not looked at. An
  entry's scale multiplies its score and its weight, not what is stored.
  """
  slots, heads, head_dim = q.shape
  kv_heads = kv_cache.stored(k[0])[0].shape[1]
  q = q.reshape(slots, kv_heads, heads // kv_heads, head_dim)
  scores = jnp.concatenate([_scores(q, b) for b in k], axis=-1)
  back = positions[:, None] - jnp.arange(scores.shape[-1])[None]
  seen = back >= 0
  if window_tokens is not None:
    seen = seen & (back < window_tokens)
  scores = jnp.where(seen[:, None, None], scores * head_dim**-0.5, -jnp.inf)
  weights = jax.nn.softmax(scores, axis=-1)
  out, begin = 0.0, 0
  for b in v:
    end = begin + kv_cache.stored(b)[0].shape[2]
    # Added up in float32: blocks are no reason to round more often.
    out += _weighted(weights[..., begin:end], b, dtype=q.dtype)
    begin = end
  return out.reshape(slots, heads, head_dim).astype(q.dtype)


def _scores(
  q: Float[Array, 'S K g H'], block: kv_cache.KeyBlock
) -> Float[Array, 'S K g _']:
  """Returns the products of queries and the keys of a block, in float32."""
  keys, scale = kv_cache.stored(block)
  scores = jnp.einsum(
    'skgh,skhc->skgc',
    q,
    keys.astype(q.dtype),
    preferred_element_type=jnp.float32,
  )
  return scores if scale is None else scores * scale[:, :, None]


def _weighted(
  weights: Float[Array, 'S K g _'],
  block: kv_cache.ValueBlock,
  *,
  dtype: DTypeLike,
) -> Float[Array, 'S K g H']:
  """Returns the weighted sums of a block's values, multiplied in `dtype`."""
  values, scale = kv_cache.stored(block)
  if scale is not None:
    weights = weights * scale[:, :, None]
  return jnp.einsum(
    'skgc,skch->skgh',
    weights.astype(dtype),
    values.astype(dtype),
    preferred_element_type=jnp.float32,
  )


def paged_attention(
  q: Float[Array, 'S N H'],
  pages: Float[Array, 'Q p X H'],
  *,
  table: Int[Array, 'S W'],
  positions: Int[Array, ' S'],
  kernel: bool,
  window_tokens: int | None = None,
) -> Float[Array, 'S N H']:
  """Returns attention of one query a slot over its pages, up to its position.

  A page holds p tokens, the heads of keys and values in turns (X = 2 K); row s
  of the table names the pages of slot s, in order. With `kernel` it is the TPU
  kernel, which reads the pages that are needed; without, all pages of a row
  are gathered first, as the kernel's own reference does: for tests.
  """
  if kernel:
    return paged_kernel.attend(
      q, pages, table=table, positions=positions, window_tokens=window_tokens
    )
  slots, _, head_dim = q.shape
  rows = pages[table].reshape(slots, -1, pages.shape[2], head_dim)
  k = jnp.transpose(rows[:, :, 0::2], (0, 2, 3, 1))
  v = jnp.swapaxes(rows[:, :, 1::2], 1, 2)
  return cached_attention(
    q, (k,), (v,), positions=positions, window_tokens=window_tokens
  )

"""Exact attention of long rows, whose scores exist for a few queries at a time.

For devices without a kernel that knows segments. On GPUs
`jax.nn.dot_product_attention(implementation='cudnn')` is none: it takes no
segment ids, only lengths of whole rows and a mask, which it turns into a dense
bias of T x T numbers a row; and it refuses float32.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Queries at a time, [tokens].
_BLOCK_TOKENS = 256
# Parts of a row, each of which sees the keys up to its own end: of n parts
# (n + 1) / 2n of all scores are computed.
_PARTS = 4


def attend(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
  *,
  segment_ids: Int[Array, 'B T'],
  prefix_ids: Int[Array, 'B T'] | None,
  positions: Int[Array, 'B T'] | None,
  window_tokens: int | None,
  block_tokens: int = _BLOCK_TOKENS,
) -> Float[Array, 'B T N H']:
  """Returns what `attention.attention` does, in memory of O(block x T).

  The backward pass computes the scores of a block again. Padding, segment 0,
  takes no part: what it holds reaches nothing, and its output is 0.
  """
  rows, tokens, heads, head_dim = q.shape
  real = (segment_ids > 0)[..., None, None]
  q, k, v = (jnp.where(real, x, 0) for x in (q, k, v))
  if positions is None:
    positions = jnp.broadcast_to(jnp.arange(tokens), segment_ids.shape)
  places = jnp.broadcast_to(jnp.arange(tokens), segment_ids.shape)
  ids = [places, positions, segment_ids]
  ids += [] if prefix_ids is None else [prefix_ids]
  block = min(block_tokens, tokens)
  count = -(-tokens // block)

  def in_blocks(x):
    pad = ((0, 0), (0, count * block - tokens), *((0, 0),) * (x.ndim - 2))
    # Places beyond the row repeat the last one, which sees something.
    x = jnp.pad(x, pad, mode='edge')
    return jnp.moveaxis(x.reshape(rows, count, block, *x.shape[2:]), 1, 0)

  queries = jax.tree.map(in_blocks, (q, ids))
  out = []
  part = -(-count // _PARTS)
  for first in range(0, count, part):
    last = min(count, first + part)
    end = min(tokens, last * block)
    keys = jax.tree.map(lambda x, end=end: x[:, :end], (k, v, ids[:3]))
    own = jax.tree.map(lambda x, a=first, b=last: x[a:b], queries)
    one = lambda x, keys=keys: _attend_block(keys, x, window_tokens)
    out.append(jax.lax.map(one, own))
  out = jnp.moveaxis(jnp.concatenate(out), 0, 1)
  out = out.reshape(rows, count * block, heads, head_dim)[:, :tokens]
  return jnp.where(real, out, 0)


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=(2,))
def _attend_block(keys, queries, window_tokens):
  """Returns the attention of a block of queries over keys."""
  k, v, k_ids = keys
  q, q_ids = queries
  seen = _seen(q_ids, k_ids, window_tokens)
  return jax.nn.dot_product_attention(q, k, v, mask=seen[:, None])


def _seen(
  q_ids: list[Int[Array, 'B b']],
  k_ids: list[Int[Array, 'B E']],
  window_tokens: int | None,
) -> Bool[Array, 'B b E']:
  """Returns which keys each query sees; see `attention.attention`."""
  q_places, q_positions, q_segments, *q_prefixes = q_ids
  k_places, k_positions, k_segments = (x[:, None, :] for x in k_ids)
  seen = q_segments[..., None] == k_segments
  for prefixes in q_prefixes:
    seen |= prefixes[..., None] == k_segments
  seen &= q_places[..., None] >= k_places
  if window_tokens is not None:
    seen &= q_positions[..., None] - k_positions < window_tokens
  return seen

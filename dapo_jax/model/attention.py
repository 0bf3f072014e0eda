"""Attention, the one door: whole rows, and one token against a cache."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def attention(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
  *,
  segment_ids: Int[Array, 'B T'],
) -> Float[Array, 'B T N H']:
  """Returns causal softmax attention inside each segment of each row.

  A token sees the tokens of its own segment up to itself. Padding is segment
  0: it sees only padding, so no row of the mask is empty. Scores are scaled
  by H^-1/2 and normalised in float32.
  """
  same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
  return jax.nn.dot_product_attention(q, k, v, mask=same, is_causal=True)


def cached_attention(
  q: Float[Array, 'S N H'],
  k: Float[Array, 'S C K H'],
  v: Float[Array, 'S C K H'],
  *,
  positions: Int[Array, ' S'],
) -> Float[Array, 'S N H']:
  """Returns attention of one query a slot over cache entries 0..position."""
  slots, heads, head_dim = q.shape
  kv_heads = k.shape[2]
  q = q.reshape(slots, kv_heads, heads // kv_heads, head_dim)
  scores = jnp.einsum(
    'skgh,sckh->skgc', q, k, preferred_element_type=jnp.float32
  )
  seen = jnp.arange(k.shape[1])[None] <= positions[:, None]
  scores = jnp.where(seen[:, None, None], scores * head_dim**-0.5, -jnp.inf)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  out = jnp.einsum('skgc,sckh->skgh', weights, v)
  return out.reshape(slots, heads, head_dim)

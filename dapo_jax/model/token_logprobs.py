"""Log-probabilities and entropies of tokens, a few logits at a time."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class TokenLogprobs(NamedTuple):
  """Per token, in nats, of the policy at the sampling temperature."""

  logp: Float[Array, 'R T']
  entropy: Float[Array, 'R T'] | None


def token_logprobs(
  hidden: Float[Array, 'R T D'],
  targets: Int[Array, 'R T'],
  *,
  logits: Callable[[Array], Array],
  temperature: float | Float[Array, ''],
  chunk_tokens: int,
  entropy: bool,
) -> TokenLogprobs:
  """Returns log softmax(logits / temperature)[target] of every position.

  Logits exist for about `chunk_tokens` positions at a time, forward and
  backward (each chunk is rematerialised): a row of 20,480 tokens times
  152,064 words would be 12 GB. Chunks cut the T axis, never the rows, which
  are spread over devices.
  """
  rows, length, _ = hidden.shape
  size = max(1, min(length, chunk_tokens // rows))
  chunks = -(-length // size)
  pad = chunks * size - length

  @jax.checkpoint
  def one(hidden, targets):
    z = logits(hidden) / temperature
    logsumexp = jax.nn.logsumexp(z, axis=-1)
    chosen = jnp.take_along_axis(z, targets[..., None], axis=-1)[..., 0]
    if not entropy:
      return chosen - logsumexp, None
    mean_logit = jnp.sum(jax.nn.softmax(z, axis=-1) * z, axis=-1)
    return chosen - logsumexp, logsumexp - mean_logit

  def split(x):
    x = jnp.pad(x, ((0, 0), (0, pad)) + ((0, 0),) * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(rows, chunks, size, *x.shape[2:]), 1, 0)

  def join(x):
    return jnp.moveaxis(x, 0, 1).reshape(rows, chunks * size)[:, :length]

  if chunks == 1:
    return TokenLogprobs(*one(hidden, targets))
  _, parts = jax.lax.scan(
    lambda _, x: (None, one(*x)), None, (split(hidden), split(targets))
  )
  return TokenLogprobs(*jax.tree.map(join, parts))

"""Log-probabilities and entropies of tokens, a few logits at a time."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped


class TokenLogprobs(NamedTuple):
  """Per token, in nats, of the policy at the sampling temperature."""

  logp: Float[Array, 'R T']
  entropy: Float[Array, 'R T'] | None


def token_logprobs(
  hidden: Float[Array, 'R T D'],
  targets: Int[Array, 'R T'],
  *,
  wanted: Bool[Array, 'R T'],
  logits: Callable[[Array], Array],
  temperature: float | Float[Array, ''],
  chunk_tokens: int,
  entropy: bool,
  split_vocab: bool = False,
) -> TokenLogprobs:
  """Returns log softmax(logits / temperature)[target] of the wanted places.

  Logits exist for about `chunk_tokens` places at a time, forward and backward
  (each chunk is rematerialised): a row of 20,480 tokens times 152,064 words
  would be 12 GB. Chunks cut the T axis, never the rows, which are spread over
  devices. Wanted places are brought to the front of their row, so that whole
  chunks of prompt and padding cost nothing; elsewhere the result is 0.

  Args:
    hidden: final hidden states.
    targets: tokens whose log-probs are asked for.
    wanted: the places that are.
    logits: maps hidden states to logits.
    temperature: divides them.
    chunk_tokens: places whose logits exist at one time, of all rows.
    entropy: whether entropies are asked for too.
    split_vocab: whether logits are split over devices.
  """
  rows, length, _ = hidden.shape
  size = max(1, min(length, chunk_tokens // rows))
  chunks = -(-length // size)
  pad = chunks * size - length
  front, place = _compacted(wanted)
  is_filled = jnp.arange(length) < wanted.sum(axis=1, keepdims=True)

  @jax.checkpoint
  def compute(hidden, targets):
    z = logits(hidden) / temperature
    logsumexp = jax.nn.logsumexp(z, axis=-1)
    chosen = _chosen(z, targets, split_vocab=split_vocab)
    if not entropy:
      return chosen - logsumexp, None
    mean_logit = jnp.sum(jax.nn.softmax(z, axis=-1) * z, axis=-1)
    return chosen - logsumexp, logsumexp - mean_logit

  def skip(hidden, targets):
    zeros = jnp.zeros(targets.shape, jnp.float32)
    return zeros, zeros if entropy else None

  def split(x):
    return cut(_moved(x, front, is_filled, place, wanted))

  def cut(x):
    x = jnp.pad(x, ((0, 0), (0, pad)) + ((0, 0),) * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(rows, chunks, size, *x.shape[2:]), 1, 0)

  def join(x):
    x = jnp.moveaxis(x, 0, 1).reshape(rows, chunks * size)[:, :length]
    return _moved(x, place, wanted, front, is_filled)

  # Around the choice too: what a branch keeps for its backward pass is kept of
  # every chunk, the head that `logits` multiplies with included.
  @jax.checkpoint
  def one_chunk(wanted, hidden, targets):
    return jax.lax.cond(jnp.any(wanted), compute, skip, hidden, targets)

  def one(_, chunk):
    return None, one_chunk(*chunk)

  _, parts = jax.lax.scan(
    one, None, (cut(is_filled), split(hidden), split(targets))
  )
  return TokenLogprobs(*jax.tree.map(join, parts))


def _compacted(
  wanted: Bool[Array, 'R T'],
) -> tuple[Int[Array, 'R T'], Int[Array, 'R T']]:
  """Returns where the k-th wanted place is, and which each of them is.

  Of places that are none the numbers mean nothing. Nothing is sorted, which a
  TPU does slowly: the k-th is looked for among the counts so far.
  """
  counts = jnp.cumsum(wanted, axis=1)
  numbers = 1 + jnp.arange(wanted.shape[1])
  front = jax.vmap(lambda counts: jnp.searchsorted(counts, numbers))(counts)
  return front, counts - 1


@jax.custom_vjp
def _moved(
  x: Shaped[Array, 'R T *rest'],
  sources: Int[Array, 'R T'],
  is_filled: Bool[Array, 'R T'],
  targets: Int[Array, 'R T'],
  is_taken: Bool[Array, 'R T'],
) -> Shaped[Array, 'R T *rest']:
  """Returns x[r, sources[r, t]] where `is_filled`, elsewhere 0.

  `targets` and `is_taken` undo it: its gradient is the same choice backwards,
  where the gradient of any choice of places is a sum over what was taken
  twice: a scatter, which a TPU does by sorting.
  """
  del targets, is_taken
  fit = lambda places: places.reshape(*places.shape, *(1,) * (x.ndim - 2))
  taken = jnp.take_along_axis(x, fit(sources), axis=1, mode='clip')
  return jnp.where(fit(is_filled), taken, jnp.zeros_like(taken))


def _moved_forward(x, sources, is_filled, targets, is_taken):
  y = _moved(x, sources, is_filled, targets, is_taken)
  return y, (sources, is_filled, targets, is_taken)


def _moved_backward(residuals, grad):
  sources, is_filled, targets, is_taken = residuals
  back = _moved(grad, targets, is_taken, sources, is_filled)
  return back, None, None, None, None


_moved.defvjp(_moved_forward, _moved_backward)


def _chosen(
  z: Float[Array, 'R t V'], targets: Int[Array, 'R t'], *, split_vocab: bool
) -> Float[Array, 'R t']:
  """Returns the logits of the targets.

  Of a split vocabulary as a sum of which one term is not 0, which every device
  takes of its own part; to pick them out would gather all logits. On one
  device it would take half as long again.
  """
  if not split_vocab:
    return jnp.take_along_axis(z, targets[..., None], axis=-1)[..., 0]
  is_target = targets[..., None] == jnp.arange(z.shape[-1])
  return jnp.sum(jnp.where(is_target, z, 0.0), axis=-1)

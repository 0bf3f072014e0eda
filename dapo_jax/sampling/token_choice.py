"""The choice of the next token, and the noise it is made with.

The noise of a token is a function of (seed, purpose, draw ordinal, sample
number g, token number t) alone: not of the slot, the batch, the host or the
order of the work. A prompt that is drawn again is another draw, so it gets
new noise.
"""

import enum
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32


class Purpose(enum.IntEnum):
  """What a sample is for; no two share noise."""

  TRAIN = 0
  EVAL = 1
  SERVE = 2


def sample_keys(
  seed: int, purpose: Purpose, ordinal: int, *, samples: int
) -> UInt32[Array, 'G 2']:
  """Returns the threefry key data of the `samples` responses to a draw."""
  return _sample_keys(
    np.uint32(seed), np.uint32(purpose), np.uint32(ordinal), samples
  )


@functools.partial(jax.jit, static_argnames='samples')
def _sample_keys(seed, purpose, ordinal, samples):
  key = jax.random.key(seed, impl='threefry2x32')
  key = jax.random.fold_in(jax.random.fold_in(key, purpose), ordinal)
  keys = jax.vmap(lambda g: jax.random.fold_in(key, g))(jnp.arange(samples))
  return jax.random.key_data(keys)


def choose(
  logits: Float[Array, 'S V'],
  keys: UInt32[Array, 'S 2'],
  *,
  token_number: Int[Array, ' S'],
  temperature: Float[Array, ' S'],
) -> tuple[Int[Array, ' S'], Float[Array, ' S']]:
  """Returns a token a slot and its log-probability in nats.

  Temperature is an array: other values compile nothing. The log-probability
  is that of softmax(logits / temperature). Temperature 0 takes the likeliest
  token; its log-probability is then taken at temperature 1.
  """
  greedy = temperature <= 0
  z = logits / jnp.where(greedy, 1.0, temperature)[:, None]

  def gumbel(key, t):
    key = jax.random.wrap_key_data(key, impl='threefry2x32')
    return jax.random.gumbel(jax.random.fold_in(key, t), z.shape[1:])

  noise = jax.vmap(gumbel)(keys, token_number)
  token = _first_max(z + jnp.where(greedy[:, None], 0.0, noise))
  chosen = jnp.take_along_axis(z, token[:, None], axis=-1)[:, 0]
  return token, chosen - jax.nn.logsumexp(z, axis=-1)


def _first_max(x: Float[Array, 'S V']) -> Int[Array, ' S']:
  """Returns argmax, as two plain reductions, which XLA:CPU vectorises."""
  largest = jnp.max(x, axis=-1, keepdims=True)
  places = jnp.arange(x.shape[-1], dtype=jnp.int32)
  return jnp.min(jnp.where(x == largest, places, x.shape[-1] - 1), axis=-1)

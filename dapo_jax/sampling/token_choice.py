"""The choice of the next token, and the noise it is made with.

The noise of a token is a function of (seed, purpose, draw ordinal, sample
number g, token number t) alone: not of the slot, the batch, the host or the
order of the work. A prompt that is drawn again is another draw, so it gets
new noise.
"""

import enum
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from dapo_jax.sampling import token_filters

# Draws whose keys are made in one go.
_KEYS_AT_ONCE = 64
# Tokens of which one sum is kept: about the root of a vocabulary.
_BLOCK_TOKENS = 256


class Purpose(enum.IntEnum):
  """What a sample is for; no two share noise."""

  TRAIN = 0
  EVAL = 1
  SERVE = 2


class Choice(NamedTuple):
  """How a token is drawn: numbers, or an array of one a slot.

  A filter that is not given is off.
  """

  temperature: float | Float[Array, ' S']  # 0 = greedy
  top_k: int | Int[Array, ' S'] = 0  # 0 or -1 = off
  top_p: float | Float[Array, ' S'] = 1.0  # 1 = off
  min_p: float | Float[Array, ' S'] = 0.0  # 0 = off


def as_arrays(choice: Choice) -> Choice:
  """Returns the numbers in the types that the slots have."""
  types = Choice(np.float32, np.int32, np.float32, np.float32)
  return Choice(*(t(x) for t, x in zip(types, choice, strict=True)))


def sample_keys(
  seed: int, purpose: Purpose, ordinal: int, *, samples: int
) -> UInt32[Array, 'G 2']:
  """Returns the threefry key data of the `samples` responses to a draw."""
  return _sample_keys(
    np.uint32(seed), np.uint32(purpose), np.uint32(ordinal), samples
  )


def request_keys(
  seed: int, purpose: Purpose, ordinals: Sequence[int], *, samples: int
) -> UInt32[np.ndarray, 'P G 2']:
  """Returns `sample_keys` of many draws, on the host, in one go."""
  # Pieces of one size and a power of two of samples: what a call asks for
  # compiles next to nothing.
  width = 1 << max(0, samples - 1).bit_length()
  found = np.zeros((len(ordinals), samples, 2), np.uint32)
  for begin in range(0, len(ordinals), _KEYS_AT_ONCE):
    piece = ordinals[begin : begin + _KEYS_AT_ONCE]
    padded = np.zeros(_KEYS_AT_ONCE, np.uint32)
    padded[: len(piece)] = piece
    keys = _request_keys(np.uint32(seed), np.uint32(purpose), padded, width)
    found[begin : begin + len(piece)] = np.asarray(keys)[: len(piece), :samples]
  return found


@functools.partial(jax.jit, static_argnames='samples')
def _request_keys(seed, purpose, ordinals, samples):
  one = lambda ordinal: _sample_keys(seed, purpose, ordinal, samples)
  return jax.vmap(one)(ordinals)


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
  choice: Choice,
) -> tuple[Int[Array, ' S'], Float[Array, ' S']]:
  """Returns a token a slot and its log-probability in nats.

  `choice` holds arrays of one number a slot: other values compile nothing.
  The temperature divides the logits, then `token_filters` says which tokens
  may be drawn.

  The log-probability is that of softmax(logits / temperature) over all
  tokens, filtered or not: it is what the trainer recomputes. Temperature 0
  takes the likeliest token, whatever the filters; its log-probability is then
  taken at temperature 1.
  """
  greedy = choice.temperature <= 0
  temperature = jnp.where(greedy, 1.0, choice.temperature)
  z = logits / temperature[:, None]
  may_be_drawn = token_filters.may_be_drawn(
    logits,
    temperature=temperature,
    top_k=jnp.where(greedy, 0, choice.top_k),
    top_p=jnp.where(greedy, 1.0, choice.top_p),
    min_p=jnp.where(greedy, 0.0, choice.min_p),
  )
  largest = jnp.max(z, axis=-1, keepdims=True)
  weights = jnp.exp(z - largest)
  drawn = _draw(
    jnp.where(may_be_drawn, weights, 0.0), _uniforms(keys, token_number)
  )
  token = jnp.where(greedy, _first_max(z), drawn)
  chosen = jnp.take_along_axis(z, token[:, None], axis=-1)[:, 0]
  return token, chosen - largest[:, 0] - jnp.log(jnp.sum(weights, axis=-1))


def _uniforms(
  keys: UInt32[Array, 'S 2'], token_number: Int[Array, ' S']
) -> Float[Array, 'S 2']:
  """Returns the noise of each slot's token: two numbers in [0, 1)."""

  def uniforms(key, t):
    key = jax.random.wrap_key_data(key, impl='threefry2x32')
    return jax.random.uniform(jax.random.fold_in(key, t), (2,))

  return jax.vmap(uniforms)(keys, token_number)


def _draw(
  weights: Float[Array, 'S V'], uniforms: Float[Array, 'S 2']
) -> Int[Array, ' S']:
  """Returns a token a slot, drawn in proportion to the weights.

  A block of tokens is drawn by one number, then a token of it by the other:
  the sums over blocks are all that a pass over the vocabulary leaves, where
  noise for every token would take most of the time of a draw. Of two numbers
  the second also finds tokens that are rarer than float32 divides 1.
  """
  slots, count = weights.shape
  padded = jnp.pad(weights, ((0, 0), (0, -count % _BLOCK_TOKENS)))
  blocks = padded.reshape(slots, -1, _BLOCK_TOKENS)
  block = _place(jnp.sum(blocks, axis=-1), uniforms[:, 0])
  # A masked sum, not a gather: the vocabulary may lie over several devices.
  is_chosen = jnp.arange(blocks.shape[1]) == block[:, None]
  inside = jnp.sum(jnp.where(is_chosen[:, :, None], blocks, 0.0), axis=1)
  return block * _BLOCK_TOKENS + _place(inside, uniforms[:, 1])


def _place(
  weights: Float[Array, 'S N'], uniform: Float[Array, ' S']
) -> Int[Array, ' S']:
  """Returns the first place whose cumulated weight is above its share.

  So a place without weight is never found; where rounding leaves none, the
  heaviest is. Of a row with NaN it is 0.
  """
  ends = jnp.cumsum(weights, axis=-1)
  share = uniform * ends[:, -1]
  place = jnp.sum(ends <= share[:, None], axis=-1, dtype=jnp.int32)
  return jnp.where(place < weights.shape[-1], place, _first_max(weights))


def _first_max(x: Float[Array, 'S V']) -> Int[Array, ' S']:
  """Returns argmax, as two plain reductions, which XLA:CPU vectorises.

  Of a row with NaN it is 0, which is a token whatever the padding.
  """
  largest = jnp.max(x, axis=-1, keepdims=True)
  count = x.shape[-1]
  places = jnp.arange(count, dtype=jnp.int32)
  first = jnp.min(jnp.where(x == largest, places, count), axis=-1)
  return jnp.where(first < count, first, 0)

"""Which tokens may be drawn: top-k, then top-p, then min-p.

All three keep what is likely enough, so together they are one threshold on
p / p_max, the probability over that of the likeliest token. It is found by
bisection over the 2^30 float32 numbers from 0 to 1: 30 sums over the
vocabulary, of which none moves a number. A sort would give the same threshold,
at 30 times the cost on a CPU, and on a TPU needs some 150 passes over a
vocabulary of 150,000 where this needs 30.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_ONE_BITS = 0x3F800000  # of 1.0; positive floats are ordered as their bits


def lowest_logit(
  logits: Float[Array, 'S V'],
  *,
  temperature: Float[Array, ' S'],
  top_k: Int[Array, ' S'],
  top_p: Float[Array, ' S'],
  min_p: Float[Array, ' S'],
) -> Float[Array, ' S']:
  """Returns the lowest logit that may be drawn in each slot.

  With p = softmax(logits / temperature), a token stays iff it is among

    the top_k likeliest; of those, renormalised, among                top-k
    the fewest likeliest that have top_p of the mass; and             top-p
    p >= min_p * max p                                                min-p

  Tokens as likely as the last that stays, in float32, stay too, so the order
  of the ids decides nothing and a top-k set may be larger than k. The
  likeliest always stays. A filter is off at top_k <= 0, top_p >= 1 and
  min_p <= 0. Where all are off in all slots the result is -inf and costs
  nothing; no value compiles anything.

  Args:
    logits: of the next token.
    temperature: above 0.
    top_k: how many tokens stay.
    top_p: share of the mass that stays.
    min_p: least probability over that of the likeliest.
  """
  cut = lambda: _lowest_logit(logits, temperature, top_k, top_p, min_p)
  any_on = jnp.any((top_k > 0) | (top_p < 1) | (min_p > 0))
  return jax.lax.cond(any_on, cut, lambda: jnp.full_like(top_p, -jnp.inf))


def _lowest_logit(logits, temperature, top_k, top_p, min_p):
  z = logits / temperature[:, None]
  # p / p_max: the likeliest is at exactly 1.
  ratio = jnp.exp(z - jnp.max(z, axis=-1, keepdims=True))
  floor = _floor(
    top_k > 0,
    lambda at: jnp.sum(ratio >= at[:, None], axis=-1) >= top_k,
  )
  kept = jnp.where(ratio >= floor[:, None], ratio, 0.0)
  mass = jnp.sum(kept, axis=-1)
  floor_p = _floor(
    top_p < 1,
    lambda at: (
      jnp.sum(jnp.where(kept >= at[:, None], kept, 0.0), axis=-1)
      >= top_p * mass
    ),
  )
  floor = jnp.minimum(jnp.maximum(jnp.maximum(floor, floor_p), min_p), 1.0)
  # As a logit, since these are compared again in another program's fusion:
  # a quotient may be rounded otherwise there, a logit may not.
  stays = ratio >= floor[:, None]
  return jnp.min(jnp.where(stays, logits, jnp.inf), axis=-1)


def _floor(
  on: Bool[Array, ' S'],
  enough: Callable[[Float[Array, ' S']], Bool[Array, ' S']],
) -> Float[Array, ' S']:
  """Returns the highest floor up to 1 that leaves enough, 0 where not `on`.

  `enough` is true at 0, and wherever it is true at something higher: sums of
  fewer addends in the same order are never larger, rounding included.
  """

  def narrow(i, bits):
    higher = bits | (1 << (29 - i))
    at = jax.lax.bitcast_convert_type(higher, jnp.float32)
    return jnp.where((higher <= _ONE_BITS) & enough(at), higher, bits)

  def search():
    zeros = jnp.zeros(on.shape, jnp.int32)
    bits = jax.lax.fori_loop(0, 30, narrow, zeros)
    found = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(on, found, 0.0)

  return jax.lax.cond(
    jnp.any(on), search, lambda: jnp.zeros(on.shape, jnp.float32)
  )

"""Which tokens may be drawn: top-k, then top-p, then min-p.

All three keep what is likely enough, so together they are one threshold on a
token's depth, how far its logit lies below the highest. It is found by
bisection over the 2^31 float32 numbers that a depth can be: 31 sums over the
vocabulary, which move no number. A sort would give the same threshold, but
moves every one of them, on a TPU many times.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_INF_BITS = 0x7F800000  # of infinity; positive floats are ordered as their bits


def may_be_drawn(
  logits: Float[Array, 'S V'],
  *,
  temperature: Float[Array, ' S'],
  top_k: Int[Array, ' S'],
  top_p: Float[Array, ' S'],
  min_p: Float[Array, ' S'],
) -> Bool[Array, 'S V']:
  """Returns which tokens may be drawn in each slot.

  With p = softmax(logits / temperature), a token stays iff it is among

    the top_k likeliest; of those, renormalised, among                top-k
    the fewest likeliest that have top_p of the mass; and             top-p
    p >= min_p * max p                                                min-p

  Tokens as likely as the last that stays, in float32, stay too, so the order
  of the ids decides nothing and a top-k set may be larger than k. The
  likeliest always stays. A filter is off at top_k <= 0, top_p >= 1 and
  min_p <= 0; where all are off in all slots, nothing is computed. No value
  compiles anything.

  Args:
    logits: of the next token.
    temperature: above 0.
    top_k: how many tokens stay.
    top_p: share of the mass that stays.
    min_p: least probability over that of the likeliest.
  """
  return jax.lax.cond(
    jnp.any((top_k > 0) | (top_p < 1) | (min_p > 0)),
    lambda: _filtered(logits, temperature, top_k, top_p, min_p),
    lambda: jnp.ones(logits.shape, jnp.bool_),
  )


def _filtered(logits, temperature, top_k, top_p, min_p):
  # Compared by depth, not by probability: a quotient or an exponential may be
  # rounded otherwise where XLA computes it anew, a difference may not. So the
  # likeliest, at 0, is within every threshold.
  depth = jnp.max(logits, axis=-1, keepdims=True) - logits
  ratio = jnp.exp(-depth / temperature[:, None])  # p / p_max
  within = lambda most: depth <= most[:, None]
  mass_within = lambda most: jnp.sum(
    jnp.where(within(most), ratio, 0.0), axis=-1
  )
  most_k = _least_depth(
    top_k > 0, lambda most: jnp.sum(within(most), axis=-1) >= top_k
  )
  mass = top_p * mass_within(most_k)
  most_p = _least_depth(top_p < 1, lambda most: mass_within(most) >= mass)
  least_ratio = jnp.clip(min_p, 0.0, 1.0)
  most_min_p = -temperature * jnp.log(least_ratio)
  return within(jnp.minimum(jnp.minimum(most_k, most_p), most_min_p))


def _least_depth(
  on: Bool[Array, ' S'],
  enough: Callable[[Float[Array, ' S']], Bool[Array, ' S']],
) -> Float[Array, ' S']:
  """Returns the least depth within which there is enough, inf where not `on`.

  `enough` is true beyond wherever it is true: sums of more addends in the
  same order are never smaller, rounding included. It need not be at infinity.
  """

  def widen(i, bits):
    # Of all depths, those that were found too small are fewer than `bits`.
    wider = bits + (1 << (30 - i))
    last = jax.lax.bitcast_convert_type(wider - 1, jnp.float32)
    too_small = (wider <= _INF_BITS) & ~enough(last)
    return jnp.where(too_small, wider, bits)

  def search():
    zeros = jnp.zeros(on.shape, jnp.int32)
    bits = jax.lax.fori_loop(0, 31, widen, zeros)
    found = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(on, found, jnp.inf)

  return jax.lax.cond(jnp.any(on), search, lambda: jnp.full(on.shape, jnp.inf))

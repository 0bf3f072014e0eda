"""Goes through micro-batches of packed rows, on the device."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from dapo_jax.training import packing, row_plan

Carry = TypeVar('Carry')
# Maps arrays [M, R, T] to those of a micro-batch, [R, W].
Cut = Callable[[Any], Any]


def fold(
  body: Callable[[Carry, Int[Array, ''], Cut], Carry],
  carry: Carry,
  rows: packing.Rows,
  micro_batches: int | Int[Array, ''],
) -> Carry:
  """Returns what is left of `carry` after all micro-batches.

  Each is cut to its width, the narrowest of `row_plan.widths` that holds all
  that stands in it; a width is a loop of its own, whose trip count is a number.

  Args:
    body: maps (carry, number of the micro-batch, cut) to the next carry.
    carry: the first one.
    rows: decide on the widths. Micro-batches stand in them by falling width,
      as a plan has them; one behind a narrower one makes that as wide.
    micro_batches: those from this number on are not computed.
  """
  length = rows.segment_ids.shape[-1]
  place = jnp.arange(1, length + 1)
  used = jnp.max(jnp.where(rows.segment_ids > 0, place, 0), axis=(1, 2))
  used = jax.lax.cummax(used, reverse=True)
  begin = jnp.zeros((), jnp.int32)
  sizes = row_plan.widths(length)
  for width, narrower in zip(sizes, (*sizes[1:], -1), strict=True):

    def one(i, carry, width=width):
      cut = lambda tree: jax.tree.map(lambda field: field[i, :, :width], tree)
      return body(carry, i, cut)

    end = jnp.sum(used > narrower, dtype=jnp.int32)
    end = jnp.minimum(end, micro_batches)
    carry = jax.lax.fori_loop(begin, end, one, carry)
    begin = end
  return carry


def put(found: Array, i: Int[Array, ''], part: Array) -> Array:
  """Returns `found`, [M, R, T], with a micro-batch's part [R, W] in it."""
  return jax.lax.dynamic_update_slice(found, part[None], (i, 0, 0))

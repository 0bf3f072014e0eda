"""The least time that a decode step can take on this machine."""

import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from dapo_jax.model import decoder
from dapo_jax.model import spec as spec_lib

_COPY_BYTES = 2**28
_TRIES = 7


def measure(
  model: decoder.Abstract, params: decoder.Params, *, batch: int
) -> dict[str, float]:
  """Returns what a step of N weights and B tokens takes, in CPU-seconds.

  `weights_s`: the bytes of all weights over the rate at which a copy reads and
  writes; an input embedding that is not the head too is looked up, not read.
  `products_s`: the 2 N B operations of the products with the weights, at the
  rate of products of the same shapes over the same few weights, which stay in
  the processor's cache so far as they fit. Both are bounds: everything else is
  taken to cost nothing. `products_apart_s`: the products over weights of their
  own, one after another, as a step has them: XLA's products alone.
  """
  read_bytes = sum(x.nbytes for x in jax.tree.leaves(params))
  if not model.spec.tied_head:
    read_bytes -= params['embedding'].nbytes
  products = [*_products(model.spec)]
  return {
    'weights_s': read_bytes * _copy_s() / (2 * _COPY_BYTES),
    'products_s': sum(_products_s(batch, *p) for p in products),
    'products_apart_s': sum(
      _products_s(batch, *p, apart=True) for p in products
    ),
  }


def _products(spec: spec_lib.Spec) -> Iterator[tuple[int, int, int]]:
  """Yields how many products of a step have so many rows and columns."""
  q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
  yield spec.layers, spec.embed_dim, q
  yield 2 * spec.layers, spec.embed_dim, kv
  yield spec.layers, q, spec.embed_dim
  yield 2 * spec.layers, spec.embed_dim, spec.ffw_dim
  yield spec.layers, spec.ffw_dim, spec.embed_dim
  yield 1, spec.embed_dim, spec.vocab_rows


def _products_s(
  batch: int, count: int, rows: int, columns: int, *, apart: bool = False
) -> float:
  """Returns the time of so many products, the weights of each its own or not.

  They are one program, which is called once; it can't know which are the same.
  """
  x, w = jnp.ones((batch, rows)), jnp.ones((rows, columns))
  weights = [w + i for i in range(count)] if apart else [w] * count
  program = jax.jit(lambda x, weights: [x @ w for w in weights])
  return _least_s(lambda: program(x, weights))


def _copy_s() -> float:
  # In place: a new array would be made of pages that are cleared first.
  program = jax.jit(lambda x: x + 1.0, donate_argnums=0)
  blocks = [jnp.zeros(_COPY_BYTES // 4, jnp.float32)]

  def copy():
    blocks.append(program(blocks.pop()))
    return blocks[0]

  return _least_s(copy)


def _least_s(call: Callable[[], object]) -> float:
  jax.block_until_ready(call())
  found = []
  for _ in range(_TRIES):
    begin_s = time.process_time()
    jax.block_until_ready(call())
    found.append(time.process_time() - begin_s)
  return min(found)

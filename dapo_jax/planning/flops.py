"""Floating-point operations of a program's products, from its jaxpr.

The compiler's own count takes every loop as one trip and a kernel as nothing.
A jaxpr still says how long loops over layers are, and needs no compiling.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import partial_eval

from dapo_jax.planning import counts


class Kernel(NamedTuple):
  """A Pallas kernel, called in one place of the program."""

  name: str
  calls: counts.Counts  # of all devices together
  shapes: tuple[tuple[int, ...], ...]  # of its operands, on one device
  flops: float  # of one call; 0 where they are not known from its operands


class Flops(NamedTuple):
  """Of all devices together."""

  matmul: counts.Counts  # outside kernels
  attention: counts.Counts  # in kernels of causal attention over rows
  kernels: tuple[Kernel, ...]  # all of them


def count(jaxpr: Any, *, window_tokens: int | None = None) -> Flops:
  """Returns what a program computes.

  A product of [m, k] and [k, n] is 2mkn. What stands in `shard_map` counts
  once for each device; what stands outside is taken to be split without
  repetition. Of the branches of a condition the most expensive one counts. A
  dynamic loop inside another counts once for each trip of that one. What no
  output needs does not count: the compiler leaves it out.

  Attention in kernels is that of splash, see `causal_attention_flops`; what
  paged attention costs depends on how far slots have come, see
  `decode_attention_flops`.

  Args:
    jaxpr: of a traced program, `jitted.trace(...).jaxpr`.
    window_tokens: how many tokens one attends to; None = all before it.
  """
  jaxpr = getattr(jaxpr, 'jaxpr', jaxpr)
  items, end = _items(jaxpr, 0, 1, window_tokens)
  loops = end - 1
  by_section = lambda chosen: counts.add(
    (_at(i.section, i.times * i.flops) for i in chosen), loops=loops
  )
  kernels = [i for i in items if i.name is not None]
  return Flops(
    matmul=by_section(i for i in items if i.name is None),
    attention=by_section(kernels),
    kernels=tuple(
      Kernel(
        i.name,
        counts.add([_at(i.section, i.times)], loops=loops),
        i.shapes,
        i.flops,
      )
      for i in kernels
    ),
  )


def causal_attention_flops(
  tokens: int,
  heads: int,
  head_dim: int,
  *,
  products: int = 2,
  window_tokens: int | None = None,
) -> float:
  """Returns what causal attention over a row of T tokens costs.

  2 N H T^2/2 for each product, or 2 N H (T w - w^2/2) where one sees w tokens.
  What the mask leaves out costs nothing: kernels skip its blocks, to a block.

  Args:
    tokens: T.
    heads: N, query heads.
    head_dim: H.
    products: 2 forward (scores, output), 5 backward in one pass, 7 in two.
    window_tokens: w.
  """
  seen = min(tokens, window_tokens or tokens)
  pairs = tokens * seen - seen**2 / 2
  return 2.0 * products * heads * head_dim * pairs


def decode_attention_flops(
  context_tokens: float, heads: int, head_dim: int
) -> float:
  """Returns what one token's attention to so many costs: 4 N H T.

  Of several slots, with the sum of their contexts.
  """
  return 4.0 * heads * head_dim * context_tokens


class _Item(NamedTuple):
  """Some products, or a kernel."""

  section: int  # 0, or 1 + the number of the dynamic loop it stands in
  times: float
  flops: float
  name: str | None = None  # of a kernel
  shapes: tuple[tuple[int, ...], ...] = ()


# Items, and the number of the next dynamic loop's section.
_Found = tuple[list[_Item], int]


def _items(jaxpr: Any, section: int, free: int, window: int | None) -> _Found:
  """Returns the items of a jaxpr that stands in a section."""
  # At every level: it does not look into shard_map.
  needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
  found: list[_Item] = []
  for eqn in needed.eqns:
    name = eqn.primitive.name
    if name == 'dot_general':
      more = [_Item(section, 1.0, _product_flops(eqn))]
    elif name == 'pallas_call':
      more = [_kernel(eqn, section, window)]
    elif name == 'while' and section == 0:
      body = eqn.params['body_jaxpr'].jaxpr
      more, free = _items(body, free, free + 1, window)
    elif name == 'cond':
      more, free = _branches(eqn, section, free, window)
    else:
      more = []
      for body in _bodies(eqn.params):
        inner, free = _items(body, section, free, window)
        more += _repeated(inner, _times(eqn))
    found += more
  return found, free


def _branches(eqn: Any, section: int, free: int, window: int | None) -> _Found:
  """Returns the items of the most expensive branch; all of them have loops."""
  cost = lambda items: sum(i.times * i.flops for i in items)
  best: list[_Item] = []
  for branch in eqn.params['branches']:
    items, free = _items(branch.jaxpr, section, free, window)
    best = max(best, items, key=cost)
  return best, free


def _repeated(items: Sequence[_Item], times: int) -> list[_Item]:
  return [i._replace(times=i.times * times) for i in items]


def _at(section: int, number: float) -> counts.Counts:
  return (0.0,) * section + (number,)


def _bodies(params: dict[str, Any]) -> Iterator[Any]:
  """Returns the jaxprs among an equation's parameters."""
  for value in params.values():
    for one in value if isinstance(value, tuple | list) else (value,):
      if isinstance(one, core.ClosedJaxpr):
        yield one.jaxpr
      elif isinstance(one, core.Jaxpr):
        yield one


def _times(eqn: Any) -> int:
  """Returns how often the jaxprs of an equation run, on all devices."""
  if eqn.primitive.name == 'scan':
    return eqn.params['length']
  if eqn.primitive.name == 'shard_map':
    sizes = dict(eqn.params['mesh'].shape)
    return math.prod(sizes[axis] for axis in eqn.params['newly_manual_axes'])
  return 1


def _product_flops(eqn: Any) -> float:
  (contracted, _), _ = eqn.params['dimension_numbers']
  left = eqn.invars[0].aval.shape
  depth = math.prod(left[axis] for axis in contracted)
  return 2.0 * depth * math.prod(eqn.outvars[0].aval.shape)


def _kernel(eqn: Any, section: int, window: int | None) -> _Item:
  """Returns a kernel, with what it computes if it is one of splash.

  Their names say which pass they are. Of the backward pass, dkv makes four
  products and dq three, or dkv five if it also returns dq: a part for each
  block of keys, with one axis more than queries have.
  """
  name = str(eqn.params.get('name') or eqn.params['name_and_src_info'].name)
  shapes = tuple(v.aval.shape for v in eqn.invars)
  item = _Item(section, 1.0, 0.0, name, shapes)
  if not name.startswith('splash_'):
    return item
  queries = next(
    v.aval.shape
    for v in eqn.invars
    if jnp.issubdtype(v.aval.dtype, jnp.floating)
  )
  if '_dkv' in name:
    fused = any(len(v.aval.shape) > len(queries) for v in eqn.outvars)
    products = 5 if fused else 4
  else:
    products = 3 if '_dq' in name else 2
  *rows, heads, tokens, head_dim = queries
  one = causal_attention_flops(
    tokens, heads, head_dim, products=products, window_tokens=window
  )
  return item._replace(flops=math.prod(rows) * one)

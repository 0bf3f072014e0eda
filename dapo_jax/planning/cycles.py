"""How long the compiler thinks that a program's instructions take.

Its cost model says nothing of collectives, nor of Mosaic kernels, whose calls
are counted instead.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from dapo_jax.planning import counts, hlo


class Cycles(NamedTuple):
  """Of one device, whose clock is `chips.Chip.clock_hz`."""

  matmul: counts.Counts  # instructions with a product in them
  other: counts.Counts
  kernels: Mapping[str, counts.Counts]  # calls, by the kernel's name


def count(module: hlo.Module) -> Cycles:
  """Returns the estimated cycles of what runs, one after the other.

  A fusion counts as a whole. What the compiler moves to another core (a
  sparse core) runs beside the rest and does not count.
  """
  inside = _not_alone(module)
  matmul, other = [], []
  kernels: dict[str, list[counts.Counts]] = {}
  for name, one, often in hlo.running(module):
    if name in inside:
      continue
    if one.op == 'custom-call' and _KERNEL in one.rest:
      kernels.setdefault(_COPY.sub('', one.name), []).append(often)
    own = hlo.cycles(one)
    if own is not None:
      kind = matmul if _has_product(module.computations, one) else other
      kind.append(counts.scaled(often, own))
  add = lambda several: counts.add(several, loops=module.loops)
  return Cycles(
    add(matmul), add(other), {name: add(each) for name, each in kernels.items()}
  )


_KERNEL = 'custom_call_target="tpu_custom_call"'
# Calls of one name are told apart so.
_COPY = re.compile(r'(?:\.\d+|\.clone)+$')
_PRODUCTS = ('convolution', 'dot')


def _not_alone(module: hlo.Module) -> set[str]:
  """Returns computations that are parts of a fusion, or of another core."""
  found: set[str] = set()

  def visit(name: str | None):
    if name is None or name in found or name not in module.computations:
      return
    found.add(name)
    for one in module.computations[name]:
      visit(hlo.called(one))

  for _, one, _ in hlo.running(module):
    if one.op == 'fusion' or 'async_execution_thread=' in one.rest:
      visit(hlo.called(one))
  return found


def _has_product(computations: hlo.Computations, one: hlo.Instruction) -> bool:
  if one.op in _PRODUCTS:
    return True
  return one.op == 'fusion' and any(
    _has_product(computations, part)
    for part in computations.get(hlo.called(one), ())
  )

"""Digests of arrays: what was saved is compared with what comes back.

Taken where the arrays lie, and the same however they are split over devices,
so that a state may come back on another mesh. Storage checks its own indices,
but not the bytes of the arrays.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped, UInt32

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
# Odd constants of multiplicative hashing; any would do.
_SPREAD = (np.uint32(0x9E3779B1), np.uint32(0x85EBCA77))


class Leaf(NamedTuple):
  """An array of a saved state."""

  kind: str  # type and shape, as in float32[4,3]
  digest: str  # 8 hexadecimal digits


def kinds(tree: Any) -> dict[str, str]:
  """Returns type and shape of each leaf, arrays or not, by its path."""
  return {path: _kind(leaf) for path, leaf in _flat(tree).items()}


def leaves(tree: Any) -> dict[str, Leaf]:
  """Returns kind and digest of each array by its path, 'params/block/q'."""
  flat = _flat(tree)
  values = jax.device_get(_digests(flat))
  return {
    path: Leaf(_kind(leaf), f'{int(values[path]):08x}')
    for path, leaf in flat.items()
  }


def of_all(tree: Any) -> str:
  """Returns one digest of all arrays and their paths, 16 digits."""
  text = json.dumps(leaves(tree), sort_keys=True)
  return hashlib.sha256(text.encode('ascii')).hexdigest()[:16]


def from_json(saved: Mapping[str, Sequence[str]]) -> dict[str, Leaf]:
  """Returns what `leaves` gave and JSON kept."""
  return {path: Leaf(*leaf) for path, leaf in saved.items()}


def differences(
  saved: Mapping[str, Leaf], wanted: Mapping[str, str]
) -> list[str]:
  """Returns a text for each path whose kind differs, or that one side lacks.

  Args:
    saved: what was saved.
    wanted: the kinds of what is to come back.
  """
  found = {path: leaf.kind for path, leaf in saved.items()}
  return [
    f'{path}: saved {found.get(path, "nothing")}, '
    f'wanted {wanted.get(path, "nothing")}'
    for path in sorted(found.keys() | wanted.keys())
    if found.get(path) != wanted.get(path)
  ]


def digest(x: Shaped[Array, '...']) -> UInt32[Array, '']:
  """Returns sum_i w_i m_i modulo 2**32 over the words of an array.

  A word w_i is the bits of a number, m_i an odd number that depends on its
  place. Addition of integers is exact in any order, so the split over devices
  does not matter; m_i is odd, so every change of a single word shows.
  """
  if x.dtype == jnp.bool_:
    x = x.astype(jnp.uint8)
  words = jax.lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize])
  place = jnp.zeros(x.shape, jnp.uint32)
  for axis in range(x.ndim):
    stride = np.uint32(math.prod(x.shape[axis + 1 :]) % 2**32)
    place += jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis) * stride
  place *= _SPREAD[0]
  place = (place ^ (place >> 15)) * _SPREAD[1]
  multiplier = (place ^ (place >> 13)) | np.uint32(1)
  return jnp.sum(words.astype(jnp.uint32) * multiplier, dtype=jnp.uint32)


_digests = jax.jit(lambda flat: jax.tree.map(digest, flat))


def _flat(tree: Any) -> dict[str, Any]:
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _kind(leaf: Any) -> str:
  return f'{leaf.dtype}[{",".join(map(str, leaf.shape))}]'

"""What devices send each other in a compiled program."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dapo_jax.planning import counts, hlo


class Collective(NamedTuple):
  """All collectives of a kind along the same axes of the mesh."""

  kind: str  # all-gather, all-reduce, reduce-scatter, ...
  axes: tuple[str, ...]  # along which a device exchanges
  over_dcn: bool  # from slice to slice, through the hosts' network
  bytes_sent: counts.Counts  # by one device
  calls: counts.Counts


def find(
  module: hlo.Module, mesh_shape: Mapping[str, int]
) -> tuple[Collective, ...]:
  """Returns the collectives that run, those that send most first.

  Of n bytes in a ring of g devices, one sends n (g-1)/g for an all-gather (n
  gathered), a reduce-scatter (n before it) or an all-to-all, and twice that for
  an all-reduce. A permutation sends n. Most bytes: trips of dynamic loops are
  taken as one.

  Args:
    module: the program.
    mesh_shape: sizes of all axes of the mesh that it was compiled for, by name,
      in order: a program numbers devices as the mesh does. With several slices
      the first axis goes from one to another; a program is that of one slice.
  """
  slices = math.prod(mesh_shape.values()) // module.partitions
  first, *_ = mesh_shape
  of_slice = {**mesh_shape, first: mesh_shape[first] // slices}
  axes: dict[str, tuple[tuple[str, ...], int]] = {}
  found: dict[tuple, tuple[list, list]] = {}

  def put(key, size: float, often: counts.Counts):
    bytes_sent, calls = found.setdefault(key, ([], []))
    bytes_sent.append(counts.scaled(often, size))
    calls.append(often)

  for name, one, often in hlo.running(module):
    kind = one.op.removesuffix('-start')
    if one.op == 'send' and _DCN in one.rest:
      kind = _transfer(one.rest)
      sent = _sent(kind, _operand_bytes(kind, one, slices), slices)
      put((kind, (first,), True), sent, often)
    elif kind in _KINDS:
      groups = _groups_text(one.rest)
      if groups not in axes:
        axes[groups] = _axes(groups, of_slice)
      along, size = axes[groups]
      # So the compiler writes a reduce-scatter that it fused.
      if kind == 'all-reduce' and name.startswith('all-reduce-scatter'):
        kind = 'reduce-scatter'
        sent = _sent(kind, _full_bytes('all-reduce', one, size), size)
      else:
        sent = _sent(kind, _full_bytes(kind, one, size), size)
      if along:
        put((kind, along, False), sent, often)
  add = lambda several: counts.add(several, loops=module.loops)
  made = [
    Collective(*key, bytes_sent=add(sent), calls=add(calls))
    for key, (sent, calls) in found.items()
  ]
  return tuple(sorted(made, key=lambda one: -sum(one.bytes_sent)))


_KINDS = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'ragged-all-to-all',
  'collective-permute',
  'collective-broadcast',
)
_DCN = '_xla_host_transfer_handler_name="xla_megascale_runtime"'
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_ARRAY = re.compile(r'\b([a-z]+\d*\w*)\[([\d,]*)\]')
_BITS = re.compile(r'[a-z]+(\d+)')
_GROUPS = re.compile(
  r'(?:replica_groups|source_target_pairs)='
  r'(mesh\[[^\]]*\](?:, device_ids=\(\[[\d,]*\](?:T\([\d,]*\))?\))? ?\{[^}]*\}'
  r'|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?'
  r'|\{(?:\{[\d,]*\},?)*\})'
)
_MESH = re.compile(
  r'mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]*)\](?:T\(([\d,]*)\))?\))? ?'
  r'\{([^}]*)\}'
)
_IOTA = re.compile(r'\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?')
_MESH_AXIS = re.compile(r"'([^']+)'(?:=(\d+))?")


def nbytes(shape: str) -> float:
  """Returns the bytes of a result's shape, of all of a tuple's parts."""
  return sum(_array_bytes(*array) for array in _ARRAY.findall(shape))


def groups(text: str, devices: int) -> np.ndarray:
  """Returns groups of devices, one a row, from any of the ways to write them.

  They are `{{0,1},{2,3}}`, `[2,2]<=[2,2]T(1,0)` and `mesh['a'=2,'b'=2] {'b'}`.
  No group at all means one of all devices.
  """
  if match := _MESH.match(text):
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(match[1])}
    ids = np.arange(devices)
    if match[2]:
      ids = _transposed(match[2], match[3])
    chosen = [name for name, _ in _MESH_AXIS.findall(match[4])]
    names = list(sizes)
    order = [names.index(n) for n in names if n not in chosen]
    order += [names.index(n) for n in chosen]
    grid = ids.reshape(tuple(sizes.values())).transpose(order)
    return grid.reshape(-1, math.prod(sizes[n] for n in chosen))
  if match := _IOTA.match(text):
    return _transposed(match[2], match[3]).reshape(_numbers(match[1]))
  rows = [_numbers(row) for row in re.findall(r'\{([\d,]+)\}', text)]
  return np.array(rows) if rows else np.arange(devices)[None]


def _groups_text(rest: str) -> str:
  match = _GROUPS.search(rest)
  return match[1] if match else '{}'


def _axes(
  text: str, mesh_shape: Mapping[str, int]
) -> tuple[tuple[str, ...], int]:
  """Returns the axes along which groups lie, and the size of a group."""
  sizes = tuple(mesh_shape.values())
  rows = groups(text, math.prod(sizes))
  places = np.stack(np.unravel_index(rows, sizes))
  varies = (places != places[:, :, :1]).any(axis=(1, 2))
  along = tuple(n for n, v in zip(mesh_shape, varies, strict=True) if v)
  return along, rows.shape[1]


def _sent(kind: str, size: float, group: int) -> float:
  """Returns what a device sends of so many bytes, see `find`."""
  if kind in ('collective-permute', 'collective-broadcast'):
    return size
  return size * (2 if kind == 'all-reduce' else 1) * (group - 1) / group


def _full_bytes(kind: str, one: hlo.Instruction, group: int) -> float:
  """Returns the bytes of the larger side of a collective.

  What a started one returns has its operands before its results.
  """
  size = nbytes(one.shape)
  started = one.op.endswith('-start')
  if kind == 'all-gather' and started:
    return size * group / (group + 1)
  if kind == 'collective-permute' and started:
    # Behind them come two numbers of the hardware's.
    return (size - 4 * one.shape.count('u32[]')) / 2
  return size * group if kind == 'reduce-scatter' else size


def _transfer(rest: str) -> str:
  """Returns the kind of what hosts exchange for their devices."""
  match = _TRANSFER.search(rest)
  name = match[1].lower().replace('_', '-') if match else ''
  return name if name in _KINDS else 'collective-permute'


def _operand_bytes(kind: str, one: hlo.Instruction, group: int) -> float:
  """Returns the bytes of the larger side, given what is sent to the host."""
  # Beside it stand a number and a token.
  operand = next(_ARRAY.finditer(one.shape))
  size = _array_bytes(*operand.groups())
  return size * group if kind == 'all-gather' else size


def _array_bytes(dtype: str, dims: str) -> float:
  if dtype == 'token':
    return 0.0
  match = _BITS.match(dtype)
  bits = int(match[1]) if match else 8  # a pred
  return math.prod(_numbers(dims)) * bits / 8


def _transposed(dims: str, order: str | None) -> np.ndarray:
  sizes = _numbers(dims)
  ids = np.arange(math.prod(sizes)).reshape(sizes)
  return (ids.transpose(_numbers(order)) if order else ids).reshape(-1)


def _numbers(text: str) -> tuple[int, ...]:
  return tuple(int(n) for n in text.split(',') if n)

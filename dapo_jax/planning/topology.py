"""TPU slices by name, and their devices, without having one.

Google Cloud calls a slice by its chips (`v6e-256`), or by its cores, two a chip
(`v5p-256`); the compiler by its grid of chips (`v5p:4x4x8`).
"""

import difflib
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dapo_jax.planning import chips

# The slices that Cloud has a name for, by chips; others by their grid. Of v5p
# and v4 it offers more of the larger ones.
_FLAT = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = (
  *('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x4x12', '4x8x8'),
  *('4x8x12', '8x8x8', '8x8x12', '8x8x16', '8x12x12', '8x12x16', '12x12x12'),
  *('8x16x16', '12x12x16', '12x16x16', '16x16x16', '12x16x24', '16x16x24'),
)


class _Cloud(NamedTuple):
  """How Cloud calls the slices of a generation."""

  prefix: str
  cores: int  # of a chip, that its numbers count
  shapes: tuple[str, ...]


# tpu7x has no such names: Cloud asks for a grid.
_CLOUD: Mapping[str, _Cloud] = {
  'v4': _Cloud('v4', 2, tuple(s for s in _CUBES if '24' not in s)),
  'v5e': _Cloud('v5litepod', 1, _FLAT),
  'v5p': _Cloud('v5p', 2, _CUBES),
  'v6e': _Cloud('v6e', 1, _FLAT),
}
_OTHER_PREFIXES = {'v5e': 'v5e', 'v5litepod': 'v5e'}
# A host has so many chips of a slice along each axis, the last ones too.
_HOST = (2, 2, 1)
# From so many chips on a v5e slice is routed in few directions only.
_ROUTED_CHIPS = 32
# What libtpu would otherwise look for on this machine, at length.
_NO_TPU_HERE = {
  'TPU_SKIP_MDS_QUERY': '1',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_ACCELERATOR_TYPE': 'v5p-8',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_WORKER_ID': '0',
}


class Topology(NamedTuple):
  """One or more slices of one shape."""

  chip: chips.Chip
  grid: tuple[int, ...]  # chips of a slice
  slices: int = 1

  @property
  def chips(self) -> int:
    """Of all slices."""
    return math.prod(self.grid) * self.slices

  @property
  def devices(self) -> int:
    """Of all slices, as JAX counts them."""
    return self.chips * self.chip.devices_per_chip

  @property
  def host_grid(self) -> tuple[int, int, int]:
    """How many chips of a slice a host has along each of three axes."""
    if math.prod(self.grid) == 1:
      return (1, 1, 1)
    # An 8-chip host of v5e or v6e, which has whole slices only.
    if sorted(self.grid) == [2, 4]:
      return (*self.grid, 1)
    return _HOST

  @property
  def hosts(self) -> int:
    """Of all slices: one process each."""
    return self.chips // math.prod(self.host_grid)

  @property
  def name(self) -> str:
    """As the compiler calls a slice: `v5p:4x4x8`."""
    return f'{self.chip.name}:{"x".join(map(str, self.grid))}'

  @property
  def cloud_name(self) -> str:
    """As Cloud calls a slice, `v5p-256`; `name` where it has no name."""
    cloud = _CLOUD.get(self.chip.name)
    if cloud and tuple(sorted(self.grid)) in {
      tuple(sorted(_grid(shape))) for shape in cloud.shapes
    }:
      return f'{cloud.prefix}-{math.prod(self.grid) * cloud.cores}'
    return self.name


def parse(text: str, *, num_slices: int = 1) -> Topology:
  """Returns the slices that a name stands for.

  Args:
    text: `v5p-256`, `v5litepod-16`, `v6e-8`, or a grid, `v5p:4x4x8`.
    num_slices: how many of them.

  Raises:
    ValueError: when there are no such slices; names the nearest ones.
  """
  if num_slices < 1:
    raise ValueError(
      f'there must be at least one slice, not {num_slices}; change --num_slices'
    )
  match = re.fullmatch(r'([a-z0-9]+?)(?:-(\d+)|:(\d+(?:x\d+)*))', text)
  if match is None:
    raise ValueError(_no_name(text))
  prefix, count, grid = match.groups()
  chip = chips.CHIPS.get(_OTHER_PREFIXES.get(prefix, prefix))
  if chip is None:
    raise ValueError(_no_name(text))
  sizes = _grid(grid) if grid else _named(text, chip, int(count))
  if len(sizes) == 2 and chip.axes == 3:
    sizes = (*sizes, 1)
  found = Topology(chip, sizes, num_slices)
  _check(text, found)
  return found


def devices(topology: Topology) -> list[Any]:
  """Returns a topology's devices, which can be compiled for, not computed on.

  `process_index` numbers its hosts, `slice_index` its slices.

  Raises:
    ValueError: when libtpu is not installed.
  """
  # Before libtpu is loaded, by whatever loads it first.
  for name, value in _NO_TPU_HERE.items():
    os.environ.setdefault(name, value)
  from jax.experimental import topologies

  options: dict[str, Any] = {'chips_per_host_bounds': topology.host_grid}
  if topology.slices > 1:
    options['num_slices'] = topology.slices
  if topology.chip.chip_config:
    options['chip_config_name'] = topology.chip.chip_config
  try:
    found = topologies.get_topology_desc(
      platform='tpu', topology_name=topology.name, **options
    )
  except RuntimeError as error:
    if 'not installed' not in str(error):
      raise
    raise ValueError(
      "dapo-jax plan needs libtpu: pip install 'dapo-jax[tpu]' on Linux x86-64"
    ) from error
  return list(found.devices)


def island(topology: Topology, some: Sequence[Any]) -> list[Any]:
  """Returns devices to compile for in the place of some of a slice's.

  On a grid of two axes the compiler takes programs of a whole slice; of a part
  of one it refuses most, ahead of time. So they are those of a slice that has
  the shape of the part, where it is a rectangle; else `some`.
  """
  if topology.chip.axes != 2 or len(some) in (1, topology.devices):
    return list(some)
  places = [device.coords[:2] for device in some]
  low = [min(axis) for axis in zip(*places, strict=True)]
  sizes = [
    max(a) - m + 1 for a, m in zip(zip(*places, strict=True), low, strict=True)
  ]
  if math.prod(sizes) != len(some):
    return list(some)
  # Shapes are named with the shorter side first.
  turned = sizes[0] > sizes[1]
  shape = Topology(topology.chip, tuple(sorted(sizes)))
  at = {tuple(device.coords[:2]): device for device in devices(shape)}
  found = []
  for x, y in places:
    place = (x - low[0], y - low[1])
    found.append(at[place[::-1] if turned else place])
  return found


def doubt(topology: Topology, engine_devices: int) -> str | None:
  """Returns why a run may be refused where its compilation was not, or None.

  What the compiler says of a whole v5e slice of 32 chips and more, asked ahead
  of time: "on platforms with limited ICI routing device assignment should
  include all slice devices".
  """
  chips = math.prod(topology.grid)
  whole = engine_devices in (1, topology.devices)
  if topology.chip.name != 'v5e' or chips < _ROUTED_CHIPS or whole:
    return None
  return (
    f'an engine has {engine_devices} of the {chips} chips of a slice; of v5e '
    f'slices of {_ROUTED_CHIPS} and more the compiler refuses, ahead of time, '
    'programs on a part (limited ICI routing), and may do so on the machines: '
    'try it there with a small model first'
  )


def _grid(text: str) -> tuple[int, ...]:
  return tuple(map(int, text.split('x')))


def _named(text: str, chip: chips.Chip, count: int) -> tuple[int, ...]:
  """Returns the grid of a Cloud name."""
  cloud = _CLOUD.get(chip.name)
  if cloud is None:
    raise ValueError(
      f'{text}: slices of {chip.name} are named by their grid, as '
      f'{chip.name}:2x2x1 or {chip.name}:4x4x4; change --topology'
    )
  shapes = {math.prod(_grid(s)) * cloud.cores: s for s in cloud.shapes}
  if count in shapes:
    return _grid(shapes[count])
  unit = 'TensorCores, two a chip' if cloud.cores == 2 else 'chips'
  near = sorted(shapes, key=lambda n: (abs(math.log(n / max(count, 1))), n))
  names = ', '.join(f'{cloud.prefix}-{n}' for n in sorted(near[:4]))
  shape = shapes[near[0]]
  raise ValueError(
    f'{text}: no slice of {chip.name} that has a name has {count} {unit}; '
    f'nearest are {names}, and others are named by their grid, as '
    f'{chip.name}:{shape}; change --topology'
  )


def _check(text: str, topology: Topology) -> None:
  """Raises a ValueError for a grid that no slice has."""
  chip, grid = topology.chip, topology.grid
  most = (16, 16) if chip.axes == 2 else None
  fits = (
    len(grid) == chip.axes
    and min(grid) > 0
    and not any(n % h for n, h in zip(grid, topology.host_grid, strict=False))
    and not (most and any(n > m for n, m in zip(grid, most, strict=True)))
  )
  if fits:
    return
  shapes = _CUBES if chip.axes == 3 else _FLAT
  want = math.prod(grid) or 1
  near = sorted(shapes, key=lambda s: abs(math.log(math.prod(_grid(s)) / want)))
  names = ', '.join(f'{chip.name}:{shape}' for shape in near[:4])
  limit = ', at most 16x16' if most else ''
  raise ValueError(
    f'{text}: a slice of {chip.name} has {chip.axes} axes, the first two even'
    f'{limit}; nearest are {names}; change --topology'
  )


def _no_name(text: str) -> str:
  """Returns what is said of a name that has no form of a name."""
  known = [
    f'{cloud.prefix}-{math.prod(_grid(shape)) * cloud.cores}'
    for cloud in _CLOUD.values()
    for shape in cloud.shapes
  ] + [
    f'{c.name}:{"2x2" if c.axes == 2 else "2x2x1"}'
    for c in chips.CHIPS.values()
  ]
  near = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
  near = near or ['v5p-8', 'v6e-256', 'v5p:4x4x8']
  return (
    f'{text!r} names no slice of TPUs: a generation '
    f'({", ".join(chips.CHIPS)}) with a number of Cloud or a grid of chips; '
    f'such as {", ".join(near)}; change --topology'
  )

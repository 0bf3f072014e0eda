"""What a TPU chip can do, by its name.

Where numbers come from:

- peaks, bandwidths and chips a host: public specification, the pages of Cloud
  TPU on each generation, read in 2026. Where their editions differ, the lower
  number;
- `hbm_gib`: the limit that the compiler's out-of-memory message names, libtpu
  0.0.42.1. A program of ours may use so much; a chip has a little more;
- `ici_bytes_per_s`: specification too. It gives a chip's links together; an
  axis of a torus has two of the six (v4, v5p, tpu7x) or four (v5e, v6e). What
  is reached is at most that: an axis that is no ring has half of it;
- `clock_hz`: from the peak, which is two operations a cycle in each cell of
  the matrix units: 2 cores x 4 units x 128 x 128 cells in v4 and v5p, half as
  many in v5e.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Chip(NamedTuple):
  """A generation. Numbers are of a device, as JAX sees them, not of a chip."""

  name: str  # of the compiler's topologies
  device_kind: str  # `jax.Device.device_kind`
  peak_flops: float  # a second, of bfloat16 products
  hbm_gib: float  # that the compiler lets a program use
  hbm_bytes_per_s: float
  ici_bytes_per_s: float  # sent along one axis of a torus, both ways together
  dcn_bytes_per_s: float  # its share of its host's network
  clock_hz: float
  devices_per_chip: int
  host_chips: int  # of slices of several hosts
  axes: int  # of a slice's grid
  # The compiler sees both cores of a chip as one device only if told so.
  chip_config: str | None = None


_ALL = (
  Chip(
    name='v4',
    device_kind='TPU v4',
    peak_flops=275e12,
    hbm_gib=30.75,
    hbm_bytes_per_s=1200e9,
    # 2,400 Gbit/s a chip. An older page; newer ones leave it out.
    ici_bytes_per_s=100e9,
    # Uncertain: no page has it. As v5p.
    dcn_bytes_per_s=6.25e9,
    clock_hz=1.05e9,
    devices_per_chip=1,
    host_chips=4,
    axes=3,
    chip_config='megacore',
  ),
  Chip(
    name='v5e',
    device_kind='TPU v5 lite',
    peak_flops=197e12,
    hbm_gib=15.75,
    # 819 GB/s, in newer editions 800.
    hbm_bytes_per_s=800e9,
    # 1,600 Gbit/s a chip.
    ici_bytes_per_s=100e9,
    # 6.4 Tbit/s for 256 chips.
    dcn_bytes_per_s=3.125e9,
    clock_hz=1.5e9,
    devices_per_chip=1,
    host_chips=4,
    axes=2,
  ),
  Chip(
    name='v5p',
    device_kind='TPU v5',
    peak_flops=459e12,
    hbm_gib=95.74,
    hbm_bytes_per_s=2765e9,
    # 4,800 Gbit/s a chip.
    ici_bytes_per_s=200e9,
    # 50 Gbit/s a chip.
    dcn_bytes_per_s=6.25e9,
    clock_hz=1.75e9,
    devices_per_chip=1,
    host_chips=4,
    axes=3,
  ),
  Chip(
    name='v6e',
    device_kind='TPU v6 lite',
    peak_flops=918e12,
    hbm_gib=31.25,
    # 1,640 GB/s, in newer editions 1,600.
    hbm_bytes_per_s=1600e9,
    # 3,584 Gbit/s a chip, in newer editions 3,200.
    ici_bytes_per_s=200e9,
    # 25.6 Tbit/s for 256 chips.
    dcn_bytes_per_s=12.5e9,
    # Uncertain: that of 4 units of 256 x 256 cells. Pages have said 4 and 2.
    clock_hz=1.75e9,
    devices_per_chip=1,
    host_chips=4,
    axes=2,
  ),
  Chip(
    name='tpu7x',
    device_kind='TPU7x',
    # All below are halves of a chip's.
    peak_flops=2307e12 / 2,
    hbm_gib=94.75,
    hbm_bytes_per_s=7380e9 / 2,
    # 1,200 GB/s a chip in and out, so 600 out.
    ici_bytes_per_s=100e9,
    # Uncertain: 100 Gbit/s a chip.
    dcn_bytes_per_s=6.25e9,
    # Uncertain: that of 4 units of 256 x 256 cells a core.
    clock_hz=2.2e9,
    devices_per_chip=2,
    host_chips=4,
    axes=3,
  ),
)
CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _ALL}

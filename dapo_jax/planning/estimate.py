"""Estimates of time, from what a program computes, reads and sends.

A range, of which neither end was measured. At best everything overlaps and the
slowest of it decides: products at the chip's peak, memory and wires at their
bandwidth (the roofline). At worst nothing overlaps: the compiler's own cycle
counts, kernels at a share of what they could do, and wires after them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dapo_jax.planning import chips, counts

# Of kernels the compiler counts no cycles; they reach more than this share of
# peak or bandwidth where they are well fed (ours).
_KERNEL_FRAC = 0.6
# Without compiling there are no cycles: what large runs are known to reach of
# the peak, at worst (ours).
_UNCOMPILED_FRAC = 0.4


class Range(NamedTuple):
  """A time between two, [s]."""

  low_s: float
  high_s: float

  def __add__(self, other: 'Range') -> 'Range':
    return Range(self.low_s + other.low_s, self.high_s + other.high_s)

  def times(self, factor: float) -> 'Range':
    """Returns the time of so many."""
    return Range(self.low_s * factor, self.high_s * factor)


class Work(NamedTuple):
  """What one device does in a program, by its dynamic loops."""

  matmul_flops: counts.Counts
  attention_flops: counts.Counts  # of kernels
  cycles: counts.Counts | None  # without kernels; None = not compiled
  ici_bytes: counts.Counts
  dcn_bytes: counts.Counts


def seconds(
  work: Work,
  trips: Sequence[int | float],
  chip: chips.Chip,
  *,
  weights_bytes: float = 0.0,
  cache_bytes: float = 0.0,
) -> Range:
  """Returns how long a device takes for a run of a program.

  Args:
    work: of the program.
    trips: of its dynamic loops.
    chip: the device.
    weights_bytes: read from memory for products, where those are many.
    cache_bytes: read from memory by kernels.
  """
  of = lambda counted: float(counts.total(counted, trips))
  products, kernels = of(work.matmul_flops), of(work.attention_flops)
  wires_s = of(work.ici_bytes) / chip.ici_bytes_per_s
  dcn_s = of(work.dcn_bytes) / chip.dcn_bytes_per_s
  read_s = (weights_bytes + cache_bytes) / chip.hbm_bytes_per_s
  computed_s = (products + kernels) / chip.peak_flops
  low_s = max(computed_s, read_s, wires_s, dcn_s)
  if work.cycles is None:
    return Range(low_s, low_s / _UNCOMPILED_FRAC)
  kernels_s = max(kernels / chip.peak_flops, cache_bytes / chip.hbm_bytes_per_s)
  high_s = (
    of(work.cycles) / chip.clock_hz + kernels_s / _KERNEL_FRAC + wires_s + dcn_s
  )
  # The compiler's cycles can be fewer than the peak allows.
  return Range(low_s, max(low_s, high_s))


def utilization(
  model_flops: float, time: Range, chip: chips.Chip, *, devices: int
) -> tuple[float, float]:
  """Returns the MFU that a time implies: (at worst, at best).

  Args:
    model_flops: 6ND and causal attention, of real tokens, by all devices.
    time: they take.
    chip: the device.
    devices: their number.
  """
  most = model_flops / (devices * chip.peak_flops)
  return most / time.high_s, most / time.low_s

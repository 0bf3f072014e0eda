"""Which process samples and grades a draw, by its ordinal alone."""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from dapo_jax.parallel import job as job_lib


class Shares(NamedTuple):
  """The processes of a run, and the engines: an engine's are neighbours."""

  job: job_lib.Job
  engines: int
  hosts: int  # processes of each engine

  def is_sampled_here(self, ordinal: int) -> bool:
    """Returns whether the engine of this process samples a draw."""
    return ordinal % self.engines == self.job.index // self.hosts

  def owner(self, ordinal: int) -> int:
    """Returns the number of the process that grades and keeps a draw.

    It is one of the engine's that samples it. Of as many draws in a row as
    there are processes each owns one.
    """
    host = ordinal // self.engines % self.hosts
    return ordinal % self.engines * self.hosts + host

  def is_own(self, ordinal: int) -> bool:
    """Returns whether this process grades and keeps a draw."""
    return self.owner(ordinal) == self.job.index


def of(
  job: job_lib.Job, devices: Sequence[jax.Device], *, engine_chips: int | None
) -> Shares:
  """Returns the shares of a run's processes.

  Args:
    job: the processes.
    devices: of all of them.
    engine_chips: devices of an engine; None = those of one process.

  Raises:
    ValueError: engines would have parts of a process, or differ in size.
  """
  local = sum(device.process_index == job.index for device in devices)
  chips = engine_chips or local
  if chips % local or len(devices) % chips:
    fit = [local * n for n in range(1, job.count + 1) if job.count % n == 0]
    raise ValueError(
      f'sampler.engine_chips ({chips}) must be a multiple of the {local} '
      f'devices of a process and divide the {len(devices)} of all, so it can '
      f'be {", ".join(map(str, fit))}; change --config.sampler.engine_chips'
    )
  hosts = chips // local
  return Shares(job, engines=job.count // hosts, hosts=hosts)


def alone() -> Shares:
  """Returns the shares of one process with one engine: all is its own."""
  return Shares(job_lib.Job(), engines=1, hosts=1)

"""One of the real processes of job_processes_test: says what it is told.

What each process says follows from its number, so that the test knows it. The
results go to files, for gloo prints to the standard output.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dapo_jax.parallel import exchange, placement, watch
from dapo_jax.parallel import job as job_lib
from dapo_jax.parallel import mesh as mesh_lib

COUNT = 3
FAILURE = 'no room on the disk'
QUIET_S = 1.0
SLOW_S = 3.5
# Where some process comes late, [s].
DELAYS_S = ([0.0, 0.2, 0.0], [0.3, 0.0, 0.1], [0.0, 0.0, 0.2])


def arrays(index: int) -> dict[str, np.ndarray]:
  """Returns what a process gathers."""
  rng = np.random.default_rng(index)
  return {
    # More digits than a device in float32 would keep; a NaN with bits.
    'float64': np.append(rng.standard_normal((2, 3)) / 3, np.uint64(
      (2047 << 52) + index + 1
    ).view(np.float64)),
    'bool': rng.random((1, 7)) < 0.5,
    'int8': rng.integers(-128, 128, (3, 1, 5), np.int8),
    'int64': rng.integers(-(2**62), 2**62, 1),
    'scalar': np.array(index, np.uint16),
    'empty': np.zeros((0, 4), np.float32),
    'fields': np.array([(index, index / 3)], [('a', 'u1'), ('b', '<f8')]),
  }  # fmt: skip


def text(index: int) -> bytes:
  """Returns what a process tells: more than 1 MB, another length in each."""
  return np.random.default_rng(index).bytes(1_200_000 + index)


def sizes() -> list[np.ndarray]:
  """Returns how many words each sends to each, exchange by exchange."""
  rng = np.random.default_rng(0)
  shape = (COUNT, COUNT)
  some = rng.integers(0, 2, shape)
  return [
    rng.integers(1, 50, shape) * some,
    np.zeros(shape, np.int64),
    # Up to three parts of 16,384 words.
    rng.integers(1, 40_000, shape) * some.T,
  ]


def words(number: int, of: int, to: int, size: int) -> np.ndarray:
  """Returns what one process sends to one other."""
  rng = np.random.default_rng([number, of, to])
  return rng.integers(0, 2**32, size, np.uint32)


def digest(data: bytes) -> str:
  """Returns a short text that no other bytes have."""
  return hashlib.sha256(data).hexdigest()[:16]


def batch() -> np.ndarray:
  """Returns rows [M 2, R 6, T 4]."""
  return np.arange(2 * 6 * 4, dtype=np.int32).reshape(2, 6, 4)


def weights() -> np.ndarray:
  """Returns the parameters that go to the islands."""
  return np.arange(6 * 4, dtype=np.float32).reshape(6, 4)


class Compilations:
  """Counts what is compiled."""

  def __init__(self):
    self.count = 0
    jax.monitoring.register_event_duration_secs_listener(self._note)

  def _note(self, event: str, seconds: float, **_: Any) -> None:
    del seconds
    self.count += event == '/jax/core/compile/backend_compile_duration'


def said(job: job_lib.Job) -> dict[str, Any]:
  """Returns what each way to speak gave."""
  gathered = {
    name: job.gather(array, what=name)
    for name, array in arrays(job.index).items()
  }
  exchanged = []
  for number, size in enumerate(sizes()):
    outgoing = [
      words(number, job.index, to, size[job.index, to]) for to in range(COUNT)
    ]
    found = exchange.all_to_all(job, outgoing, size, what='words')
    exchanged.append([digest(part.tobytes()) for part in found])
  return {
    'gather': {
      name: [str(a.dtype), a.shape, a.tobytes().hex()]
      for name, a in gathered.items()
    },
    'any': [
      job.any(job.index in flagged, what='any')
      for flagged in ([], [0], [2], [0, 1, 2])
    ],
    'from_first': [
      digest(job.from_first(lambda: text(job.index), what='from')),
      digest(job.from_first(lambda: b'', what='from')),
    ],
    'to_first': [digest(d) for d in job.to_first(text(job.index), what='to')],
    'exchanged': exchanged,
  }


def placed(job: job_lib.Job) -> dict[str, Any]:
  """Returns where arrays lie, and what is whole on the hosts."""
  found = {}
  for fsdp in (3, 2):
    mesh = mesh_lib.update_mesh(jax.devices(), data=1, fsdp=fsdp, tensor=-1)
    holders = placement.row_processes(6, mesh)
    mine = [job.index in of for of in holders]
    # A process has its own rows alone.
    rows = np.where(np.array(mine)[:, None], batch(), -1)
    put = placement.put_rows({'rows': rows}, mesh)['rows']
    found[f'rows of {fsdp}'] = {
      'holders': [sorted(of) for of in holders],
      'whole': placement.on_host(put).tolist(),
    }
  return found


def islands(job: job_lib.Job, *, hosts: int) -> dict[str, Any]:
  """Returns the parameters that an engine of `hosts` processes gets."""
  devices = jax.devices()
  mesh = mesh_lib.update_mesh(devices, data=1, fsdp=3, tensor=2)
  spread = NamedSharding(mesh, PartitionSpec('fsdp', 'tensor'))
  params = jax.make_array_from_callback(
    weights().shape, spread, lambda index: weights()[index]
  )
  island = mesh_lib.engine_mesh(
    mesh_lib.of_engine(devices, hosts=hosts, process=job.index), tensor=2
  )
  engines = mesh_lib.engines_mesh(devices, island)
  spec = PartitionSpec(None, 'tensor')
  found = placement.to_island(
    jax.jit(lambda x: 2 * x),
    params,
    engines=NamedSharding(engines, spec),
    island=NamedSharding(island, spec),
  )
  return {
    'processes': sorted({d.process_index for d in found.sharding.device_set}),
    'whole': placement.on_host(found).tolist(),
    'shards': sorted(
      [int(s.index[1].start or 0), np.asarray(s.data).tolist()]
      for s in found.addressable_shards
    ),
  }


def again(job: job_lib.Job) -> dict[str, int]:
  """Returns how much is compiled when it is done once more."""
  compilations, found = Compilations(), {}
  mesh = mesh_lib.update_mesh(jax.devices(), data=1, fsdp=3, tensor=2)
  put = placement.put_rows(batch(), mesh)
  size = sizes()[0]
  for name, call in {
    'gather': lambda: job.gather(np.zeros(3), what='again'),
    'on_host': lambda: placement.on_host(put),
    'all_to_all': lambda: exchange.all_to_all(
      job,
      [np.zeros(n, np.uint32) for n in size[job.index]],
      size,
      what='again',
    ),
  }.items():
    call()
    before = compilations.count
    call()
    found[name] = compilations.count - before
  return found


def meetings(job: job_lib.Job) -> list[list[float]]:
  """Returns when this process came to each place and when it went on."""
  found = []
  for number, delays_s in enumerate(DELAYS_S):
    time.sleep(delays_s[job.index])
    came_s = time.monotonic()
    job.meet(f'place {number}')
    found.append([came_s, time.monotonic()])
  return found


def stopped(job: job_lib.Job, stops: list[int]) -> int:
  """Returns how often this process was asked to stop when another one was."""
  if job.index == 1:
    job.tell_stop()
  until_s = time.monotonic() + 10.0
  while job.index != 1 and not stops and time.monotonic() < until_s:
    time.sleep(0.05)
  job.meet('all were asked')
  return len(stops)


def all_of_it(job: job_lib.Job, stops: list[int]) -> dict[str, Any]:
  """Returns what the test looks at."""
  found = {
    'said': said(job),
    'placed': placed(job),
    'islands': {hosts: islands(job, hosts=hosts) for hosts in (1, 3)},
    'again': again(job),
    'meetings': meetings(job),
    'stops': stopped(job, stops),
  }
  if job.index == 1:
    job.doing('a long sleep')
    time.sleep(SLOW_S)
  job.meet('the slow one')
  return found


def main() -> int:
  """Does all of it, or fails; returns the exit status."""
  flags = argparse.ArgumentParser()
  flags.add_argument('--out', type=pathlib.Path, required=True)
  flags.add_argument('--failing', type=int)
  flags.add_argument('--coordinator')
  flags.add_argument('--processes', type=int)
  flags.add_argument('--process', type=int)
  flags = flags.parse_args()
  stops, told = [], []

  def write(**found: Any) -> None:
    (flags.out / f'{flags.process}.json').write_text(json.dumps(found))

  def leave(status: int, line: str) -> None:
    write(left=line)
    os._exit(status)

  launch = job_lib.Launch(
    coordinator=flags.coordinator,
    processes=flags.processes,
    process=flags.process,
  )
  hooks = watch.Hooks(
    stop=lambda: stops.append(1), leave=leave, tell=told.append
  )
  try:
    with job_lib.started(launch, hooks=hooks, quiet_s=QUIET_S) as job:
      if flags.failing is None:
        write(**all_of_it(job, stops), told=told)
      elif flags.failing == job.index:
        raise ValueError(FAILURE)
      else:
        job.meet('a place that one never comes to')
  except ValueError as error:
    write(raised=str(error))
    return 2
  return 0


if __name__ == '__main__':
  # As the command ends: threads are not waited for.
  ended = main()
  sys.stdout.flush()
  os._exit(ended)

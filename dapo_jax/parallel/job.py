"""The processes of a run: which one this is, and what they tell each other.

Every process runs the same program and calls the methods of its `Job` in the
same order; between two calls each does as it likes, for as long as it likes.
What is said is small: token ids go by `parallel.exchange`. A process that
fails, hangs or is lost is the affair of `parallel.watch`.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from dapo_jax.parallel import address
from dapo_jax.parallel import watch as watch_lib

# Of one value in the store of the coordinator, which takes a few MiB.
_PART_BYTES = 512 * 1024
# Most time between the starts of the first and the last process, [s]; jax,
# which would abort, is given more.
_MEET_S = 300
_MORE_S = 60
_HEARTBEAT_S = 200
# Longest wait of a device of a CPU for those of other processes, [s].
_PATIENCE_S = 3600
_PATIENT_FLAGS = (
  'xla_cpu_collective_call_terminate_timeout_seconds',
  'xla_cpu_collective_timeout_seconds',
)
# Longer than any wait: who waits for what, and how long is too long, is
# `parallel.watch`'s.
_FOR_EVER_MS = 30 * 24 * 3600 * 1000


class Launch(NamedTuple):
  """How the processes of a run find each other; no process count = alone."""

  # From what the machines say of themselves: a TPU pod, GKE, Slurm.
  from_environment: bool = False
  coordinator: str | None = None  # HOST:PORT of the first process
  processes: int | None = None
  process: int | None = None  # this one's number, from 0


class Job:
  """The processes of a run, this one among them."""

  def __init__(
    self,
    index: int = 0,
    count: int = 1,
    *,
    client: Any = None,
    watch: watch_lib.Watch | None = None,
  ):
    """Is of one process, alone, unless told otherwise.

    Args:
      index: number of this process, from 0.
      count: of processes.
      client: of jax's coordinator, if there are several.
      watch: looks after the others, if there are several.
    """
    self.index = index
    self.count = count
    self._client = client
    self._watch = watch
    self._meetings = 0

  @property
  def is_first(self) -> bool:
    """Whether this process writes the logs and prints."""
    return self.index == 0

  def doing(self, what: str) -> None:
    """Says what this process is at, for those that wait for it."""
    if self._watch is not None:
      self._watch.doing(what)

  def tell_stop(self) -> None:
    """Passes on to the others that this process was asked to stop."""
    if self._watch is not None:
      self._watch.tell_stop()

  def part(self) -> None:
    """Is called when this process is about to end, ahead of the others."""
    if self._watch is not None:
      self._watch.part()

  def meet(self, what: str) -> None:
    """Returns when every process has come here; `what` names the place."""
    if self.count == 1:
      return
    self._meetings += 1
    with self._watch.waiting(what):
      self._client.wait_at_barrier(
        f'dapo_jax/meeting/{self._meetings}', _FOR_EVER_MS
      )

  def gather(
    self, values: Shaped[np.ndarray, '...'], *, what: str
  ) -> Shaped[np.ndarray, 'processes ...']:
    """Returns the values of every process, theirs having the same shape.

    Bit for bit, whatever the type. The first call with a shape compiles.
    """
    if self.count == 1:
      return values[None]
    from jax.experimental import multihost_utils

    # The devices wait less patiently than the coordinator.
    self.meet(what)
    data = np.frombuffer(values.tobytes(), np.uint8)
    found = np.asarray(multihost_utils.process_allgather(data))
    return np.frombuffer(found.tobytes(), values.dtype).reshape(
      self.count, *values.shape
    )

  def any(self, flag: bool, *, what: str) -> bool:
    """Returns whether the flag is set in some process."""
    return bool(self.gather(np.array([flag]), what=what).any())

  def from_first(self, make: Callable[[], bytes], *, what: str) -> bytes:
    """Returns what `make` gives in the first process, where alone it runs."""
    if self.count == 1:
      return make()
    found = make() if self.is_first else b''
    return self._told(found, [0], what=what)[0]

  def to_first(self, data: bytes, *, what: str) -> list[bytes]:
    """Returns the data of every process, by number; none in the others."""
    if self.count == 1:
      return [data]
    told = range(self.count) if self.is_first else []
    return self._told(data, told, what=what)

  def _told(self, data: bytes, of, *, what: str) -> list[bytes]:
    """Tells `data`, and returns what the processes `of` tell."""
    parts = -(-len(data) // _PART_BYTES)
    name = f'dapo_jax/told/{self._meetings}'
    mine = f'{name}/{self.index}'
    for i in range(parts):
      part = data[i * _PART_BYTES : (i + 1) * _PART_BYTES]
      self._client.key_value_set_bytes(f'{mine}/{i}', part)
    self._client.key_value_set(f'{mine}/parts', str(parts))
    self.meet(what)
    found = [self._read(f'{name}/{other}') for other in of]
    self.meet(what)
    self._client.key_value_delete(mine)
    return found

  def _read(self, name: str) -> bytes:
    """Returns what a process told under this name."""
    get = self._client.blocking_key_value_get
    parts = int(get(f'{name}/parts', _FOR_EVER_MS))
    get = self._client.blocking_key_value_get_bytes
    return b''.join(get(f'{name}/{i}', _FOR_EVER_MS) for i in range(parts))


@contextlib.contextmanager
def started(
  launch: Launch, *, hooks: watch_lib.Hooks, quiet_s: float
) -> Iterator[Job]:
  """Yields the job; begins before, and ends after, any use of the devices.

  An exception that leaves this in one process ends all of them.

  Args:
    launch: how the processes find each other; `check`ed.
    hooks: what the watch may call.
    quiet_s: a wait this long is told, [s].

  Raises:
    ValueError: they do not find each other.
  """
  if not launch.from_environment and launch.processes is None:
    yield Job()
    return
  if launch.process == 0:
    address.check(launch.coordinator)
  _initialize(launch, hooks)
  import jax

  index, count = jax.process_index(), jax.process_count()
  if count == 1:
    yield Job()
    return
  # There is no public name for it; Orbax, too, gets it from here.
  from jax._src import distributed

  client = distributed.global_state.client
  watch = watch_lib.Watch(
    client, index=index, count=count, hooks=hooks, quiet_s=quiet_s
  )
  with watch.watching():
    job = Job(index, count, client=client, watch=watch)
    yield job
    job.meet('the end of the run')
  jax.distributed.shutdown()


def check(launch: Launch) -> None:
  """Raises ValueError for flags that do not fit together."""
  given = (launch.coordinator, launch.processes, launch.process)
  count = sum(value is not None for value in given)
  if count not in (0, 3):
    raise ValueError(
      '--coordinator, --processes and --process go together: the address '
      'HOST:PORT of the first process, their number, and the number of this '
      'one, from 0'
    )
  if count and not 0 <= launch.process < launch.processes:
    raise ValueError(
      f'--process ({launch.process}) must be 0 to --processes - 1 '
      f'({launch.processes - 1})'
    )
  if count and not re.fullmatch(r'.+:[0-9]+', launch.coordinator):
    raise ValueError(
      f'--coordinator ({launch.coordinator}) must be HOST:PORT of the first '
      'process'
    )
  port = int(launch.coordinator.rpartition(':')[2]) if count else 1
  if not 0 < port < 2**16:
    raise ValueError(
      f'--coordinator ({launch.coordinator}) has no port from 1 to {2**16 - 1}'
    )
  if count and launch.from_environment:
    raise ValueError(
      '--distributed finds the processes from what the machines say of '
      'themselves; give it, or --coordinator, --processes and --process'
    )


def _initialize(launch: Launch, hooks: watch_lib.Hooks) -> None:
  """Connects this process with the others; ends it when they do not come."""
  _let_collectives_wait()
  import jax

  late = threading.Timer(_MEET_S, hooks.leave, (1, _apart(launch)))
  late.daemon = True
  late.start()

  # It would take the handler of SIGTERM away from `training.stopping`.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      launch.coordinator,
      launch.processes,
      launch.process,
      initialization_timeout=_MEET_S + _MORE_S,
      # After `parallel.watch`, which says which process is lost.
      heartbeat_timeout_seconds=_HEARTBEAT_S,
      # At the others' address of it, not on every network of the machine.
      coordinator_bind_address=launch.coordinator,
    )
  except (RuntimeError, ValueError) as error:
    why = f' ({_first_line(error)})'
    raise ValueError(_apart(launch, why)) from error
  finally:
    late.cancel()


def _apart(launch: Launch, why: str = '') -> str:
  """Returns what is said of processes that do not find each other."""
  where = f' at {launch.coordinator}' if launch.coordinator else ''
  count = f' {launch.processes}' if launch.processes else ''
  return (
    f'the processes did not find each other{where}{why}; see that all{count} '
    f'are started, by the same command on every machine, within {_MEET_S} s, '
    'and --coordinator, --processes and --process, or --distributed'
  )


def _let_collectives_wait() -> None:
  """Lets XLA:CPU wait for a slow process; it would abort after 40 s."""
  known = os.environ.get('XLA_FLAGS', '')
  for flag in _PATIENT_FLAGS:
    if flag not in known:
      known += f' --{flag}={_PATIENCE_S}'
  os.environ['XLA_FLAGS'] = known


def _first_line(error: Exception) -> str:
  return next(iter(str(error).splitlines()), type(error).__name__)

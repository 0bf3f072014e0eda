"""The processes of a run as threads of one, with a coordinator in a dict.

What `parallel.job` and `parallel.exchange` ask of the devices is done in
memory; all else is theirs.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from dapo_jax.parallel import exchange, watch
from dapo_jax.parallel import job as job_lib

# Of a thread to come to a meeting, however slow this machine is, [s].
_LIMIT_S = 30.0


class LeftAloneError(Exception):
  """Another process has ended and will never come to the meeting."""


class Coordinator:
  """The store and the meetings of jax's coordinator."""

  def __init__(self, count: int):
    self.values: dict[str, Any] = {}
    self.arrays: dict[str, dict[int, np.ndarray]] = {}
    self.is_gone = False
    self._count = count
    self._changed = threading.Condition()
    self._came: dict[str, set[int]] = {}
    self._ended: set[int] = set()

  def client(self, index: int) -> 'Client':
    """Returns the client of a process."""
    return Client(self, index)

  def end(self, index: int) -> None:
    """Says that a process comes to no meeting any more."""
    with self._changed:
      self._ended.add(index)
      self._changed.notify_all()

  def meet(self, name: str, index: int) -> None:
    """Returns when all have come; a meeting takes place once."""
    with self._changed:
      came = self._came.setdefault(name, set())
      if index in came:
        raise AssertionError(f'{index} comes to {name} twice')
      came.add(index)
      self._changed.notify_all()
      everybody = set(range(self._count))
      there = self._changed.wait_for(
        lambda: came == everybody or self._ended - came, _LIMIT_S
      )
      if came != everybody:
        raise LeftAloneError(name) if there else TimeoutError(name)

  def read(self) -> dict[str, Any]:
    """Returns the values, to be changed."""
    if self.is_gone:
      raise RuntimeError('UNAVAILABLE: failed to connect\n to all addresses')
    return self.values


class Client:
  """What jax's client of the coordinator does for one process."""

  def __init__(self, coordinator: Coordinator, index: int):
    self.coordinator = coordinator
    self.index = index

  def key_value_set(
    self, key: str, value: Any, allow_overwrite: bool = False
  ) -> None:
    values = self.coordinator.read()
    if key in values and not allow_overwrite:
      raise RuntimeError(f'ALREADY_EXISTS: {key}')
    values[key] = value

  key_value_set_bytes = key_value_set

  def key_value_try_get(self, key: str) -> Any:
    values = self.coordinator.read()
    if key not in values:
      raise RuntimeError(f'NOT_FOUND: {key}')
    return values[key]

  def blocking_key_value_get(self, key: str, timeout_ms: int) -> Any:
    del timeout_ms  # what a job reads has been written
    return self.key_value_try_get(key)

  blocking_key_value_get_bytes = blocking_key_value_get

  def key_value_dir_get(self, folder: str) -> list[tuple[str, Any]]:
    values = self.coordinator.read()
    return [(k, v) for k, v in [*values.items()] if k.startswith(folder)]

  def key_value_delete(self, key: str) -> None:
    values = self.coordinator.read()
    for name in [*values]:
      if name == key or name.startswith(f'{key}/'):
        del values[name]

  def wait_at_barrier(self, name: str, timeout_ms: int) -> None:
    del timeout_ms
    self.coordinator.meet(name, self.index)


class Ended(NamedTuple):
  """How a process ended."""

  result: Any = None
  error: BaseException | None = None


def run(
  count: int,
  body: Callable[[job_lib.Job], Any],
  coordinator: Coordinator | None = None,
) -> list[Any]:
  """Returns what `body` returns in each of so many processes, by number."""
  ended = endings(count, body, coordinator)
  for error in (e.error for e in ended):
    if error is not None and not isinstance(error, LeftAloneError):
      raise error
  return [e.result for e in ended]


def endings(
  count: int,
  body: Callable[[job_lib.Job], Any],
  coordinator: Coordinator | None = None,
) -> list[Ended]:
  """Returns how `body` ends in each of so many processes, by number."""
  coordinator = coordinator or Coordinator(count)
  ended = [Ended()] * count

  def process(index: int) -> None:
    client = coordinator.client(index)
    _here.of = _Swaps(client)
    own_watch = watch.Watch(
      client,
      index=index,
      count=count,
      hooks=watch.Hooks(*[lambda *_: None] * 3),
      quiet_s=60.0,
    )
    job = job_lib.Job(index, count, client=client, watch=own_watch)
    try:
      ended[index] = Ended(result=body(job))
    except BaseException as error:
      ended[index] = Ended(error=error)
    finally:
      coordinator.end(index)

  with _in_memory():
    threads = [
      threading.Thread(target=process, args=[i], daemon=True)
      for i in range(count)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(2 * _LIMIT_S)
  return ended


class _Swaps:
  """What one process says to the others, array after array."""

  def __init__(self, client: Client):
    self._client = client
    self.count = 0

  def all_of(self, array: np.ndarray) -> np.ndarray:
    self.count += 1
    index, name = self._client.index, f'array {self.count}'
    arrays = self._client.coordinator.arrays.setdefault(name, {})
    arrays[index] = array.copy()
    self._client.coordinator.meet(name, index)
    return np.stack([arrays[i] for i in sorted(arrays)])

  def sent_here(self, array: np.ndarray) -> np.ndarray:
    """Returns the row of each that is for this one."""
    return self.all_of(array)[:, self._client.index]


_here = threading.local()


def arrays_count() -> int:
  """Returns how many arrays this process has exchanged with the others."""
  return _here.of.count


@contextlib.contextmanager
def _in_memory() -> Iterator[None]:
  """Has the threads exchange arrays without devices."""
  with (
    mock.patch(
      'jax.experimental.multihost_utils.process_allgather',
      lambda array: _here.of.all_of(array),
    ),
    mock.patch.object(
      exchange, '_swapped', lambda sent: _here.of.sent_here(sent)
    ),
  ):
    yield

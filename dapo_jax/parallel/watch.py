"""Looks after the processes of a run: who waits, who failed, who is gone.

A thread in each process says every second what it is at, in the store of the
coordinator. That of the first process reads what all say: it tells of long
waits, and declares the run over when one has failed or is no more heard of;
then every process ends. So a launcher that starts them again gets to do it.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_TICK_S = 1.0
# A process that says nothing for so long is lost, [s]. A thread of its own
# says it, so that no compilation, and no wait for a device, is that long.
_LOST_S = 60.0
# Most time that the first process waits for the others to see what it
# declared, before the coordinator ends with it, [s]; and the time that they
# have to end, after that.
_PARTING_S = 10.0
_ENDING_S = 2.0
_ROOT = 'dapo_jax/watch'


class Hooks(NamedTuple):
  """What the watch calls, from its thread."""

  # Another process was asked to stop.
  stop: Callable[[], None]
  # Ends this process at once, with an exit status and a last line.
  leave: Callable[[int, str], None]
  # Tells a line.
  tell: Callable[[str], None]


class Watch:
  """The watch of one process over all of them."""

  def __init__(
    self,
    client: Any,
    *,
    index: int,
    count: int,
    hooks: Hooks,
    quiet_s: float,
  ):
    """Begins with `watching`.

    Args:
      client: of jax's coordinator.
      index: number of this process.
      count: of processes.
      hooks: what it may call.
      quiet_s: a wait this long is told, [s].
    """
    self._store = _Store(client)
    self._index = index
    self._count = count
    self._hooks = hooks
    self._quiet_s = quiet_s
    self._at = _At('the start', waits=False, since_s=time.monotonic())
    self._ticks = 0
    self._heard: dict[int, tuple[int, float]] = {}
    self._told_s = time.monotonic()
    self._stop_seen = False
    self._over = threading.Event()

  def doing(self, what: str) -> None:
    """Says what this process is at."""
    self._at = _At(what, waits=False, since_s=time.monotonic())

  @contextlib.contextmanager
  def waiting(self, what: str) -> Iterator[None]:
    """Says that this process waits for the others at a place."""
    before = self._at
    self._at = _At(what, waits=True, since_s=time.monotonic())
    yield
    self._at = before._replace(since_s=time.monotonic())

  def tell_stop(self) -> None:
    """Passes on that this process was asked to stop; from any thread."""
    self._stop_seen = True
    self._store.put('stop', str(self._index))

  def part(self) -> None:
    """Is called before a process ends by itself, ahead of the others.

    The first one waits a little, for the coordinator ends with it.
    """
    self._over.set()
    if self._index:
      self._store.put(f'gone/{self._index}', '')
      return
    until_s = time.monotonic() + _PARTING_S
    while len(self._gone()) < self._count - 1 and time.monotonic() < until_s:
      time.sleep(_TICK_S / 10)
    time.sleep(_ENDING_S)

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """Watches; an exception that leaves this ends every process."""
    threading.Thread(target=self._watch, name='watch', daemon=True).start()
    try:
      yield
    except BaseException as error:
      if _may_be_of_another(error):
        # The loss of a process shows in the devices of all the others: give
        # the watch the time to find which one it is, and end us.
        time.sleep(_LOST_S + 5 * _TICK_S)
      self._store.put(f'failed/{self._index}', _text(error))
      if self._index == 0:
        self._store.put('end', f'process 0 failed: {_text(error)}')
      self.part()
      raise
    self._over.set()

  def _watch(self) -> None:
    while not self._over.wait(_TICK_S):
      try:
        self._say()
        end = self._judge() if self._index == 0 else self._obey()
      except Exception as error:  # of the coordinator's client, any kind
        if not self._over.is_set():
          self._lost_first(error)
        continue
      if end:
        self.part()
        self._hooks.leave(1, end)

  def _say(self) -> None:
    """Says what this process is at, so that it is heard of."""
    self._ticks += 1
    at = self._at
    said = [self._ticks, at.waits, at.what, time.monotonic() - at.since_s]
    self._store.put(f'at/{self._index}', json.dumps(said))

  def _obey(self) -> str:
    """Returns why the run is over by what the first process says, or ''."""
    self._heed_stop()
    first = self._store.get('at/0')
    if first is not None:
      self._hear(0, json.loads(first)[0])
    if self._silent_s(0) > _LOST_S:
      return _lost(0)
    return self._store.get('end') or ''

  def _judge(self) -> str:
    """Returns why the run is over, '' if it is not; tells of long waits."""
    self._heed_stop()
    said = {i: json.loads(s) for i, s in self._store.all('at').items()}
    for index, (ticks, *_) in said.items():
      self._hear(index, ticks)
    gone = self._gone()
    failed = self._store.all('failed')
    end = ''
    for index, text in sorted(failed.items()):
      end = end or f'process {index} failed: {text}'
    for index in range(self._count):
      if index not in gone and self._silent_s(index) > _LOST_S:
        end = end or _lost(index)
        self._store.put(f'gone/{index}', '')  # it is not waited for
    if end:
      self._store.put('end', end)
    else:
      self._tell_waits(said, gone)
    return end

  def _heed_stop(self) -> None:
    """Lets this process stop, once, if another one was asked to."""
    if not self._stop_seen and self._store.get('stop') is not None:
      self._stop_seen = True
      self._hooks.stop()

  def _tell_waits(self, said: dict[int, list], gone: set[int]) -> None:
    """Tells who waits for whom, where that is long, and again after as long.

    Those that are gone wait for nobody, and are at nothing any more.
    """
    said = {i: s for i, s in said.items() if i not in gone}
    waits = {i: s for i, s in said.items() if s[1] and s[3] > self._quiet_s}
    now = time.monotonic()
    if waits and now - self._told_s > self._quiet_s:
      self._told_s = now
      self._hooks.tell(_waits_text(waits, said, gone))

  def _lost_first(self, error: Exception) -> None:
    """Ends this process when the coordinator has not answered for long."""
    if self._silent_s(0) > _LOST_S:
      self._hooks.leave(1, f'{_lost(0)} ({" ".join(str(error).split())[:200]})')

  def _hear(self, index: int, ticks: int) -> None:
    if self._heard.get(index, (None,))[0] != ticks:
      self._heard[index] = (ticks, time.monotonic())

  def _silent_s(self, index: int) -> float:
    """Returns how long nothing was heard of a process."""
    now = time.monotonic()
    return now - self._heard.setdefault(index, (-1, now))[1]

  def _gone(self) -> set[int]:
    return set(self._store.all('gone'))


class _At(NamedTuple):
  what: str
  waits: bool
  since_s: float


class _Store:
  """Short texts under names, in jax's coordinator."""

  def __init__(self, client: Any):
    self._client = client

  def put(self, name: str, text: str) -> None:
    """Writes a text; does nothing where the coordinator is gone."""
    with contextlib.suppress(Exception):
      self._client.key_value_set(f'{_ROOT}/{name}', text, allow_overwrite=True)

  def get(self, name: str) -> str | None:
    """Returns a text, None if there is none."""
    try:
      return self._client.key_value_try_get(f'{_ROOT}/{name}')
    except Exception as error:  # the client has no kinds of its own
      if 'NOT_FOUND' in str(error):
        return None
      raise

  def all(self, folder: str) -> dict[int, str]:
    """Returns the texts in a folder, by the number that is their name."""
    found = self._client.key_value_dir_get(f'{_ROOT}/{folder}/')
    return {int(name.rpartition('/')[2]): text for name, text in found}


def _may_be_of_another(error: BaseException) -> bool:
  """Says whether the loss of another process may show as this error."""
  import jax

  return isinstance(error, jax.errors.JaxRuntimeError)


def _text(error: BaseException) -> str:
  return ' '.join(f'{type(error).__name__}: {error}'.split())


def _lost(index: int) -> str:
  return (
    f'process {index} is lost: nothing was heard of it for {_LOST_S:g} s; the '
    'run ends here, and the same command on every machine goes on from its '
    'newest checkpoint'
  )


def _waits_text(
  waits: dict[int, list], said: dict[int, list], gone: set[int]
) -> str:
  """Returns one line: who waits where and how long, and what others are at."""
  _, _, what, seconds = waits[min(waits)]
  others = [
    f'process {i} is at {s[2]} for {s[3]:.0f} s'
    for i, s in sorted(said.items())
    if i not in waits
  ]
  others += [f'process {i} has ended' for i in sorted(gone)]
  numbers = ', '.join(map(str, sorted(waits)))
  who = (
    f'process {numbers} waits'
    if len(waits) == 1
    else (f'processes {numbers} wait')
  )
  return (
    f'{who} for {what} since {seconds:.0f} s; '
    f'{"; ".join(others[:8]) or "all are there"}'
  )

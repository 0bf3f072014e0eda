"""The end of a process that was asked to stop: in time, whatever it does.

The Python handler of a signal runs between two bytecodes of the main thread,
and these may be minutes apart: while it compiles, or waits for a device. The
handler in C writes the signal's number to a socket at once, and a thread reads
it there. That thread lets a run end by itself where it can, saves the boundary
in its place where it cannot, and ends the process when the time is over.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from etils import epath

from dapo_jax.training import checkpoint_folder, interrupt

# A signal this soon after the first one is its echo, [s]: some programs send
# it to a process and to its group.
_ECHO_S = 0.3
# Time that a run at a boundary has to end by itself, [s].
_PATIENCE_S = 1.0
_LOOK_S = 0.05
# Share of the grace time after which the last line is printed; at its end the
# process ends, printed or not.
_TELL_FRAC = 0.9
_SHOW_CURSOR = '\x1b[?25h'
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def in_time(
  checkpoints: epath.Path, *, grace_s: float
) -> Iterator[interrupt.Guard]:
  """Yields a guard for a run; the process ends soon after the first signal.

  The exit status is 0, 130 after a second Ctrl-C, and 1 where the boundary
  could not be saved. A repeated SIGTERM changes nothing: supervisors repeat it.

  Args:
    checkpoints: folder of the run's checkpoints, maybe in a bucket.
    grace_s: most time from the signal to the end of the process, [s].
  """
  with interrupt.Guard(is_watched=True) as guard, _heard() as numbers:
    end = _End(guard, checkpoints, grace_s)
    threading.Thread(
      target=end.watch, args=[numbers], name='stopping', daemon=True
    ).start()
    yield guard


@contextlib.contextmanager
def at_once() -> Iterator[list[Callable[[], None]]]:
  """Ends the process at the first signal: one line, no traceback.

  Yields what is called before, in this order, to which may be added; a second
  signal ends it whatever that does.
  """
  before_end: list[Callable[[], None]] = []

  def call_all() -> None:
    for call in before_end:
      call()

  def end(numbers: socket.socket) -> None:
    with numbers, contextlib.suppress(OSError):  # it is closed
      while not (number := _next(numbers, None)):
        pass
      calls = threading.Thread(target=call_all, daemon=True)
      calls.start()
      while calls.is_alive() and not _next(numbers, _LOOK_S):
        pass
      leave(128 + number, 'dapo-jax: interrupted', is_error=True)

  before = {n: signal.signal(n, lambda *_: None) for n in _NUMBERS}
  try:
    with _heard() as numbers:
      threading.Thread(target=end, args=[numbers], daemon=True).start()
      yield before_end
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def leave(
  status: int,
  line: str = '',
  *,
  is_error: bool = False,
  last: Callable[[], None] = lambda: None,
) -> None:
  """Ends the process now, after a last line and call; waits for no thread."""
  # Not sys.stdout: a live bar stands there, and the line goes below it.
  out = sys.__stderr__ if is_error else sys.__stdout__
  with contextlib.suppress(Exception):
    if line and out.isatty():
      out.write('\n' + _SHOW_CURSOR)
    if line:
      out.write(line + '\n')
      out.flush()
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(Exception):
      stream.flush()
  last()
  os._exit(status)


def newest_step(checkpoints: epath.Path) -> int | None:
  """Returns the newest checkpoint that is whole, if the folder can be read."""
  with contextlib.suppress(ValueError):
    return max(checkpoint_folder.look(checkpoints).whole, default=None)
  return None


class _End:
  """How a process ends after a signal."""

  def __init__(
    self,
    guard: interrupt.Guard,
    checkpoints: epath.Path,
    grace_s: float,
  ):
    self._guard = guard
    self._checkpoints = checkpoints
    self._grace_s = grace_s
    self._leaving = threading.Lock()

  def watch(self, numbers: socket.socket) -> None:
    """Waits for a signal, then for the end; returns when all is done."""
    with numbers, contextlib.suppress(OSError):  # it is closed
      while not _next(numbers, None):
        pass
      begin = time.monotonic()
      self._guard.request()
      self._after(0.0, self._guard.job.tell_stop)
      self._after(_TELL_FRAC * self._grace_s, self._leave)
      self._after(self._grace_s, lambda: os._exit(0))
      self._announce()
      while True:
        number = _next(numbers, _LOOK_S)
        now = time.monotonic()
        if number == signal.SIGINT and now > begin + _ECHO_S:
          saved = newest_step(self._checkpoints)
          self._leave(130, f'stopped at once; {interrupt.next_line(saved)}')
        moment = self._guard.moment()
        if self._is_lost(moment, begin + _TELL_FRAC * self._grace_s):
          self._leave()
        if moment.phase is interrupt.Phase.BOUNDARY:
          if now > max(begin, moment.since_s) + _PATIENCE_S:
            # In a thread of its own: a second Ctrl-C is still heard.
            self._after(0.0, self._save)

  def _is_lost(self, moment: interrupt.Moment, until_s: float) -> bool:
    """Says whether waiting is of no use."""
    if moment.phase is interrupt.Phase.UPDATE:
      return moment.since_s + self._guard.update_s > until_s
    return moment.phase in (
      interrupt.Phase.LOADING,
      interrupt.Phase.COMPILING,
    )

  def _save(self) -> None:
    """Saves the boundary while the main thread does something else."""
    moment = self._guard.take_over()
    if moment is None:
      return
    if (
      moment.save is not None and newest_step(self._checkpoints) != moment.step
    ):
      try:
        moment.save()
      except ValueError as error:
        self._leave(1, f'dapo-jax: error: {error}', is_error=True)
      except BaseException:
        traceback.print_exc()
        self._leave(1)
    self._leave()

  def _announce(self) -> None:
    """Says what is waited for, if anything is."""
    moment = self._guard.moment()
    step = moment.step
    what = {
      interrupt.Phase.BOUNDARY: f'stopping at step {step}',
      interrupt.Phase.UPDATE: f'stopping after the update of step {step + 1}',
      interrupt.Phase.WRITING: 'stopping when all is written',
    }.get(moment.phase)
    if what and self._guard.job.is_first:
      print(
        f'{what}, within {self._grace_s:g} s (Ctrl-C: at once)',
        flush=True,
      )

  def _leave(
    self, status: int = 0, line: str = '', *, is_error: bool = False
  ) -> None:
    # Never released: one thread ends the process, unless it hangs there.
    if self._leaving.acquire(timeout=_PATIENCE_S):
      line = line or interrupt.last_line(
        self._guard.moment(), newest_step(self._checkpoints)
      )
      is_told = self._guard.job.is_first or is_error
      leave(
        status,
        line if is_told else '',
        is_error=is_error,
        # After the line: it may take what is left of the grace time.
        last=self._guard.job.part,
      )
    os._exit(status)

  def _after(self, seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


@contextlib.contextmanager
def _heard() -> Iterator[socket.socket]:
  """Yields a socket that the numbers of signals come in at, whatever runs."""
  ours, theirs = socket.socketpair()
  theirs.setblocking(False)
  before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
  try:
    yield ours
  finally:
    signal.set_wakeup_fd(before)
    theirs.close()


def _next(numbers: socket.socket, timeout_s: float | None) -> int | None:
  """Returns the next SIGINT or SIGTERM; None when there is none in time.

  Raises:
    OSError: there will be none any more.
  """
  numbers.settimeout(timeout_s)
  try:
    found = numbers.recv(1)
  except TimeoutError:
    return None
  if not found:
    raise OSError
  return found[0] if found[0] in _NUMBERS else None

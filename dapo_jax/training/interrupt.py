"""Ctrl-C and SIGTERM: once ends a run at a safe place, twice at once."""

import signal
import types


class Interrupted(Exception):
  """The run was asked to stop, and this place is safe to stop at."""


class Guard:
  """While entered, notes the first signal instead of dying of it."""

  def __init__(self):
    self.requested = False
    self._before: dict[int, object] = {}

  def __enter__(self) -> 'Guard':
    for number in (signal.SIGINT, signal.SIGTERM):
      self._before[number] = signal.signal(number, self._note)
    return self

  def __exit__(self, *exc) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def check(self) -> None:
    """Raises Interrupted when a signal came; called at safe places only."""
    if self.requested:
      raise Interrupted

  def _note(self, number: int, frame: types.FrameType | None) -> None:
    del number, frame
    if self.requested:
      raise KeyboardInterrupt
    self.requested = True

"""Seconds spent in the named parts of a step."""

import contextlib
import time
from collections.abc import Iterator


class Timers:
  """Adds up wall time by metric name until it is taken."""

  def __init__(self):
    self._seconds: dict[str, int | float] = {}

  @contextlib.contextmanager
  def measure(self, name: str) -> Iterator[None]:
    """Adds the time inside the `with` block to `name`."""
    begin = time.perf_counter()
    try:
      yield
    finally:
      self.add(name, time.perf_counter() - begin)

  def add(self, name: str, seconds: float) -> None:
    """Adds seconds that were measured elsewhere."""
    self._seconds[name] = self._seconds.get(name, 0.0) + seconds

  def take(self) -> dict[str, int | float]:
    """Returns the seconds so far and starts again from none."""
    seconds, self._seconds = self._seconds, {}
    return seconds

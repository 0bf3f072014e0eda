"""Verifiers of several functions, each started when it is first needed.

Host only. Where all answers are integers no process is ever started.
"""

import threading
from typing import NamedTuple

from dapo_jax.rewards import verifiers


class Limits(NamedTuple):
  """What the worker processes of a function may take."""

  processes: int
  limit_s: float
  memory_gib: float


class Pools:
  """A pool of worker processes for every function; to be closed."""

  def __init__(self, limits: Limits):
    self._limits = limits
    self._lock = threading.Lock()
    self._pools: dict[verifiers.Function, verifiers.Verifiers] = {}
    self._closed = False

  def equal(self, function: verifiers.Function, answer: str, gold: str) -> bool:
    """Returns the function's verdict; False where it gives none.

    Raises:
      LoadError: a process could not load the function.
      RuntimeError: this is closed.
    """
    return self._pool(function).verdict(answer, gold).equal

  def counts(self) -> verifiers.Counts:
    """Returns how many pairs had no verdict so far."""
    found = [pool.counts() for pool in self._all()]
    return verifiers.Counts(
      timeouts=sum(c.timeouts for c in found),
      errors=sum(c.errors for c in found),
    )

  def last_fault(self) -> str:
    """Returns why a pair had no verdict, in one line; '' = all had one."""
    return next(filter(None, (p.last_fault() for p in self._all())), '')

  def close(self) -> None:
    """Ends all processes; whoever waits is told."""
    with self._lock:
      self._closed = True
    for pool in self._all():
      pool.close()

  def _all(self) -> list[verifiers.Verifiers]:
    with self._lock:
      return list(self._pools.values())

  def _pool(self, function: verifiers.Function) -> verifiers.Verifiers:
    with self._lock:
      if self._closed:
        raise RuntimeError('the verifiers are closed')
      if function not in self._pools:
        # Within the lock: who asks meanwhile would have to wait as well.
        self._pools[function] = verifiers.Verifiers(
          function,
          processes=self._limits.processes,
          limit_s=self._limits.limit_s,
          memory_gib=self._limits.memory_gib,
        )
      return self._pools[function]

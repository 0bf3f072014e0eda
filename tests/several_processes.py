"""Runs of several real processes of this machine, for tests."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

_TESTS = pathlib.Path(__file__).parent


class Ended(NamedTuple):
  """How a process ended."""

  status: int
  output: str


class Processes:
  """Some processes that work together."""

  def __init__(
    self,
    program: Sequence[str],
    *,
    count: int,
    devices: int,
    logs: pathlib.Path,
    also: Sequence[Sequence[str]] | None = None,
  ):
    """Starts them.

    Args:
      program: what Python runs, and its flags; how the processes find each
        other is added.
      count: of processes; one alone is told of no others.
      devices: virtual ones of each.
      logs: folder of their outputs.
      also: further flags, of each.
    """
    logs.mkdir(parents=True, exist_ok=True)
    address = f'127.0.0.1:{_free_port()}'
    own = {
      'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
      'NPROC': str(8 * devices),
      'PYTHONPATH': os.pathsep.join([str(_TESTS), *sys.path]),
    }
    self._logs = [logs / f'{i}.txt' for i in range(count)]
    self.running = []
    for i, log in enumerate(self._logs):
      others = [
        f'--coordinator={address}',
        f'--processes={count}',
        f'--process={i}',
      ]
      with open(log, 'w') as file:
        process = subprocess.Popen(
          [
            sys.executable,
            *program,
            *(others if count > 1 else ()),
            *(also[i] if also else ()),
          ],
          stdout=file,
          stderr=subprocess.STDOUT,
          cwd=_TESTS.parent,
          env=os.environ | own,
        )
      self.running.append(process)

  def wait(self, limit_s: float = 300.0) -> list[Ended]:
    """Returns how they ended; kills those that do not in time."""
    until_s = time.monotonic() + limit_s
    for process in self.running:
      try:
        process.wait(max(0.0, until_s - time.monotonic()))
      except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return [
      Ended(process.returncode, log.read_text())
      for process, log in zip(self.running, self._logs, strict=True)
    ]

  def wait_until(
    self, is_so: Callable[[], bool], *, limit_s: float = 200.0
  ) -> None:
    """Returns when it is so; fails where a process ends before."""
    until_s = time.monotonic() + limit_s
    while not is_so():
      ended = [p.poll() for p in self.running if p.poll() is not None]
      if ended or time.monotonic() > until_s:
        outputs = [log.read_text()[-2000:] for log in self._logs]
        raise AssertionError(f'not so in time; {ended}; {outputs}')
      time.sleep(0.05)


def _free_port() -> int:
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    return free.getsockname()[1]

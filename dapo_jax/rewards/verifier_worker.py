"""What a worker process does: it gives verdicts to its parent, one at a time.

Host only. `rewards.verifier_process` runs this file, before the parent's
import paths are known: it imports the standard library alone. The two speak
over a socket, of which each holds one end.
"""

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

_SIZE_BYTES = 4
_READ_BYTES = 1 << 16
# Characters of what went wrong: some exceptions quote a whole expression.
_FAULT_CHARACTERS = 500
_PR_SET_PDEATHSIG = 1


class Load(NamedTuple):
  """The first message to a worker: where its function is."""

  # sys.path of the parent.
  paths: list[str]
  module: str
  name: str


class Reply(NamedTuple):
  """A worker's answer to every message."""

  equal: bool
  # What went wrong, in one line; empty if nothing did.
  fault: str
  # It is the last one; the process ends.
  ends: bool


def send(connection: socket.socket, message: Sequence) -> None:
  """Sends what JSON can say."""
  text = json.dumps(message).encode()
  connection.sendall(len(text).to_bytes(_SIZE_BYTES, 'big') + text)


def receive(connection: socket.socket, *, until_s: float | None = None) -> list:
  """Returns the next message; there is none behind it yet.

  Args:
    connection: one end.
    until_s: the time of `time.monotonic` to wait until, [s]; None = for ever.
      A message that is there is returned at any time.

  Raises:
    EOFError: the other end is closed.
    TimeoutError: it is too late.
    ValueError: what came is no message.
  """
  text = b''
  size = _SIZE_BYTES
  while len(text) < size:
    if until_s is not None:
      # Above 0, so that a reader that comes late still looks.
      connection.settimeout(max(until_s - time.monotonic(), 1e-3))
    part = connection.recv(_READ_BYTES)
    if not part:
      raise EOFError
    text += part
    if len(text) >= _SIZE_BYTES:
      size = _SIZE_BYTES + int.from_bytes(text[:_SIZE_BYTES], 'big')
  message = json.loads(text[_SIZE_BYTES:])
  if not isinstance(message, list):
    raise ValueError(f'a message must be a list, not {type(message)}')
  return message


def serve(connection: socket.socket) -> None:
  """Loads the function that the first message names, then gives verdicts.

  Returns after the last reply, or when the other end is closed.
  """
  with contextlib.suppress(EOFError, ConnectionError):
    try:
      function = _load(Load(*receive(connection)))
    except BaseException as error:
      send(connection, Reply(False, _fault(error), ends=True))
      return
    send(connection, Reply(False, '', ends=False))
    process = os.getpid()
    while True:
      answer, gold = receive(connection)
      reply = verdict(function, answer, gold)
      if os.getpid() != process:
        # A copy that the function has made: its replies would be taken for
        # those to other pairs.
        os._exit(0)
      send(connection, reply)
      if reply.ends:
        return


def verdict(
  function: Callable[[str, str], bool], answer: str, gold: str
) -> Reply:
  """Returns what a function says of a pair.

  What it raises is a fault, whatever that is, and so is a result that is no
  bool: an object that happens to be true would pay.
  """
  try:
    equal = function(answer, gold)
  except BaseException as error:
    # A process whose memory is full would fail the next pair too.
    goes_on = isinstance(error, Exception) and not isinstance(
      error, MemoryError
    )
    return Reply(False, _fault(error), ends=not goes_on)
  if not isinstance(equal, bool):
    return Reply(False, f'the result is of {type(equal)}, no bool', ends=False)
  return Reply(equal, '', ends=False)


def confine(*, memory_bytes: int, parent: int) -> None:
  """Limits this process's memory, and binds its life to that of its parent.

  SIGINT and SIGTERM are the parent's affair: it may finish its step first, and
  for that it needs verdicts.

  Args:
    memory_bytes: most address space, [bytes].
    parent: process id of the parent.
  """
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  if sys.platform == 'linux':
    # The end of the connection says the same, but not to one that computes.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
      os._exit(1)  # it died before that call
  _, most = resource.getrlimit(resource.RLIMIT_AS)
  if most != resource.RLIM_INFINITY:
    memory_bytes = min(memory_bytes, most)
  resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _load(load: Load) -> Callable[[str, str], bool]:
  sys.path[:] = load.paths
  return getattr(importlib.import_module(load.module), load.name)


def _fault(error: BaseException) -> str:
  """Returns one line."""
  text = ' '.join(f'{type(error).__name__}: {error}'.split())
  return text[:_FAULT_CHARACTERS].rstrip(': ')


def _main(descriptor: int, parent: int, memory_bytes: int) -> None:
  confine(memory_bytes=memory_bytes, parent=parent)
  with socket.socket(fileno=descriptor) as connection:
    serve(connection)


if __name__ == '__main__':
  try:
    _main(*map(int, sys.argv[1:]))
  finally:
    os._exit(0)  # nothing that the function has begun is waited for

"""One worker process, seen from its parent.

Host only. The process is a new interpreter, neither a fork, since jax runs
threads in the parent, nor one of multiprocessing, which would run the parent's
main module again.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from dapo_jax.rewards import verifier_worker

# Says if (answer, gold) are equal; MODULE:NAME of one that only the processes
# are to import.
Function = Callable[[str, str], bool] | str

# The longest time that loading the function may take, [s].
_LOAD_S = 60.0
_ENVIRONMENT = {
  # Several processes use the cores; a pool of threads in each would only take
  # address space.
  **dict.fromkeys(
    ('MKL_NUM_THREADS', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'), '1'
  ),
  # The order of a set must not make a verdict depend on the process.
  'PYTHONHASHSEED': '0',
}


class LoadError(RuntimeError):
  """A worker could not load the function."""


class EndedError(RuntimeError):
  """A worker ended instead of giving a verdict."""


class Worker:
  """A process that gives verdicts; to be ended by `end`.

  On Linux it dies when the thread that started it ends: keep that thread.
  """

  def __init__(self, *, memory_gib: float):
    """Starts the process; returns at once.

    Args:
      memory_gib: most address space of the process, [GiB].
    """
    self._connection, theirs = socket.socketpair()
    arguments = (theirs.fileno(), os.getpid(), int(memory_gib * (1 << 30)))
    try:
      with theirs:
        self._process = subprocess.Popen(
          # -P: the file's folder is no place to import from.
          [sys.executable, '-P', verifier_worker.__file__]
          + [str(argument) for argument in arguments],
          stdin=subprocess.DEVNULL,
          stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL,
          pass_fds=(theirs.fileno(),),
          # A group of its own: a terminal's Ctrl-C is the parent's affair, and
          # what the function has started ends with it.
          process_group=0,
          env=os.environ | _ENVIRONMENT,
        )
    except BaseException:
      self._connection.close()
      raise
    self.verdicts = 0

  def load(self, module: str, name: str) -> None:
    """Makes the process import its function; waits for that.

    Raises:
      LoadError: it could not.
    """
    try:
      reply = self._reply(
        verifier_worker.Load(sys.path, module, name), limit_s=_LOAD_S
      )
      fault = reply.fault
    except TimeoutError:
      fault = f'it takes more than {_LOAD_S:g} s'
    except EndedError as error:
      fault = str(error)
    if fault:
      raise LoadError(
        f'a worker process cannot load {name} of module {module}: {fault}'
      )

  def verdict(
    self, answer: str, gold: str, *, limit_s: float
  ) -> verifier_worker.Reply:
    """Returns the process's verdict. After an exception, it is to be ended.

    Raises:
      TimeoutError: there was none within the limit.
      EndedError: the process ended.
    """
    self.verdicts += 1
    return self._reply((answer, gold), limit_s=limit_s)

  def hang_up(self) -> None:
    """Makes a wait for the process end in `EndedError`, in any thread."""
    with contextlib.suppress(OSError):  # it has ended
      self._connection.shutdown(socket.SHUT_RDWR)

  def end(self) -> int:
    """Kills the process, if it is alive; returns its exit code."""
    # It is not waited for before this, so its id is no other process's.
    if self._process.returncode is None:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self._process.pid, signal.SIGKILL)
    self._connection.close()
    return self._process.wait()

  def _reply(self, message: tuple, *, limit_s: float) -> verifier_worker.Reply:
    until_s = time.monotonic() + limit_s
    try:
      self._connection.settimeout(limit_s)
      verifier_worker.send(self._connection, message)
      message = verifier_worker.receive(self._connection, until_s=until_s)
      reply = verifier_worker.Reply(*message)
    except TimeoutError:
      raise
    except (TypeError, ValueError) as error:
      # The function has written to the connection: nothing in it counts.
      self.end()
      raise EndedError('its reply was no message') from error
    except (EOFError, OSError) as error:
      raise EndedError(_exit_text(self.end())) from error
    return reply


def module_and_name(function: Function) -> tuple[str, str]:
  """Returns from where a process can import a function.

  Raises:
    ValueError: it is not at the top of a module that can be imported.
  """
  if isinstance(function, str):
    module, _, name = function.partition(':')
    return module, name
  module = getattr(function, '__module__', None)
  name = getattr(function, '__qualname__', None)
  # A dot is in the names of methods and of functions within functions.
  is_found = name and '.' not in name and '<' not in name
  if not module or not is_found or module == '__main__':
    raise ValueError(
      f'the function of the verifiers ({function!r}) must be defined at the '
      'top of a module other than the main one: worker processes import it'
    )
  return module, name


def _exit_text(code: int) -> str:
  if code >= 0:
    return f'the process ended with exit code {code}'
  return f'the process was ended by {signal.Signals(-code).name}'

"""Compiles a program for absent devices and says what the compiler found."""

import contextlib
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from dapo_jax.planning import step_programs as programs

# "Used 25.31G of 15.75G hbm", or "temporaries (34.61G) exceeds available HBM".
_USED_HBM = re.compile(
  r'Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm'
  r'|\(([\d.]+)([KMGT]?)\) exceeds available HBM \([\d.]+[KMGT]?\)'
)
_UNITS = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}
_VMEM = re.compile(r'vmem', re.IGNORECASE)
# Of a text that says nothing we know, so much is passed on.
_TEXT_CHARS = 300


class Memory(NamedTuple):
  """What a program takes of a device, [B]."""

  arguments: int
  results: int
  aliased: int  # of the results, that lie where arguments were
  temporary: int
  host: int  # of the host's memory

  @property
  def total(self) -> int:
    """Of the device's memory."""
    return self.arguments + self.results - self.aliased + self.temporary


class Fault(NamedTuple):
  """Why a program was not compiled."""

  # 'hbm', it needs more memory than a device has; 'vmem', a kernel needs more
  # of the memory of a core: other block sizes, not other shards, would help;
  # 'compiler', anything else.
  kind: str
  text: str
  needed_bytes: int | None = None  # of 'hbm', where it is said
  # Whether these are temporaries alone, beside which arguments are.
  is_of_temporaries: bool = False


class Compiled(NamedTuple):
  """What came of a compilation; without a fault there are memory and HLO."""

  memory: Memory | None
  hlo: str
  fault: Fault | None
  cpu_s: float


def trace(program: programs.Program) -> Any:
  """Returns the program traced, with its jaxpr."""
  with _devices_of(program):
    return program.jitted.trace(*program.args, **program.kwargs)


def lower(program: programs.Program, traced: Any) -> Any:
  """Returns the traced program as it is given to the compiler."""
  with _devices_of(program):
    return traced.lower()


def compile_lowered(program: programs.Program, lowered: Any) -> Compiled:
  """Returns what the compiler says of it; what it prints is kept from view."""
  begin = _cpu_s()
  try:
    with _devices_of(program), quiet_stderr():
      compiled = lowered.compile()
  except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
    return Compiled(None, '', fault_of(str(error)), _cpu_s() - begin)
  found = compiled.memory_analysis()
  memory = Memory(
    found.argument_size_in_bytes,
    found.output_size_in_bytes,
    found.alias_size_in_bytes,
    found.temp_size_in_bytes,
    found.host_temp_size_in_bytes,
  )
  return Compiled(memory, compiled.as_text(), None, _cpu_s() - begin)


def fault_of(text: str) -> Fault:
  """Returns what a compiler's message means."""
  if used := _USED_HBM.search(text):
    number, unit = (used[1], used[2]) if used[1] else (used[3], used[4])
    needed = round(float(number) * _UNITS[unit])
    return Fault('hbm', _shortened(text), needed, is_of_temporaries=not used[1])
  if _VMEM.search(text):
    return Fault('vmem', _shortened(text))
  return Fault('compiler', _shortened(text))


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
  """Keeps what C++ code prints off the terminal: what matters is raised."""
  sys.stderr.flush()
  terminal = os.dup(2)
  with tempfile.TemporaryFile() as hidden:
    os.dup2(hidden.fileno(), 2)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(terminal, 2)
      os.close(terminal)


def _devices_of(program: programs.Program):
  """Returns the context in which kernels know the chip they are made for."""
  if program.phase == programs.UPDATE:
    return contextlib.nullcontext()
  return jax.set_mesh(program.mesh)


def _shortened(text: str) -> str:
  words = ' '.join(text.split())
  return words if len(words) <= _TEXT_CHARS else words[:_TEXT_CHARS] + '...'


def _cpu_s() -> float:
  used = resource.getrusage(resource.RUSAGE_SELF)
  return used.ru_utime + used.ru_stime

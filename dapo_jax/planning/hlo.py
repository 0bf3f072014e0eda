"""Compiled programs as text: their computations, and how often each runs.

What is read is XLA's HLO as TPUs get it, `compiled.as_text()`: a list of
computations, of which instructions call others.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from dapo_jax.planning import counts


class Instruction(NamedTuple):
  """One line of a computation."""

  name: str
  shape: str  # of its result, with types and layouts
  op: str
  rest: str  # operands, then attributes
  is_root: bool


# By name; their instructions in order.
Computations = Mapping[str, tuple[Instruction, ...]]


class Module(NamedTuple):
  """A program, as each device of a slice runs it."""

  computations: Computations
  # How often a device runs a computation; those that it never runs are not in.
  runs: Mapping[str, counts.Counts]
  loops: int  # dynamic ones
  partitions: int  # devices of a slice


_HEAD = re.compile(r'(ENTRY )?%?([\w.-]+) \(.*-> .*\{$')
_LINE = re.compile(r'\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$')
_END = re.compile(r'\}(?:, execution_thread=.*)?$')
_NAME = re.compile(r'%([\w.-]+)')
_CALLED = re.compile(r'(?:calls|to_apply|called_computations)=\{?%?([\w.-]+)')
_BRANCH_LIST = re.compile(
  r'branch_computations=\{([^}]*)\}'
  r'|true_computation=%?([\w.-]+), false_computation=%?([\w.-]+)'
)
_BODY = re.compile(r'body=%?([\w.-]+)')
_CONDITION = re.compile(r'condition=%?([\w.-]+)')
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_PARTITIONS = re.compile(r'num_partitions=(\d+)')
_INDEX = re.compile(r'index=(\d+)')
_NUMBER = re.compile(r'(-?\d+)\)')
_DIRECTION = re.compile(r'direction=(\w\w)')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# They call what they name; others name what combines two of their numbers.
_CALLS = ('fusion', 'call', 'call-start', 'async-start', 'custom-call')


def parse(text: str) -> Module:
  """Returns a program from its text.

  A loop whose condition compares its counter with a constant is static and
  multiplied out. Any other is dynamic; one inside another counts once for each
  trip of that one. A loop's condition counts as often as its body. Of the
  branches of a condition the one of most estimated cycles counts.
  """
  computations: dict[str, tuple[Instruction, ...]] = {}
  entry, name, lines = '', '', []
  for line in text.splitlines():
    if line.startswith(' '):
      match = _LINE.match(line)
      if match and name:
        root, *parts = match.groups()
        lines.append(Instruction(*parts, is_root=bool(root)))
    elif _END.match(line):
      computations[name] = tuple(lines)
      name, lines = '', []
    elif name and lines:
      # What a kernel says of itself has several lines.
      lines[-1] = lines[-1]._replace(rest=lines[-1].rest + line)
    elif line.endswith('{') and (match := _HEAD.match(line)):
      name, lines = match[2], []
      entry = name if match[1] else entry
  header = _PARTITIONS.search(text[: text.find('\n')])
  runs, loops = _runs(computations, entry)
  return Module(computations, runs, loops, int(header[1]) if header else 1)


def running(module: Module) -> Iterator[tuple[str, Instruction, counts.Counts]]:
  """Returns every instruction that runs, with its computation and how often."""
  for name, times in module.runs.items():
    for instruction in module.computations[name]:
      yield name, instruction, times


def cycles(instruction: Instruction) -> int | None:
  """Returns how many cycles the compiler thinks that one takes, if it says."""
  match = _CYCLES.search(instruction.rest)
  return int(match[1]) if match else None


def called(instruction: Instruction) -> str | None:
  """Returns the computation that an instruction calls, loops aside."""
  if instruction.op not in _CALLS:
    return None
  match = _CALLED.search(instruction.rest)
  return match[1] if match else None


def operands(instruction: Instruction) -> list[str]:
  """Returns the names of an instruction's operands."""
  end = instruction.rest.find('), ')
  return _NAME.findall(instruction.rest[: end if end >= 0 else None])


def _branches(instruction: Instruction) -> list[str]:
  match = _BRANCH_LIST.search(instruction.rest)
  if match is None:
    return []
  if match[1] is None:
    return [match[2], match[3]]
  return [name.strip().lstrip('%') for name in match[1].split(',')]


def _runs(
  computations: Computations, entry: str
) -> tuple[dict[str, counts.Counts], int]:
  """Returns how often each computation runs, and how many loops are dynamic."""
  cost = _costs(computations)
  times: dict[str, dict[int, float]] = {}
  loops = 0

  def visit(name: str, section: int, often: float, counts_at_all: bool):
    nonlocal loops
    if counts_at_all:
      mine = times.setdefault(name, {})
      mine[section] = mine.get(section, 0) + often
    for one in computations.get(name, ()):
      if one.op == 'while':
        trips = _trips(computations, name, one)
        inside, factor = section, often * (1 if trips is None else trips)
        if trips is None and section == 0:
          loops += 1
          inside = loops
        visit(_CONDITION.search(one.rest)[1], inside, factor, counts_at_all)
        visit(_BODY.search(one.rest)[1], inside, factor, counts_at_all)
      elif one.op == 'conditional':
        branches = _branches(one)
        most = max(branches, key=cost)
        for branch in branches:
          # All of them, so that loops have the numbers they have in jaxprs.
          visit(branch, section, often, counts_at_all and branch == most)
      elif (inner := called(one)) is not None:
        visit(inner, section, often, counts_at_all)

  visit(entry, 0, 1.0, True)
  found = {
    name: tuple(mine.get(i, 0.0) for i in range(loops + 1))
    for name, mine in times.items()
    if name in computations
  }
  return found, loops


def _costs(computations: Computations) -> Callable[[str], tuple[float, int]]:
  """Returns a function of a computation: its cycles, else its instructions.

  Dynamic loops make one trip.
  """

  @functools.cache
  def cost(name: str) -> tuple[float, int]:
    total, lines = 0.0, len(computations.get(name, ()))
    for one in computations.get(name, ()):
      own = cycles(one)
      total += own or 0
      inner = called(one)
      if one.op == 'while':
        trips = _trips(computations, name, one)
        body = cost(_BODY.search(one.rest)[1])[0]
        total += body * (1 if trips is None else trips)
      elif one.op == 'conditional':
        total += max(cost(branch)[0] for branch in _branches(one))
      elif inner is not None and own is None:
        total += cost(inner)[0]
    return total, lines

  return cost


def _trips(
  computations: Computations, caller: str, loop: Instruction
) -> int | None:
  """Returns how many trips a static loop makes; None of a dynamic one."""
  known = _KNOWN_TRIPS.search(loop.rest)
  if known:
    return int(known[1])
  condition = computations[_CONDITION.search(loop.rest)[1]]
  by_name = {one.name: one for one in condition}
  root = next(one for one in condition if one.is_root)
  if root.op != 'compare':
    return None
  found = [_through(by_name, name) for name in operands(root)]
  limit = next((c for c in map(_constant, found) if c is not None), None)
  index = next((i for i in map(_element, found) if i is not None), None)
  if limit is None or index is None:
    return None
  begin = _begin(computations[caller], loop, index)
  step = _step(computations[_BODY.search(loop.rest)[1]], index)
  direction = _DIRECTION.search(root.rest)[1]
  more = 1 if direction in ('LE', 'GE') else 0
  return max(0, math.ceil((abs(limit - begin) + more) / step))


def _through(
  by_name: Mapping[str, Instruction], name: str
) -> Instruction | None:
  """Returns the instruction of a name, behind those that only move it."""
  one = by_name.get(name)
  while one and one.op in ('copy', 'bitcast', 'copy-start', 'copy-done'):
    one = by_name.get(operands(one)[0])
  return one


def _constant(one: Instruction | None) -> int | None:
  if one is None or one.op != 'constant':
    return None
  match = _NUMBER.match(one.rest)
  return int(match[1]) if match else None


def _element(one: Instruction | None) -> int | None:
  if one is None or one.op != 'get-tuple-element':
    return None
  return int(_INDEX.search(one.rest)[1])


def _begin(
  caller: tuple[Instruction, ...], loop: Instruction, index: int
) -> int:
  """Returns where a loop's counter begins: 0 unless a constant is found."""
  by_name = {one.name: one for one in caller}
  given = by_name.get(operands(loop)[0])
  if given is None or given.op != 'tuple':
    return 0
  return _constant(_through(by_name, operands(given)[index])) or 0


def _step(body: tuple[Instruction, ...], index: int) -> int:
  """Returns what a trip adds to a loop's counter: 1 unless it is found."""
  by_name = {one.name: one for one in body}
  root = next(one for one in body if one.is_root)
  if root.op != 'tuple':
    return 1
  added = _through(by_name, operands(root)[index])
  if added is None or added.op != 'add':
    return 1
  steps = [_constant(_through(by_name, name)) for name in operands(added)]
  return next((abs(s) for s in steps if s), 1)

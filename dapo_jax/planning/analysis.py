"""What is known of one program: its work, its memory and its wires."""

from typing import Any, NamedTuple

from dapo_jax.planning import (
  collectives,
  compiling,
  counts,
  cycles,
  estimate,
  flops,
  hlo,
  plan_cache,
  step_programs,
)


class Report(NamedTuple):
  """Of one device, unless it says otherwise."""

  name: str
  phase: str
  loops: tuple[str, ...]
  work: estimate.Work
  # None where nothing was compiled, or it failed.
  memory: compiling.Memory | None
  fault: compiling.Fault | None
  sent: tuple[collectives.Collective, ...]
  # What compiling took, when it was done.
  compile_cpu_s: float
  is_cached: bool


class _Found(NamedTuple):
  """What the compiler says, as it is kept."""

  memory: compiling.Memory | None
  fault: compiling.Fault | None
  sent: tuple[collectives.Collective, ...]
  cycles: counts.Counts | None
  cpu_s: float


def report(
  program: step_programs.Program,
  *,
  topology: str,
  window_tokens: int | None,
  compiles: bool,
) -> Report:
  """Returns what is known of a program.

  Args:
    program: one of a configuration's.
    topology: the name of the devices; what was found for it before is kept.
    window_tokens: how many tokens one attends to; None = all before it.
    compiles: whether to ask the compiler.
  """
  traced = compiling.trace(program)
  counted = flops.count(traced.jaxpr, window_tokens=window_tokens)
  found, is_cached = _Found(None, None, (), None, 0.0), False
  if compiles:
    found, is_cached = _compiled(program, traced, topology)
  share = 1 / (program.sharing or program.mesh.size)
  nothing = (0.0,) * (len(program.loops) + 1)
  of = lambda over_dcn: counts.add(
    (one.bytes_sent for one in found.sent if one.over_dcn == over_dcn),
    loops=len(program.loops),
  )
  _check_loops(program, counted.matmul, found.cycles or nothing)
  return Report(
    name=program.name,
    phase=program.phase,
    loops=program.loops,
    work=estimate.Work(
      matmul_flops=counts.scaled(counted.matmul, share),
      attention_flops=counts.scaled(counted.attention, share),
      cycles=found.cycles,
      ici_bytes=of(False),
      dcn_bytes=of(True),
    ),
    memory=found.memory,
    fault=found.fault,
    sent=found.sent,
    compile_cpu_s=found.cpu_s,
    is_cached=is_cached,
  )


def _compiled(
  program: step_programs.Program, traced: Any, topology: str
) -> tuple[_Found, bool]:
  """Returns what the compiler says now, or said before."""
  lowered = compiling.lower(program, traced)
  # An engine's devices may be those of another slice.
  numbers = [device.id for device in program.mesh.devices.flat]
  key = plan_cache.key(lowered.as_text(), f'{topology} {numbers}')
  known = plan_cache.read(key)
  if known is not None:
    return _from_json(known), True
  compiled = compiling.compile_lowered(program, lowered)
  sent, counted = (), None
  if compiled.fault is None:
    module = hlo.parse(compiled.hlo)
    sent = collectives.find(module, dict(program.mesh.shape))
    both = cycles.count(module)
    counted = counts.add((both.matmul, both.other), loops=module.loops)
  found = _Found(compiled.memory, compiled.fault, sent, counted, compiled.cpu_s)
  plan_cache.write(key, found._asdict())
  return found, False


def _from_json(known: dict[str, Any]) -> _Found:
  """Returns what was kept: named tuples are lists there."""
  memory, fault, counted = known['memory'], known['fault'], known['cycles']
  return _Found(
    memory=memory and compiling.Memory(*memory),
    fault=fault and compiling.Fault(*fault),
    sent=tuple(
      collectives.Collective(
        kind, tuple(axes), over_dcn, tuple(sent), tuple(calls)
      )
      for kind, axes, over_dcn, sent, calls in known['sent']
    ),
    cycles=counted and tuple(counted),
    cpu_s=known['cpu_s'],
  )


def _check_loops(
  program: step_programs.Program, *several: counts.Counts
) -> None:
  """Raises where a program has other dynamic loops than it is known for."""
  for counted in several:
    if len(counted) != len(program.loops) + 1:
      raise AssertionError(
        f'{program.name} has {len(counted) - 1} loops whose trips are '
        f'arguments, not {len(program.loops)}: {", ".join(program.loops)}'
      )

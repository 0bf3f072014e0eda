"""The plan of a job: its programs, what its phases hold, and how long it takes.

Everything comes from the compiler, from shapes, or from the distribution of
lengths; nothing is run.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
from ml_collections import FrozenConfigDict

from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.planning import (
  analysis,
  job_shapes,
  step_programs,
  topology,
  workload,
)
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.training import layout


class Phase(NamedTuple):
  """The most that a device holds in a phase, and while which program."""

  name: str
  program: str
  bytes: int
  held: Mapping[str, int]  # arguments included, by name
  limit_bytes: int

  @property
  def fits(self) -> bool:
    """Whether a device has so much."""
    return self.bytes <= self.limit_bytes


class Plan(NamedTuple):
  """What is known of a job before it runs."""

  config: FrozenConfigDict
  spec: spec_lib.Spec
  slices: topology.Topology
  setup: job_shapes.Setup
  lengths: workload.Lengths
  programs: tuple[analysis.Report, ...]
  held: Mapping[str, int]  # see `job_shapes.held_bytes`
  phases: tuple[Phase, ...]
  sampling: workload.Sampling
  learning: workload.Learning

  @property
  def faults(self) -> list[analysis.Report]:
    """The programs that were not compiled."""
    return [report for report in self.programs if report.fault is not None]

  @property
  def fits(self) -> bool:
    """Whether all programs are compiled and all phases fit."""
    return not self.faults and all(phase.fits for phase in self.phases)


# Tells that a program is looked at: (its name, its number, how many).
OnProgram = Callable[[str, int, int], None]


def make(
  config: FrozenConfigDict,
  spec: spec_lib.Spec,
  slices: topology.Topology,
  lengths: workload.Lengths,
  *,
  compiles: bool = True,
  wanted: Callable[[step_programs.Program], bool] | None = None,
  on_program: OnProgram | None = None,
  devices: Sequence[jax.Device] | None = None,
) -> Plan:
  """Returns the plan of a job.

  Args:
    config: the run's.
    spec: its model.
    slices: what it is planned for.
    lengths: of prompts and responses.
    compiles: whether programs are compiled; else memory is that of what is
      held alone, and nothing is known of wires and cycles.
    wanted: says which programs are looked at; None = all.
    on_program: see `OnProgram`.
    devices: of the slices; None = as libtpu knows them.

  Raises:
    ValueError: where the configuration does not fit the devices, as a run says,
      or libtpu is not there.
  """
  setup = setup_of(config, spec, slices, devices)
  programs = step_programs.all_of(
    setup,
    prompt_tokens=(lengths.prompt_tokens, config.data.max_prompt_tokens),
  )
  programs = [p for p in programs if wanted is None or wanted(p)]
  reports = []
  for number, program in enumerate(programs, 1):
    if on_program:
      on_program(program.name, number, len(programs))
    reports.append(
      analysis.report(
        program,
        topology=f'{slices.name} x {slices.slices}',
        window_tokens=spec.window_tokens,
        compiles=compiles,
      )
    )
  held = job_shapes.held_bytes(setup)
  return Plan(
    config=config,
    spec=spec,
    slices=slices,
    setup=setup,
    lengths=lengths,
    programs=tuple(reports),
    held=held,
    phases=_phases(programs, reports, held, slices),
    sampling=workload.sampling(
      config,
      lengths,
      engines=setup.shares.engines,
      slots=live_slots(setup, lengths),
      window_tokens=spec.window_tokens,
    ),
    learning=workload.learning(
      config,
      lengths,
      row_tokens=layout.row_tokens(config),
      micro_batch_rows=layout.micro_batch_rows(config, setup.mesh),
      share_prompts=layout.shares_prompts(config, setup.mesh),
      window_tokens=spec.window_tokens,
    ),
  )


def setup_of(
  config: FrozenConfigDict,
  spec: spec_lib.Spec,
  slices: topology.Topology,
  devices: Sequence[jax.Device] | None = None,
) -> job_shapes.Setup:
  """Returns how a configuration is computed on slices, see `make`."""
  if devices is not None:
    return job_shapes.setup(config, spec, devices)
  return job_shapes.setup(
    config,
    spec,
    topology.devices(slices),
    functools.partial(topology.island, slices),
  )


class Room(NamedTuple):
  """What is left of a chip for the slots of an engine."""

  bytes: int
  slots: int  # whole rows of a shard
  pages: int | None  # of a shard; None without pages


def cache_room(plan: Plan) -> Room:
  """Returns how many slots and pages fit beside everything else.

  Where the programs that sample were not compiled, a tenth is left to them.
  """
  setup, held = plan.setup, plan.held
  beside = (*step_programs.STATE, 'engine params', 'prefix')
  left = round(plan.slices.chip.hbm_gib * 2**30)
  left -= sum(held[name] for name in beside)
  # There are no slots yet while the policy moves.
  sampling = [
    report
    for report in plan.programs
    if report.phase == step_programs.ROLLOUT
    and report.name not in step_programs.MOVING
  ]
  needs = [r.memory.temporary for r in sampling if r.memory is not None]
  # Of a program that was refused nothing is known.
  whole = needs and len(needs) == len(sampling)
  left = max(0, left - max(needs)) if whole else max(0, round(0.9 * left))
  limits = setup.limits
  shards = setup.engine_mesh.shape[mesh_lib.SLOT_AXIS]
  if limits.cache != 'paged':
    slot_bytes = held['slots'] * shards / limits.slots
    return Room(left, int(left / slot_bytes), None)
  pages_bytes = placement.device_bytes(job_shapes.slots(setup).cache.pages)
  page_bytes = pages_bytes / limits_lib.shard_pages(limits, shards)
  pages = max(0, int((left - (held['slots'] - pages_bytes)) / page_bytes))
  return Room(left, pages // limits_lib.row_pages(limits), pages)


def live_slots(setup: job_shapes.Setup, lengths: workload.Lengths) -> int:
  """Returns how many rows an engine decodes at a time: its slots, or fewer.

  Fewer where its pages are full before.
  """
  limits = setup.limits
  if limits.cache != 'paged' or limits.pages is None:
    return limits.slots
  shards = setup.engine_mesh.shape[mesh_lib.SLOT_AXIS]
  tokens = shards * limits.pages * limits.page_tokens
  fit = int(tokens / workload.live_context_tokens(lengths))
  return max(1, min(limits.slots, fit))


def _phases(
  programs: Sequence[step_programs.Program],
  reports: Sequence[analysis.Report],
  held: Mapping[str, int],
  slices: topology.Topology,
) -> tuple[Phase, ...]:
  """Returns of each phase the program at which a device holds the most."""
  limit = round(slices.chip.hbm_gib * 2**30)
  found = []
  for name in (step_programs.ROLLOUT, step_programs.UPDATE):
    most = None
    for program, report in zip(programs, reports, strict=True):
      if program.phase != name:
        continue
      beside = {key: held[key] for key in program.beside if held[key]}
      own = _own(program, report)
      total = sum(beside.values()) + sum(own.values())
      if most is None or total > most.bytes:
        most = Phase(name, program.name, total, beside | own, limit)
    if most is not None:
      found.append(most)
  return tuple(found)


def _own(
  program: step_programs.Program, report: analysis.Report
) -> dict[str, int]:
  """Returns what a device holds for a program itself, as far as is known."""
  if report.memory is not None:
    return {
      'arguments': report.memory.arguments,
      'results': report.memory.results - report.memory.aliased,
      'temporaries': report.memory.temporary,
    }
  needed = report.fault.needed_bytes if report.fault is not None else None
  if needed is not None and not report.fault.is_of_temporaries:
    return {'program': needed}
  own = {
    'arguments': placement.device_bytes((program.args, dict(program.kwargs)))
  }
  return own | ({} if needed is None else {'temporaries': needed})

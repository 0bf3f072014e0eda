"""What would fit, and what is fastest of it: other meshes and policies.

The update and the rollout are looked at apart, for they share no program. Of
the update's meshes every policy of rematerialisation is compiled, from the one
that recomputes least on, until one fits: those after it only cost more. An
engine's memory is known from shapes, but for what its programs need beside: of
the fastest they are compiled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
from ml_collections import FrozenConfigDict

from dapo_jax.model import spec as spec_lib
from dapo_jax.planning import (
  estimate,
  job_plan,
  job_shapes,
  step_programs,
  step_time,
  topology,
  workload,
)

# From what recomputes least to what holds least.
_REMATS = ('dots', 'attention', 'full', 'offload')
_TENSORS = (1, 2, 4, 8, 16)
# What an engine keeps free for its programs, of a chip's memory.
_SPARE_FRAC = 0.05
# Engines that are compiled, at most: a slower one may come first then.
_MOST_COMPILED = 3


class Choice(NamedTuple):
  """One way to set a phase up."""

  flags: Mapping[str, Any]  # by key of the configuration
  bytes: int  # that a chip holds at its most; 0 = not even known
  time: estimate.Range | None  # of the phase in a rollout step
  why_not: str  # '' where it fits


# Tells what is tried: (its flags, how many were before).
OnChoice = Callable[[Mapping[str, Any], int], None]


def updates(
  config: FrozenConfigDict,
  spec: spec_lib.Spec,
  slices: topology.Topology,
  lengths: workload.Lengths,
  *,
  on_choice: OnChoice | None = None,
) -> list[Choice]:
  """Returns ways to set the update up, those that fit first, the fastest first.

  Args:
    config: the run's; its mesh and policy are replaced.
    spec: the model.
    slices: the devices.
    lengths: of prompts and responses.
    on_choice: see `OnChoice`.
  """
  found: list[Choice] = []
  for tensor in _TENSORS:
    for remat in _REMATS:
      flags = {
        'mesh.data': slices.slices,
        'mesh.fsdp': -1,
        'mesh.tensor': tensor,
        'model.remat': remat,
        'learner.micro_batch_rows': None,
      }
      if on_choice:
        on_choice(flags, len(found))
      choice = _update(with_flags(config, flags), spec, slices, lengths, flags)
      if choice is None:
        break  # no such mesh, whatever the policy
      found.append(choice)
      if not choice.why_not:
        break
  return _ranked(found)


def engines(
  config: FrozenConfigDict,
  spec: spec_lib.Spec,
  slices: topology.Topology,
  lengths: workload.Lengths,
  *,
  compiles: bool = True,
) -> list[Choice]:
  """Returns ways to set the engines up, as `updates` does of the update.

  A twentieth of a chip is left to the programs. What comes first is compiled,
  and has fewer slots where its programs need more; if it is slower then, the
  next one is, and those that were compiled come first.

  Args:
    config: the run's; its engines are replaced.
    spec: the model.
    slices: the devices.
    lengths: of prompts and responses.
    compiles: whether to.
  """
  found = []
  for flags in _engine_flags(slices):
    choice = _engine(config, spec, slices, lengths, flags)
    if choice is not None:
      found.append(choice)
  found = _ranked(found)
  seen: list[Choice] = []
  while found and compiles and len(seen) < _MOST_COMPILED:
    first, *rest = found
    if first.why_not or first in seen:
      break
    seen.append(_compiled_engine(config, spec, slices, lengths, first))
    found = _ranked([seen[-1], *rest])
  # What is known to fit goes before what was not compiled any more.
  return sorted(found, key=lambda c: bool(c.why_not) or c not in seen)


def with_flags(
  config: FrozenConfigDict, flags: Mapping[str, Any]
) -> FrozenConfigDict:
  """Returns the configuration with other values."""
  changed = ml_collections.ConfigDict(config)
  with changed.ignore_type():
    changed.update_from_flattened_dict(dict(flags))
  return FrozenConfigDict(changed)


def _update(config, spec, slices, lengths, flags) -> Choice | None:
  """Returns the update of a configuration; None of a mesh that is refused."""
  try:
    plan = job_plan.make(config, spec, slices, lengths, wanted=_is_update)
  except ValueError:
    return None
  (report,), (phase,) = plan.programs, plan.phases
  if report.fault is not None:
    needed = report.fault.needed_bytes or 0
    why = 'memory' if report.fault.kind == 'hbm' else report.fault.text
    return Choice(flags, needed and phase.bytes, None, why)
  time = step_time.of_plan(plan).programs[report.name]
  return Choice(flags, phase.bytes, time, '' if phase.fits else 'memory')


def _is_update(program: step_programs.Program) -> bool:
  return program.name == step_programs.POLICY_UPDATE


def _engine_flags(slices: topology.Topology) -> Iterator[dict[str, Any]]:
  host = slices.devices // slices.hosts
  # The whole of a slice too, for those that take no program on a part.
  for hosts in sorted({1, 2, 4, 8, slices.hosts // slices.slices}):
    chips = host * hosts
    if hosts > slices.hosts or slices.devices % chips:
      continue
    for tensor in _TENSORS:
      if chips % tensor == 0:
        yield {'sampler.engine_chips': chips, 'sampler.tensor': tensor}


def _engine(config, spec, slices, lengths, flags) -> Choice | None:
  """Returns the rollout of a configuration; None of one that is refused."""
  free = with_flags(config, flags | {'sampler.cache_gib': None})
  try:
    held = job_shapes.held_bytes(job_plan.setup_of(free, spec, slices))
  except ValueError:
    return None
  limit = round(slices.chip.hbm_gib * 2**30)
  beside = (*step_programs.STATE, 'engine params', 'prefix')
  others = sum(held[name] for name in beside)
  left = limit - others - round(_SPARE_FRAC * limit)
  if left <= 0:
    return Choice(flags, others, None, 'memory')
  # As few digits as a person types; None where all slots find room.
  most = None if held['slots'] <= left else int(left / 2**30 * 10) / 10
  flags = flags | {'sampler.cache_gib': most}
  try:
    plan = _rollout_plan(with_flags(config, flags), spec, slices, lengths)
  except ValueError:
    return Choice(flags, others, None, 'memory')
  time = step_time.of_plan(plan).rollout
  return Choice(flags, others + plan.held['slots'], time, '')


def _compiled_engine(config, spec, slices, lengths, choice: Choice) -> Choice:
  """Returns a choice with as many slots as its programs, compiled, leave."""

  def plan_of(cache_gib):
    flags = choice.flags | {'sampler.cache_gib': cache_gib}
    changed = with_flags(config, flags)
    return flags, _rollout_plan(changed, spec, slices, lengths, compiles=True)

  asked_gib = choice.flags['sampler.cache_gib']
  flags, plan = plan_of(asked_gib)
  (phase,) = plan.phases
  if plan.fits:
    return choice._replace(bytes=phase.bytes)
  for report in plan.faults:
    if report.fault.kind != 'hbm':
      return choice._replace(why_not=report.fault.text, time=None)
  if not phase.fits and phase.program in step_programs.MOVING:
    # Before there are slots: those of the update's mesh have a long way.
    why = 'memory while the policy moves to it: mesh.tensor as sampler.tensor'
    return choice._replace(bytes=phase.bytes, why_not=why, time=None)
  # What is refused says nothing of what it needs: half of it does.
  half_gib = (asked_gib or plan.held['slots'] / 2**30) / 2
  try:
    half = plan_of(int(half_gib * 10) / 10)
    room = job_plan.cache_room(half[1]).bytes
    most = plan_of(int(0.99 * room / 2**30 * 10) / 10)
  except ValueError:  # too little for one row
    return choice._replace(why_not='memory', time=None)
  fitting = [way for way in (most, half) if way[1].fits]
  if not fitting:
    return choice._replace(why_not='memory', time=None)
  flags, plan = fitting[0]
  (phase,) = plan.phases
  # As that of the others, without the compiler's cycles.
  time = step_time.of_plan(
    _rollout_plan(with_flags(config, flags), spec, slices, lengths)
  )
  return Choice(flags, phase.bytes, time.rollout, '')


def _rollout_plan(
  config, spec, slices, lengths, *, compiles: bool = False
) -> job_plan.Plan:
  return job_plan.make(
    config,
    spec,
    slices,
    lengths,
    compiles=compiles,
    wanted=lambda p: p.phase == step_programs.ROLLOUT,
  )


def _ranked(found: Sequence[Choice]) -> list[Choice]:
  """Returns choices with the fastest first, and those that do not fit last."""
  return sorted(
    found,
    key=lambda c: (
      bool(c.why_not),
      c.time.low_s * c.time.high_s if c.time else c.bytes,
    ),
  )

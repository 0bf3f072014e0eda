"""A plan as JSON: the numbers behind its text, units in their names."""

from collections.abc import Mapping, Sequence
from typing import Any

from dapo_jax.planning import (
  analysis,
  estimate,
  job_plan,
  job_shapes,
  plan_cache,
  plan_text,
  step_time,
  sweep,
  topology,
)

_GIB = 2**30


def as_json(plan: job_plan.Plan) -> dict[str, Any]:
  """Returns what `json.dumps` takes; counts are [once, a trip of each loop]."""
  time = step_time.of_plan(plan)
  room = job_plan.cache_room(plan)
  setup, slices = plan.setup, plan.slices
  cheap, dear = step_time.chip_hours(plan, time)
  return {
    'model': plan.config.model.path,
    'params_count': job_shapes.params_count(setup),
    'topology': slices.name,
    'cloud_name': slices.cloud_name,
    'slices_count': slices.slices,
    'chips_count': slices.chips,
    'hosts_count': slices.hosts,
    'versions': plan_cache.versions(),
    'mesh': dict(setup.mesh.shape),
    'engine_mesh': dict(setup.engine_mesh.shape),
    'engines_count': setup.shares.engines,
    'attention': setup.attention,
    'remat': plan.config.model.remat,
    'cache': setup.limits.cache,
    'rows_shape': list(setup.rows_shape),
    'fits': plan.fits,
    'doubt': topology.doubt(slices, setup.engine_mesh.size),
    'phases': {
      phase.name: {
        'most_in': phase.program,
        'total_gib': phase.bytes / _GIB,
        'limit_gib': phase.limit_bytes / _GIB,
        'fits': phase.fits,
        'held_gib': {n: size / _GIB for n, size in phase.held.items()},
      }
      for phase in plan.phases
    },
    'room': {
      'gib': room.bytes / _GIB,
      'shard_slots': room.slots,
      'shard_pages': room.pages,
    },
    'programs': {report.name: _program(report) for report in plan.programs},
    'update_flops_ratio': plan_text.flops_ratio(plan),
    'lengths': plan.lengths._asdict(),
    'sampling': plan.sampling._asdict(),
    'learning': plan.learning._asdict(),
    'times_s': {
      'rollout': _range(time.rollout),
      'update': _range(time.update),
    },
    # All runs of each in a rollout step.
    'program_times_s': {
      name: _range(one) for name, one in time.programs.items()
    },
    'update_mfu_frac': time.update_mfu,
    'sampled_tokens_per_chip_s': time.sampled_tokens_per_chip_s,
    'updates_per_day': step_time.per_day(time.step, step_time.updates(plan)),
    'chip_hours': [cheap, dear],
    'slower_phase': step_time.slower_phase(time),
  }


def _program(report: analysis.Report) -> dict[str, Any]:
  return {
    'phase': report.phase,
    'loops': report.loops,
    'memory_bytes': report.memory and report.memory._asdict(),
    'fault': report.fault and report.fault._asdict(),
    'compile_cpu_s': report.compile_cpu_s,
    'was_known': report.is_cached,
    **report.work._asdict(),
    'sent': [one._asdict() for one in report.sent],
  }


def _range(time: estimate.Range) -> list[float]:
  return [time.low_s, time.high_s]


def choices(swept: Mapping[str, Sequence[sweep.Choice]]) -> dict[str, Any]:
  """Returns other ways to set phases up, by phase, the best first."""
  return {
    'choices': {
      phase: [
        {
          'flags': dict(one.flags),
          'total_gib': one.bytes / _GIB,
          'time_s': one.time and _range(one.time),
          'why_not': one.why_not,
        }
        for one in found
      ]
      for phase, found in swept.items()
    }
  }

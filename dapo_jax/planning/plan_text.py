"""A plan as text: what fits, what it computes and sends, how long it takes."""

import math
from collections.abc import Mapping, Sequence

from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.planning import (
  analysis,
  estimate,
  job_plan,
  job_shapes,
  plan_cache,
  step_programs,
  step_time,
  sweep,
  topology,
)
from dapo_jax.sampling import limits as limits_lib

_GIB, _GB, _TF = 2**30, 1e9, 1e12
# Collectives that send less than this share of all are not told, but added.
_SMALL_FRAC = 0.02


def render(plan: job_plan.Plan) -> str:
  """Returns the whole text; without compiling some of it is left out."""
  parts = [_head(plan), _memory(plan), _room(plan), _work(plan)]
  if any(report.sent for report in plan.programs):
    parts.append(_wires(plan))
  if doubt := topology.doubt(plan.slices, plan.setup.engine_mesh.size):
    parts.append(f'Not certain: {doubt}.')
  parts += [_times(plan), _foot(plan)]
  return '\n\n'.join(part for part in parts if part)


def _head(plan: job_plan.Plan) -> str:
  c, setup, slices = plan.config, plan.setup, plan.slices
  many = f'{slices.slices} slices of ' if slices.slices > 1 else ''
  params = job_shapes.params_count(setup)
  mesh = ' x '.join(f'{name} {size}' for name, size in setup.mesh.shape.items())
  engine = setup.engine_mesh
  shape = ', '.join(f'{name} {size}' for name, size in engine.shape.items())
  name = c.model.path or 'random weights'
  _, rows, row_tokens = setup.rows_shape
  return '\n'.join(
    [
      f'{name} ({params / 1e9:.2f} B parameters) on {many}{slices.name} '
      f'({slices.cloud_name}): {_several(slices.chips, "chip")} of '
      f'{slices.chip.hbm_gib} GiB, {_several(slices.hosts, "host")}',
      f'update   mesh {mesh}; attention {setup.attention}, remat '
      f'{c.model.remat}; micro-batches of {rows} rows of {row_tokens:,} tokens',
      f'rollout  {_several(setup.shares.engines, "engine")} of '
      f'{_several(engine.size, "chip")} '
      f'({shape}); {setup.limits.slots} slots, {setup.limits.cache}',
    ]
  )


def _memory(plan: job_plan.Plan) -> str:
  """Returns what programs take and what phases hold."""
  lines = ['Memory of a chip, GiB']
  wide = max(len(report.name) for report in plan.programs)
  if any(report.memory or report.fault for report in plan.programs):
    lines.append('')
    lines.append(
      f'  {"program":{wide}}  arguments  results  aliased  temporary'
      '  host  compiled in'
    )
  for report in plan.programs:
    if report.memory is not None:
      m = report.memory
      lines.append(
        f'  {report.name:{wide}}  {m.arguments / _GIB:9.2f}'
        f'{m.results / _GIB:9.2f}{m.aliased / _GIB:9.2f}'
        f'{m.temporary / _GIB:11.2f}{m.host / _GIB:6.1f}'
        f'{report.compile_cpu_s:8.0f} CPU-s'
        + ('  (known)' if report.is_cached else '')
      )
    elif report.fault is not None:
      lines.append(f'  {report.name:{wide}}  {_fault(report)}')
  lines.append('')
  for phase in plan.phases:
    what = ', '.join(
      f'{name} {size / _GIB:.2f}' for name, size in phase.held.items()
    )
    verdict = 'fits' if phase.fits else 'DOES NOT FIT'
    lines.append(
      f'  {phase.name:8} {phase.bytes / _GIB:7.2f} of '
      f'{phase.limit_bytes / _GIB:.2f}  {verdict}, at its most in '
      f'"{phase.program}": {what}'
    )
  return '\n'.join(lines)


def _fault(report: analysis.Report) -> str:
  words = {
    'hbm': 'needs more memory than a chip has',
    'vmem': "needs more of a core's own memory (VMEM) than there is: other "
    'block sizes would help, other meshes would not',
    'compiler': 'is refused by the compiler',
  }
  return f'{words[report.fault.kind]}: {report.fault.text}'


def _room(plan: job_plan.Plan) -> str:
  """Returns how many slots and pages there is room for."""
  room = job_plan.cache_room(plan)
  limits = plan.setup.limits
  live = job_plan.live_slots(plan.setup, plan.lengths)
  if limits.cache == 'paged':
    has = f'{room.pages:,} pages of {limits.page_tokens} tokens'
    most = limits_lib.shard_pages(
      limits, plan.setup.engine_mesh.shape[mesh_lib.SLOT_AXIS]
    )
    has += f' ({most:,} are asked for)'
  else:
    has = f'{room.slots} slots ({limits.slots} are asked for)'
  return (
    f'Slots: beside the rest there are {room.bytes / _GIB:.1f} GiB, room for '
    f'{has} a shard; --config.sampler.cache_gib says how much they take. '
    f'An engine decodes {live} rows at a time.'
  )


def _work(plan: job_plan.Plan) -> str:
  """Returns what the programs compute, against what a model needs."""
  lines = ['FLOPs of a chip, TF, counted in the jaxpr with all trips', '']
  for report in plan.programs:
    for number, loop in enumerate(('once', *report.loops)):
      products = report.work.matmul_flops[number] / _TF
      kernels = report.work.attention_flops[number] / _TF
      if products:
        where = loop if loop == 'once' else f'one of its {loop}'
        lines.append(
          f'  {report.name}, {where}: products {products:.4g}'
          + (f', attention kernels {kernels:.4g}' if kernels else '')
        )
  ratio = flops_ratio(plan)
  if ratio is not None:
    lines += [
      '',
      f'  an update computes {ratio:.2f} x (6ND + causal attention) of its '
      'rows',
    ]
  return '\n'.join(lines)


def flops_ratio(plan: job_plan.Plan) -> float | None:
  """Returns what a full micro-batch computes over 6ND + causal attention.

  N counts all parameters, D all places of the rows, and attention is that of
  rows which are one sequence each: 6 N H T^2 of all heads of a layer.
  """
  for report in plan.programs:
    if report.name == step_programs.POLICY_UPDATE:
      computed = report.work.matmul_flops[1] + report.work.attention_flops[1]
      _, rows, tokens = plan.setup.rows_shape
      spec = plan.spec
      attention = 6.0 * spec.heads * spec.head_dim * tokens**2 * spec.layers
      params = job_shapes.params_count(plan.setup)
      needed = rows * (6.0 * params * tokens + attention)
      return computed * plan.slices.devices / needed
  return None


def _wires(plan: job_plan.Plan) -> str:
  """Returns what the programs send, by kind and axes."""
  lines = ['Sent by a chip, GB', '']
  for report in plan.programs:
    sums = map(sum, zip(*(one.bytes_sent for one in report.sent), strict=True))
    largest = max(sums, default=0) / _GB
    for number, loop in enumerate(('once', *report.loops)):
      found = [
        (one.bytes_sent[number] / _GB, one.calls[number], one)
        for one in report.sent
        if one.bytes_sent[number]
      ]
      total = sum(size for size, _, _ in found)
      if total <= _SMALL_FRAC / 10 * largest:
        continue
      where = loop if loop == 'once' else f'one of its {loop}'
      lines.append(f'  {report.name}, {where}: {total:.2f}')
      large = [f for f in found if f[0] > _SMALL_FRAC * total]
      for size, calls, one in sorted(large, key=lambda f: -f[0]):
        over = ' over DCN' if one.over_dcn else ''
        lines.append(
          f'    {size:9.2f}  {one.kind} along {" and ".join(one.axes)}{over}'
          f' (x {calls:g})'
        )
  return '\n'.join(lines)


def _times(plan: job_plan.Plan) -> str:
  """Returns estimates of a step's time and of the job's cost."""
  time = step_time.of_plan(plan)
  lengths, config = plan.lengths, plan.config
  lines = [
    'Estimates (from a roofline to no overlap at all; nothing was measured)',
    '',
    f'  with prompts of {lengths.prompt_tokens} and responses of '
    f'{lengths.response_tokens:.0f} tokens, sigma {lengths.sigma:g}, at most '
    f'{lengths.longest_tokens:,}; {lengths.kept_frac:.0%} of the prompts kept',
  ]
  for name in (step_programs.ROLLOUT, step_programs.UPDATE):
    found = getattr(time, name)
    lines.append(f'  {name:8} {_seconds(found)} a rollout step')
    for report in plan.programs:
      one = time.programs[report.name]
      if report.phase == name and one.high_s > 0.05 * found.high_s:
        lines.append(f'    {report.name:30} {_seconds(one)}')
  if time.update_mfu:
    worst, best = time.update_mfu
    lines.append(f'  MFU of the updates {worst:.0%} to {best:.0%}')
  worst, best = time.sampled_tokens_per_chip_s
  lines.append(
    f'  sampled tokens {worst:,.0f} to {best:,.0f} a second and chip'
  )
  low, high = step_time.per_day(time.step, step_time.updates(plan))
  cheap, dear = step_time.chip_hours(plan, time)
  lines += [
    f'  updates a day {low:,.0f} to {high:,.0f}',
    f'  {config.train.steps} rollout steps take {_three(cheap)} to '
    f'{_three(dear)} '
    'chip-hours, without evaluations, checkpoints and compilation',
  ]
  if plan.fits:
    lines.append(f'  {_advice(plan, time)}')
  return '\n'.join(lines)


def _advice(plan: job_plan.Plan, time: step_time.StepTime) -> str:
  """Returns which phase more chips or other settings would help."""
  slower = step_time.slower_phase(time)
  if slower is None:
    return 'neither phase takes clearly longer: more chips help both'
  if slower == step_programs.UPDATE:
    return (
      'the update takes longer: more chips help it, or a policy that '
      'recomputes less'
    )
  # Every round waits for its longest.
  longest = plan.lengths.longest_tokens * plan.sampling.rounds
  tail = longest / plan.sampling.steps
  if tail > 0.5:
    return (
      'the rollout takes longer, and the longest responses of its rounds are '
      f'{tail:.0%} of its steps: more chips would wait for them too'
    )
  return 'the rollout takes longer: more slots or chips help it'


def _foot(plan: job_plan.Plan) -> str:
  words = ', '.join(f'{k} {v}' for k, v in plan_cache.versions().items())
  verdict = 'It fits.' if plan.fits else 'It does not fit.'
  is_compiled = any(report.memory or report.fault for report in plan.programs)
  if plan.fits and not is_compiled:
    verdict = (
      'What is held fits; nothing was compiled, so what programs need beside '
      'is not in this.'
    )
  return f'{verdict} ({words})'


def _seconds(time: estimate.Range) -> str:
  return f'{_three(time.low_s)} to {_three(time.high_s)} s'


def _several(count: int, what: str) -> str:
  return f'{count} {what}' if count == 1 else f'{count} {what}s'


def _three(value: float) -> str:
  """Returns a number with three figures, and none behind the point above."""
  if value == 0:
    return '0'
  digits = max(0, 2 - math.floor(math.log10(abs(value))))
  return f'{value:,.{digits}f}'


def choices(swept: Mapping[str, Sequence[sweep.Choice]]) -> list[str]:
  """Returns a text for each phase whose other ways to be set up are known."""
  return [_choices(phase, found) for phase, found in swept.items()]


def _choices(phase: str, found: Sequence[sweep.Choice]) -> str:
  lines = [
    f'Other ways for the {phase}, the fastest first',
    '',
    '  GiB a chip  a rollout step  flags',
  ]
  for one in found:
    flags = ' '.join(f'--config.{k}={v}' for k, v in one.flags.items())
    time = _seconds(one.time) if one.time else '-'
    why = f'  DOES NOT FIT: {one.why_not}' if one.why_not else ''
    size = f'{one.bytes / _GIB:10.2f}' if one.bytes else f'{"?":>10}'
    lines.append(f'  {size}  {time:14}  {flags}{why}')
  if not any(not one.why_not for one in found):
    lines += ['', '  None of these fits: take more chips, or larger ones.']
  return '\n'.join(lines)

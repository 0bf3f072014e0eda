"""How long a rollout step of a plan takes, and what it costs in chip-hours."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from dapo_jax.planning import (
  analysis,
  estimate,
  flops,
  job_plan,
  job_shapes,
  step_programs,
)

_DAY_S = 86_400
# A phase takes longer where the middle of its range is so many times that of
# the other; between, it is not said.
_CLEAR = 1.5


class StepTime(NamedTuple):
  """Estimates of a rollout step."""

  programs: Mapping[str, estimate.Range]  # all runs of each in a step
  rollout: estimate.Range
  update: estimate.Range  # with the log-probs before it
  # MFU of the updates alone, (at worst, at best); None without an update.
  update_mfu: tuple[float, float] | None
  sampled_tokens_per_chip_s: tuple[float, float]  # (at worst, at best)

  @property
  def step(self) -> estimate.Range:
    """One after the other."""
    return self.rollout + self.update


def of_plan(plan: job_plan.Plan) -> StepTime:
  """Returns the times of a plan whose programs all have been looked at."""
  runs = {report.name: _run(plan, report) for report in plan.programs}
  nothing = estimate.Range(0.0, 0.0)
  phase = lambda name: sum(
    (runs[r.name] for r in plan.programs if r.phase == name), nothing
  )
  rollout, update = phase(step_programs.ROLLOUT), phase(step_programs.UPDATE)
  tokens = plan.sampling.response_tokens * plan.setup.shares.engines
  per_chip = tokens / plan.slices.chips
  rate = lambda seconds: per_chip / seconds if seconds else 0.0
  return StepTime(
    programs=runs,
    rollout=rollout,
    update=update,
    update_mfu=_mfu(plan, runs.get(step_programs.POLICY_UPDATE)),
    sampled_tokens_per_chip_s=(rate(rollout.high_s), rate(rollout.low_s)),
  )


def updates(plan: job_plan.Plan) -> float:
  """Returns the optimizer's updates in a rollout step."""
  return plan.learning.minibatches * plan.config.learner.epochs


def per_day(time: estimate.Range, count: float) -> tuple[float, float]:
  """Returns how many of what a step has so many of are done in a day."""
  return count * _DAY_S / time.high_s, count * _DAY_S / time.low_s


def chip_hours(plan: job_plan.Plan, time: StepTime) -> tuple[float, float]:
  """Returns the chip-hours of all rollout steps, (at best, at worst).

  Without evaluations, checkpoints, compilation and what is preempted.
  """
  total = time.step.times(float(plan.config.train.steps))
  hours = plan.slices.chips / 3600
  return total.low_s * hours, total.high_s * hours


def slower_phase(time: StepTime) -> str | None:
  """Returns the phase that more chips would help most; None if unclear."""
  rollout, update = time.rollout, time.update
  middle = lambda r: math.sqrt(max(r.low_s, 1e-9) * max(r.high_s, 1e-9))
  if middle(rollout) > _CLEAR * middle(update):
    return step_programs.ROLLOUT
  if middle(update) > _CLEAR * middle(rollout):
    return step_programs.UPDATE
  return None


def model_flops(plan: job_plan.Plan) -> float:
  """Returns 6ND and causal attention of a minibatch's real tokens."""
  spec = plan.spec
  attention = 3 * flops.decode_attention_flops(
    plan.learning.attended_tokens, spec.heads, spec.head_dim
  )
  params = job_shapes.params_count(plan.setup)
  return 6.0 * params * plan.learning.real_tokens + spec.layers * attention


def _mfu(
  plan: job_plan.Plan, time: estimate.Range | None
) -> tuple[float, float] | None:
  if time is None:
    return None
  return estimate.utilization(
    model_flops(plan) * updates(plan),
    time,
    plan.slices.chip,
    devices=plan.slices.devices,
  )


def _run(plan: job_plan.Plan, report: analysis.Report) -> estimate.Range:
  """Returns the time of all runs of a program in a rollout step."""
  chip = plan.slices.chip
  if report.phase == step_programs.UPDATE:
    count = plan.learning.minibatches
    if report.name in (
      step_programs.POLICY_UPDATE,
      step_programs.CRITIC_UPDATE,
    ):
      count = updates(plan)
    one = estimate.seconds(report.work, plan.learning.micro_batches, chip)
    return one.times(float(count))
  if report.name == step_programs.DECODE:
    return _decode(plan, report)
  # All loops of a rollout but the steps: parts of a prompt, each of which reads
  # all weights. What is sent or inserted reads little.
  part_tokens = plan.setup.limits.prefill_tokens
  parts = float(math.ceil(plan.lengths.prompt_tokens / part_tokens))
  is_prefill = report.name.startswith(step_programs.PREFILL)
  weights_bytes = plan.held['engine params'] * parts if is_prefill else 0.0
  one = estimate.seconds(
    report.work,
    (parts,) * len(report.loops),
    chip,
    weights_bytes=weights_bytes,
  )
  return one.times(_rollout_runs(plan, report.name))


def _decode(plan: job_plan.Plan, report: analysis.Report) -> estimate.Range:
  """Returns the time of all decode steps of an engine in a rollout step.

  A step reads all weights, and of each live row what it has so far: that is
  counted from the lengths, not from the program, which does not know them.
  """
  devices = plan.setup.engine_mesh.size
  spec, sampling = plan.spec, plan.sampling
  token_bytes = job_shapes.cache_token_bytes(plan.setup)
  attention = spec.layers * flops.decode_attention_flops(
    sampling.attended_tokens, spec.heads, spec.head_dim
  )
  once, per_step = report.work.attention_flops[0], attention / sampling.steps
  work = report.work._replace(attention_flops=(once, per_step / devices))
  return estimate.seconds(
    work,
    (float(sampling.steps),),
    plan.slices.chip,
    weights_bytes=float(plan.held['engine params'] * sampling.steps),
    cache_bytes=token_bytes * sampling.attended_tokens / devices,
  )


def _rollout_runs(plan: job_plan.Plan, name: str) -> float:
  """Returns how often an engine runs a program in a rollout step."""
  if name in step_programs.MOVING:
    return 1.0
  group = plan.config.rollout.responses_per_prompt
  if name == step_programs.INSERTION:
    return plan.sampling.prompts * math.ceil(group / step_programs.INSERTED)
  # All prompts are as long as their mean.
  is_theirs = name == step_programs.prefill_name(plan.lengths.prompt_tokens)
  return plan.sampling.prompts if is_theirs else 0.0

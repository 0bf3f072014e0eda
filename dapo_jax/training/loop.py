"""The loop of reinforcement learning.

One rollout step, in `_step`:

  1. prompts are drawn and sampled by the engine, responses graded, and
     groups without signal dropped, until the step is full;
  2. lengths become token weights, groups become packed minibatches; the
     policy's log-probs are taken before it moves, rewards become advantages,
     and every minibatch makes one update (`learn`).

Then `_finish_step` measures accuracy where it is due, writes the metrics and
saves. Only between two steps is the state a checkpoint: parameters, moments,
counters, the ordinal of the next draw and the prompts' history say all there
is to say.
"""

import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import FrozenConfigDict

from dapo_jax.monitor import progress as progress_lib
from dapo_jax.monitor import timers as timers_lib
from dapo_jax.monitor import writers
from dapo_jax.rollout import dynamic_sampling, grading, meter, summary
from dapo_jax.training import (
  advantages,
  assemble,
  checkpoint,
  evaluate,
  gather,
  interrupt,
  learn,
  losses,
  notices,
  profiling,
  resuming,
)
from dapo_jax.training import trainer as trainer_lib


class Outlets(NamedTuple):
  """Where a run shows and keeps what it does, and is asked to stop."""

  metrics: writers.JsonlWriter
  samples: writers.SampleWriter
  display: progress_lib.Progress
  store: checkpoint.Store
  guard: interrupt.Guard
  noticed: set[str]  # what is said once


def train(config: FrozenConfigDict, workdir: str) -> None:
  """Trains until `train.steps` rollout steps are done, or goes on with it.

  Raises:
    ValueError: for settings that do not fit together or the work directory,
      and where something cannot be written.
    SamplingLimitError: when no signal is found and the rule says 'error'.
    JudgeError, MissingVerdictsError: see `rollout.grading`.
  """
  folder = pathlib.Path(workdir)
  _check_folder(folder)
  token_loss = losses.policy_loss(config)
  with resuming.open_store(
    config, folder, keep=config.checkpoint.keep
  ) as store:
    parts, changes = resuming.build(
      config,
      folder,
      store,
      command='train',
      every_steps=config.checkpoint.every_steps,
    )
    trainer = trainer_lib.make_trainer(
      config,
      parts,
      token_loss,
      temperature=config.rollout.temperature,
      with_critic=config.advantage.estimator == 'gae',
    )
    state, progress = trainer_lib.start_or_resume(trainer, store)
    if store.latest_step() is not None:
      progress = _settled(progress, folder)
    ran = not _is_done(config, progress)
    if ran:
      trainer = trainer_lib.with_reference(trainer)
      state, progress = _run(trainer, store, folder, state, progress, changes)
    model = folder / 'model'
    if _is_done(config, progress) and (ran or not model.exists()):
      assemble.export(model, parts, state.params)
  print(_closing_lines(config, folder, progress))


def _check_folder(folder: pathlib.Path) -> None:
  """Refuses a work directory in which this run would spoil something."""
  if 'sft/step_count' in writers.last_line(folder / 'metrics.jsonl'):
    raise ValueError(
      f'{folder} holds a run of supervised training; name another --workdir'
    )
  model = folder / 'model'
  if model.exists() and not (model / 'config.json').is_file():
    raise ValueError(
      f'{model} is not a model, and the policy will be written there; name '
      'another --workdir'
    )


def _settled(
  progress: checkpoint.Progress, folder: pathlib.Path
) -> checkpoint.Progress:
  """Returns the progress, its metrics not pending if they have their line.

  A checkpoint that was made when its evaluation was interrupted is not made
  again when the evaluation is done; the line says that it is.
  """
  line = writers.last_line(folder / 'metrics.jsonl')
  if progress.pending is None or not line:
    return progress
  if line['step'] != progress.counters.rollout_steps:
    return progress
  last = line.get('eval/accuracy_frac', progress.last_accuracy)
  first = progress.first_accuracy if line['step'] else last
  return progress._replace(
    pending=None, first_accuracy=first, last_accuracy=last
  )


def _run(trainer, store, folder, state, progress, changes):
  """Returns (state, progress) at the end, or where the run was stopped."""
  config, done = trainer.config, progress.counters.rollout_steps
  writers.write_config(folder / 'run_config.json', config.to_dict())
  with (
    interrupt.Guard() as guard,
    writers.JsonlWriter(folder / 'metrics.jsonl') as metrics,
    writers.SampleWriter(folder / 'samples.jsonl') as samples,
    progress_lib.Progress(
      total_steps=config.train.steps, first_step=done, stream=sys.stdout
    ) as display,
  ):
    # A step whose metrics are pending gets its line now.
    metrics.keep_until(done + (progress.pending is None))
    samples.keep_until(done + 1)
    if done:
      display.note(f'resumed after step {done}')
    for change in changes:
      display.note(f'changed since: {change}')
    if warning := advantages.idle_history(
      config, len(trainer.parts.train_prompts)
    ):
      display.note(f'warning: {warning}')
    outlets = Outlets(metrics, samples, display, store, guard, set())
    try:
      while not _is_done(config, progress):
        if progress.pending is None:
          with profiling.traced(
            folder / 'profile',
            progress.counters.rollout_steps + 1,
            first_step=config.profile.first_step,
            steps=config.profile.steps,
          ):
            state, progress = _step(trainer, outlets, state, progress)
        progress = _finish_step(trainer, outlets, state, progress)
        guard.check()
    except interrupt.Interrupted:
      pass
    except (dynamic_sampling.SamplingLimitError, *grading.ERRORS):
      # Nothing was trained since the last boundary: keep it, then fail.
      store.save(state, progress, config.to_dict())
      raise
    store.save(state, progress, config.to_dict())
  return state, progress


def _step(trainer, outlets: Outlets, state, progress):
  """Returns the state one rollout step later, its metrics still pending."""
  config, parts = trainer.config, trainer.parts
  step = progress.counters.rollout_steps + 1
  timers, totals = timers_lib.Timers(), meter.Meter(parts.grader.counts)
  with timers.measure('time/step_s'):
    # 1. Prompts -> rollouts -> verdicts -> groups with a signal.
    with timers.measure('time/rollout_s'):
      filled = gather.gather(
        trainer,
        parts.to_engine(state.params),
        first_ordinal=progress.next_ordinal,
        totals=totals,
        on_chunk=_watch(trainer, outlets),
        check=outlets.guard.check,
      )
    # 2. Groups -> packed rows; rewards -> advantages; then the updates.
    learned = learn.learn(
      trainer, state, filled.groups, progress.history, timers, step=step
    )
  counters = progress.counters.after_step(filled.tally, totals, learned.faults)
  metrics = {
    **counters.metrics(),
    **summary.filter_metrics(filled),
    **summary.group_metrics(filled.groups),
    **advantages.metrics(
      learned.advantages,
      filled.groups,
      generated_count=filled.tally.drawn * config.rollout.responses_per_prompt,
    ),
    **learned.metrics,
    **totals.metrics(),
    **timers.take(),
  }
  faults = [names for names in learned.faults if names]
  _check_skipped(step, counters, faults, config.optim.max_skipped_updates)
  metrics = _finite(step, metrics, is_expected=bool(faults))
  outlets.samples.write(step, _sample_rows(trainer, filled))
  outlets.display.step(step, metrics)
  for text in notices.of_step(
    config,
    filled,
    metrics,
    outlets.noticed,
    faults=faults,
    unjudged=parts.grader.last_fault,
  ):
    outlets.display.note(text)
  return learned.state, progress._replace(
    counters=counters,
    next_ordinal=filled.next_ordinal,
    history=learned.advantages.history,
    pending=metrics,
  )


def _finish_step(trainer, outlets: Outlets, state, progress):
  """Evaluates, writes and saves what is due; returns the progress after."""
  config, step = trainer.config, progress.counters.rollout_steps
  outlets.store.check()
  metrics = dict(progress.pending)
  if step % config.eval.every_steps == 0 or step == config.train.steps:
    timers = timers_lib.Timers()
    with timers.measure('time/eval_s'):
      metrics |= evaluate.measure(
        trainer.parts,
        trainer.parts.to_engine(state.params),
        evaluate.protocol(config),
        check=outlets.guard.check,
      )
    metrics |= timers.take()
    accuracy = metrics['eval/accuracy_frac']
    first = accuracy if step == 0 else progress.first_accuracy
    progress = progress._replace(first_accuracy=first, last_accuracy=accuracy)
    outlets.display.note(evaluate.summary_line(metrics, step=step))
  outlets.metrics.write(step, metrics)
  progress = progress._replace(pending=None)
  if step and step % config.checkpoint.every_steps == 0:
    outlets.store.save(state, progress, config.to_dict())
  return progress


def _watch(trainer, outlets: Outlets) -> gather.OnChunk:
  """Returns what looks at every decode chunk; it may end the rollout."""

  def on_chunk(totals, chunk, tally):
    outlets.guard.check()
    outlets.display.rollout(
      tokens_count=totals.tokens,
      tokens_per_s=totals.tokens_per_s,
      slots_busy_frac=chunk.busy_frac,
      kept=tally.kept,
      wanted=trainer.config.rollout.prompts_per_step,
      round_index=tally.rounds,
    )

  return on_chunk


def _sample_rows(trainer, filled) -> list[dict[str, Any]]:
  config = trainer.config
  return summary.sample_rows(
    filled,
    count=config.train.samples_logged,
    template=config.data.template,
    chat_text=trainer.parts.tokenizer.chat_text,
  )


def _is_done(config: FrozenConfigDict, progress: checkpoint.Progress) -> bool:
  steps = progress.counters.rollout_steps
  return steps >= config.train.steps and progress.pending is None


def _check_skipped(
  step: int,
  counters: checkpoint.Counters,
  faults: Sequence[Sequence[str]],
  most: int,
) -> None:
  """Refuses to go on where update after update is not finite."""
  if counters.skipped_in_a_row >= most:
    raise ValueError(
      f'rollout step {step}: the last {counters.skipped_in_a_row} updates in a '
      f'row were not finite ({notices.fault_text(faults[-1])}) and moved '
      'nothing; what was saved before is whole: lower --config.optim.lr, or '
      'raise --config.optim.max_skipped_updates, and give the same command'
    )


def _finite(
  step: int, metrics: dict[str, int | float], *, is_expected: bool
) -> dict[str, int | float]:
  """Returns the metrics that are numbers; refuses others without a cause."""
  bad = [name for name, value in metrics.items() if not math.isfinite(value)]
  if bad and not is_expected:
    raise ValueError(
      f'rollout step {step}: {", ".join(bad)} not finite; what was saved '
      'before is whole: lower --config.optim.lr and give the same command'
    )
  return {name: value for name, value in metrics.items() if name not in bad}


def _closing_lines(
  config: FrozenConfigDict, folder: pathlib.Path, progress: checkpoint.Progress
) -> str:
  """Returns what a person wants to know last: what changed, and where it is."""
  steps = progress.counters.rollout_steps
  lines = []
  first, last = progress.first_accuracy, progress.last_accuracy
  if first is not None and last is not None:
    points = 100 * (last - first)
    lines.append(
      f'held-out accuracy: {first:.1%} before, {last:.1%} after {steps} steps '
      f'({points:+.1f} points)'
    )
  checkpoints = config.checkpoint.folder or 'checkpoints/ beside them'
  files = (
    f'run_config.json, metrics.jsonl and samples.jsonl are in {folder}, the '
    f'checkpoints in {checkpoints}'
  )
  if _is_done(config, progress):
    lines.append(f'done: the policy is {folder / "model"}; {files}')
  else:
    lines.append(
      f'stopped after {steps} of {config.train.steps} steps; the same command '
      f'goes on; {files}'
    )
  return '\n'.join(lines)

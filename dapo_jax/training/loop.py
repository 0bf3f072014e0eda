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
from collections.abc import Sequence
from typing import Any

from ml_collections import FrozenConfigDict

from dapo_jax.monitor import timers as timers_lib
from dapo_jax.parallel import job as job_lib
from dapo_jax.rollout import dynamic_sampling, meter, sharing, summary
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
  run_folder,
  sameness,
  update_stats,
)
from dapo_jax.training import outlets as outlets_lib
from dapo_jax.training import trainer as trainer_lib


def train(
  config: FrozenConfigDict,
  workdir: str,
  guard: interrupt.Guard | None = None,
) -> None:
  """Trains until `train.steps` rollout steps are done, or goes on with it.

  Of several processes (`guard.job`) all call this with the same arguments;
  the first one writes and prints.

  Args:
    config: the run's.
    workdir: its folder.
    guard: asks it to stop; None = one of its own, when it begins to train.

  Raises:
    ValueError: for settings that do not fit together or the work directory,
      and where something cannot be written.
    SamplingLimitError: when no signal is found and the rule says 'error'.
    JudgeError, MissingVerdictsError: see `rollout.grading`.
  """
  folder = pathlib.Path(workdir)
  job = guard.job if guard else job_lib.Job()
  sameness.check_commands(job, 'train', config)
  if job.is_first:
    run_folder.check(folder)
  token_loss = losses.policy_loss(config)
  with resuming.open_store(
    config, folder, keep=config.checkpoint.keep, job=job
  ) as store:
    parts, changes = resuming.build(
      config,
      folder,
      store,
      command='train',
      every_steps=config.checkpoint.every_steps,
      job=job,
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
      progress = run_folder.settled(progress, folder, job)
    if not run_folder.is_done(config, progress):
      trainer = trainer_lib.with_reference(trainer)
      # Random weights may differ in a bit on other devices.
      if trainer.reference is not None and parts.model_folder:
        store.begin_from_reference(trainer.reference)
      with (
        interrupt.entered(guard) as guard,
        outlets_lib.opened(
          config, folder, store, guard, progress, job=job
        ) as outlets,
      ):
        _greet(trainer, outlets, progress, changes)
        state, progress = _run(trainer, outlets, state, progress)
    if run_folder.is_done(config, progress):
      # Also of a run that was done: a kill may have left the policy of fewer
      # steps, where `train.steps` had been raised.
      assemble.export(folder / 'model', parts, state.params)
  if job.is_first:
    print(run_folder.closing_lines(config, folder, progress))


def _greet(
  trainer, outlets: outlets_lib.Outlets, progress, changes: Sequence[str]
) -> None:
  """Shows what a person should know before the first step."""
  if done := progress.counters.rollout_steps:
    outlets.display.note(f'resumed after step {done}')
  for change in changes:
    outlets.display.note(f'changed since: {change}')
  if warning := advantages.idle_history(
    trainer.config, len(trainer.parts.train_prompts)
  ):
    outlets.display.note(f'warning: {warning}')


def _run(trainer, outlets: outlets_lib.Outlets, state, progress):
  """Returns (state, progress) at the end, or where the run was stopped."""
  config, guard = trainer.config, outlets.guard
  told = guard.told(trainer.programs.update)
  trainer = trainer._replace(programs=trainer.programs._replace(update=told))
  try:
    while not run_folder.is_done(config, progress):
      _tell(config, outlets, state, progress)
      if progress.pending is None:
        with profiling.traced(
          outlets.folder / 'profile',
          progress.counters.rollout_steps + 1,
          first_step=config.profile.first_step,
          steps=config.profile.steps,
        ):
          state, progress = _step(trainer, outlets, state, progress)
        _tell(config, outlets, state, progress)
      progress = _finish_step(trainer, outlets, state, progress)
      guard.check_together('the end of the step')
  except sharing.StoppedError:
    pass
  except (dynamic_sampling.SamplingLimitError, *sharing.ERRORS):
    # Nothing was trained since the last boundary: keep it, then fail.
    guard.ends()
    outlets.store.save(state, progress, config.to_dict())
    raise
  _tell(config, outlets, state, progress)
  guard.ends()
  outlets.store.save(state, progress, config.to_dict())
  return state, progress


def _tell(config, outlets: outlets_lib.Outlets, state, progress) -> None:
  """Tells the guard that the state is whole, and how it is saved."""
  step = progress.counters.rollout_steps

  def save() -> None:
    outlets.store.save(state, progress, config.to_dict())
    outlets.store.wait()

  # Before the first step there is nothing that is worth a checkpoint.
  outlets.guard.boundary(
    step,
    save if step else None,
    again=run_folder.done_again(config, progress),
  )


def _step(trainer, outlets: outlets_lib.Outlets, state, progress):
  """Returns the state one rollout step later, its metrics still pending."""
  config, parts = trainer.config, trainer.parts
  step = progress.counters.rollout_steps + 1
  timers, metered = timers_lib.Timers(), meter.Meter(parts.grader.counts)
  with timers.measure('time/step_s'):
    # 1. Prompts -> rollouts -> verdicts -> groups with a signal.
    with timers.measure('time/rollout_s'):
      filled = gather.gather(
        trainer,
        parts.to_engine(state.params),
        first_ordinal=progress.next_ordinal,
        metered=metered,
        on_chunk=_watch(trainer, outlets),
        check=outlets.guard.check,
      )
    # 2. Groups -> packed rows; rewards -> advantages; then the updates.
    learned = learn.learn(
      trainer, state, filled.groups, progress.history, timers, step=step
    )
  totals = meter.of_all(metered.totals(), parts.shares)
  counters = progress.counters.after_step(
    filled.tally,
    totals,
    updates=learned.metrics['optim/update_count'],
    faults=learned.faults,
  )
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
  _check_skipped(config, step, progress.counters, learned.faults)
  faults = [names for names in learned.faults if names]
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


def _finish_step(trainer, outlets: outlets_lib.Outlets, state, progress):
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
    with outlets.guard.writing():
      outlets.store.save(state, progress, config.to_dict())
  return progress


def _watch(trainer, outlets: outlets_lib.Outlets) -> gather.OnChunk:
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
  """Returns the samples to be written, in the first process."""
  config, shares = trainer.config, trainer.parts.shares
  rows = summary.sample_rows(
    filled,
    count=config.train.samples_logged,
    template=config.data.template,
    chat_text=trainer.parts.tokenizer.chat_text,
  )
  return sharing.whole_rows(rows, shares)


def _check_skipped(
  config: FrozenConfigDict,
  step: int,
  before: checkpoint.Counters,
  faults: Sequence[Sequence[str]],
) -> None:
  """Refuses to go on where update after update is not finite."""
  most = update_stats.skips(before.skipped_in_a_row, map(bool, faults)).most
  if most >= config.optim.max_skipped_updates:
    last = next(names for names in reversed(faults) if names)
    raise ValueError(
      f'rollout step {step}: {most} updates in a row were not finite '
      f'({notices.fault_text(last)}) and moved nothing; what was saved before '
      'is whole: lower --config.optim.lr, or '
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

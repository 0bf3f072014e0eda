"""The supervised warm start: next-token loss on solved problems."""

import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import FrozenConfigDict

from dapo_jax.data import records
from dapo_jax.monitor import writers
from dapo_jax.objective import weighting
from dapo_jax.parallel import job as job_lib
from dapo_jax.parallel import placement
from dapo_jax.rollout import sharing
from dapo_jax.training import (
  assemble,
  checkpoint,
  evaluate,
  interrupt,
  layout,
  losses,
  notices,
  optimizer,
  packing,
  resuming,
  sameness,
  update,
  update_stats,
)
from dapo_jax.training import trainer as trainer_lib


class Result(NamedTuple):
  """Where supervised training stands."""

  state: update.TrainState
  progress: checkpoint.Progress
  # Of the updates since it was noted in the progress what they lost.
  seen: Sequence[update_stats.UpdateStats]
  finished: bool
  again: str  # what is done again if the run is stopped here


class _Outlets(NamedTuple):
  """Where a run keeps what it does, and is asked to stop."""

  store: checkpoint.Store
  metrics: writers.JsonlWriter | writers.NoWriter
  guard: interrupt.Guard
  tell: Callable[..., None]  # prints, in the first process


def run(
  config: FrozenConfigDict,
  workdir: str,
  guard: interrupt.Guard | None = None,
) -> None:
  """Trains until the accuracy or the number of updates asked for is reached.

  The policy is then in WORKDIR/model. A stopped run goes on where it was.

  Args:
    config: the run's.
    workdir: its folder.
    guard: asks it to stop; None = one of its own, when it begins to train.

  Raises:
    ValueError: when a training problem has no solution, or for settings that
      do not fit together.
  """
  folder = pathlib.Path(workdir)
  model_folder = folder / 'model'
  job = guard.job if guard else job_lib.Job()
  sameness.check_commands(job, 'sft', config)
  tell = print if job.is_first else lambda *_, **__: None
  line = writers.last_line(folder / 'metrics.jsonl') if job.is_first else {}
  if line and 'sft/step_count' not in line:
    raise ValueError(
      f'{folder} holds a run of reinforcement learning; name another --workdir'
    )
  if job.any(job.is_first and model_folder.exists(), what='the begin'):
    tell(f'supervised training is done already: the policy is {model_folder}')
    return
  with resuming.open_store(config, folder, keep=1, job=job) as store:
    parts, changes = resuming.build(
      config,
      folder,
      store,
      command='sft',
      every_steps=config.sft.eval_every_steps,
      job=job,
    )
    for change in changes:
      tell(f'changed since: {change}')
    _check_solutions(parts.train_prompts)
    if job.is_first:
      writers.write_config(folder / 'run_config.json', config.to_dict())
    trainer = trainer_lib.make_trainer(
      config,
      parts,
      losses.supervised_loss,
      temperature=1.0,
      with_critic=False,
      round_prompts=config.sft.examples_per_step,
    )
    with (
      interrupt.entered(guard) as guard,
      _metrics_writer(folder, job) as metrics,
    ):
      result = _train(trainer, _Outlets(store, metrics, guard, tell))
      guard.ends()
    if not result.finished:
      store.save(result.state, _noted(result), config.to_dict())
  if not result.finished:
    step = result.progress.counters.updates
    tell('stopped;', interrupt.saved_line(step, result.again))
    return
  assemble.export(model_folder, parts, result.state.params)
  tell(f'supervised training is done: the policy is {model_folder}')


def _metrics_writer(
  folder: pathlib.Path, job: job_lib.Job
) -> writers.JsonlWriter | writers.NoWriter:
  """Returns the writer of the metrics: that of the first process writes."""
  if not job.is_first:
    return writers.NoWriter()
  return writers.JsonlWriter(folder / 'metrics.jsonl')


def _train(trainer, outlets: _Outlets) -> Result:
  """Returns where training stands at its end or when it is stopped.

  The state is saved at every evaluation.
  """
  c, guard = trainer.config.sft, outlets.guard
  state, progress = trainer_lib.start_or_resume(trainer, outlets.store)
  # An evaluation that is still to be done writes its line anew.
  outlets.metrics.keep_until(
    progress.counters.updates + (progress.pending is None)
  )
  told = guard.told(trainer.programs.update)
  trainer = trainer._replace(programs=trainer.programs._replace(update=told))
  seen = []
  while True:
    outlets.store.check()
    step = progress.counters.updates
    here = Result(
      state, progress, tuple(seen), finished=False, again=f'step {step + 1}'
    )
    is_last = step >= c.steps
    try:
      if progress.pending is not None and (
        is_last or step % c.eval_every_steps == 0
      ):
        again = f'the evaluation after step {step}'
        progress = _evaluate(trainer, outlets, here._replace(again=again))
        seen = []
        here = here._replace(progress=progress, seen=())
      if is_last or _is_enough(c.stop_accuracy, progress):
        return here._replace(finished=True)
      _tell(trainer.config, outlets, here)
      guard.check_together('the end of the step')
      state, stats = _update(trainer, state, step)
    except sharing.StoppedError:
      return here
    seen.append(stats)
    progress = progress._replace(
      counters=progress.counters._replace(
        rollout_steps=step + 1, updates=step + 1
      ),
      pending=progress.pending or {},
    )


def _is_enough(wanted: float | None, progress: checkpoint.Progress) -> bool:
  """Says whether the accuracy of this very step is the one asked for."""
  if progress.pending is not None or progress.last_accuracy is None:
    return False
  return progress.last_accuracy >= (wanted or np.inf)


def _tell(config: FrozenConfigDict, outlets: _Outlets, here: Result) -> None:
  """Tells the guard that the state is whole, and how it is saved."""
  step = here.progress.counters.updates

  def save() -> None:
    outlets.store.save(here.state, _noted(here), config.to_dict())
    outlets.store.wait()

  outlets.guard.boundary(step, save if step else None, again=here.again)


def _evaluate(trainer, outlets: _Outlets, here: Result) -> checkpoint.Progress:
  """Returns the progress with the accuracy; writes its line, and saves."""
  config, step = trainer.config, here.progress.counters.updates
  _tell(config, outlets, here)
  _check_skipped(here, config.optim.max_skipped_updates)
  try:
    found = _measure(trainer, here.state, outlets.guard.check)
  except sharing.ERRORS:
    outlets.guard.ends()
    outlets.store.save(here.state, _noted(here), config.to_dict())
    raise
  noted = _noted(here)
  found |= update_stats.loss_metrics(noted.pending)
  outlets.metrics.write(step, found | {'sft/step_count': step})
  outlets.tell(_line(found, step=step), flush=True)
  progress = noted._replace(
    pending=None, last_accuracy=found['eval/accuracy_frac']
  )
  if step:
    with outlets.guard.writing():
      outlets.store.save(here.state, progress, config.to_dict())
  return progress


def _update(
  trainer, state: update.TrainState, step: int
) -> tuple[update.TrainState, update_stats.UpdateStats]:
  """Returns the state after the update of step + 1, which the device makes."""
  c = trainer.config.sft
  batch = _batch(trainer, step)
  lr = optimizer.warmed_up(c.lr, step=step, warmup_steps=c.warmup_steps)
  # Examples were sampled by nobody and have no advantage: zeros.
  zeros = batch.rows.logp_sampler
  return trainer.programs.update(
    state,
    batch.rows,
    update.Experience(zeros, zeros),
    batch.micro_batches,
    lr,
  )


def _noted(here: Result) -> checkpoint.Progress:
  """Returns the progress, what the updates that were seen lost noted in it."""
  if not here.seen:
    return here.progress
  counters, seen = here.progress.counters, jax.device_get(here.seen)
  skips = update_stats.skips(
    counters.skipped_in_a_row, [s.is_skipped for s in seen]
  )
  return here.progress._replace(
    counters=counters._replace(skipped_in_a_row=skips.now),
    pending=update_stats.add_losses(here.progress.pending, seen),
  )


def _check_skipped(here: Result, most_allowed: int) -> None:
  """Refuses to go on where update after update is not finite."""
  faults = [
    update_stats.fault_names(s.faults, here.state.params)
    for s in jax.device_get(here.seen)
  ]
  counters = here.progress.counters
  most = update_stats.skips(counters.skipped_in_a_row, map(bool, faults)).most
  if most < most_allowed:
    return
  index, last = [(i, names) for i, names in enumerate(faults) if names][-1]
  raise ValueError(
    f'step {counters.updates - len(faults) + index + 1}: {most} updates in a '
    f'row were not finite ({notices.fault_text(last)}) and moved nothing; what '
    'was saved before is whole: lower --config.sft.lr, or raise '
    '--config.optim.max_skipped_updates, and give the same command'
  )


def _measure(
  trainer, state, check: Callable[[], None]
) -> dict[str, int | float]:
  return evaluate.measure(
    trainer.parts,
    trainer.parts.to_engine(state.params),
    evaluate.protocol(trainer.config),
    check=check,
  )


def _batch(trainer: trainer_lib.Trainer, step: int) -> packing.Packed:
  """Returns the examples of an update in packed rows, on the mesh."""
  config, parts = trainer.config, trainer.parts
  count = config.sft.examples_per_step
  draws = trainer.stream.take(step * count, count)
  eos_id = parts.tokenizer.eos_ids[0]
  responses = [
    np.asarray([*parts.tokenizer.encode(d.prompt.solution), eos_id], np.int32)
    for d in draws
  ]
  weights = weighting.token_weights(
    np.array([len(r) for r in responses]),
    np.array([d.ordinal for d in draws]),
    mode='token_mean',
  )
  segments = [
    packing.Segment(
      d.ordinal,
      parts.encode(d.prompt),
      r,
      np.zeros(len(r), np.float32),
      float(w),
    )
    for d, r, w in zip(draws, responses, weights, strict=True)
  ]
  packed = packing.pack(
    segments,
    row_tokens=layout.row_tokens(config),
    micro_batch_rows=layout.micro_batch_rows(config, parts.mesh),
    max_segments=count,
    share_prompts=False,
  )
  return packed._replace(rows=placement.put_rows(packed.rows, parts.mesh))


def _check_solutions(prompts: Sequence[records.Prompt]) -> None:
  without = sum(not p.solution for p in prompts)
  if without:
    raise ValueError(
      f'{without} of {len(prompts)} training problems have no solution, which '
      'supervised training needs; change --config.data.source or '
      '--config.data.mixture to files with the field `solution` in every row'
    )


def _line(metrics: dict[str, int | float], *, step: int) -> str:
  text = evaluate.summary_line(metrics, step=step)
  if 'sft/loss' in metrics:
    text += f', loss {metrics["sft/loss"]:.3f}'
  return text

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
from dapo_jax.parallel import placement
from dapo_jax.rollout import grading
from dapo_jax.training import (
  assemble,
  checkpoint,
  evaluate,
  interrupt,
  losses,
  optimizer,
  packing,
  resuming,
  update,
)
from dapo_jax.training import trainer as trainer_lib


class Result(NamedTuple):
  """Where supervised training stands."""

  state: update.TrainState
  progress: checkpoint.Progress
  finished: bool


def run(config: FrozenConfigDict, workdir: str) -> None:
  """Trains until the accuracy or the number of updates asked for is reached.

  The policy is then in WORKDIR/model. A stopped run goes on where it was.

  Raises:
    ValueError: when a training problem has no solution, or for settings that
      do not fit together.
  """
  folder = pathlib.Path(workdir)
  model_folder = folder / 'model'
  if model_folder.exists():
    print(f'supervised training is done already: the policy is {model_folder}')
    return
  line = writers.last_line(folder / 'metrics.jsonl')
  if line and 'sft/step_count' not in line:
    raise ValueError(
      f'{folder} holds a run of reinforcement learning; name another --workdir'
    )
  with resuming.open_store(config, folder, keep=1) as store:
    parts, _ = resuming.build(
      config,
      folder,
      store,
      command='sft',
      every_steps=config.sft.eval_every_steps,
    )
    _check_solutions(parts.train_prompts)
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
      interrupt.Guard() as guard,
      writers.JsonlWriter(folder / 'metrics.jsonl') as metrics,
    ):
      result = _train(trainer, store, metrics, guard)
    if not result.finished:
      store.save(result.state, result.progress, config.to_dict())
      print('stopped; the same command goes on')
      return
  assemble.export(model_folder, parts, result.state.params)
  print(f'supervised training is done: the policy is {model_folder}')


def _train(trainer, store, metrics, guard) -> Result:
  """Returns where training stands at its end or when it is stopped.

  The state is saved at every evaluation.
  """
  c = trainer.config.sft
  state, progress = trainer_lib.start_or_resume(trainer, store)
  metrics.keep_until(progress.counters.updates)
  seen = []
  while True:
    store.check()
    step = progress.counters.updates
    if step % c.eval_every_steps == 0 or step == c.steps:
      try:
        found = _measure(trainer, state, guard.check)
      except interrupt.Interrupted:
        return Result(state, progress, finished=False)
      except grading.ERRORS:
        store.save(state, progress, trainer.config.to_dict())
        raise
      if seen:
        found |= _loss(seen, trainer.config.optim.max_skipped_updates)
      metrics.write(step, found | {'sft/step_count': step})
      print(_line(found, step=step), flush=True)
      seen = []
      if step:
        store.save(state, progress, trainer.config.to_dict())
      accuracy = found['eval/accuracy_frac']
      if step == c.steps or accuracy >= (c.stop_accuracy or np.inf):
        return Result(state, progress, finished=True)
    if guard.requested:
      return Result(state, progress, finished=False)
    batch = _batch(trainer, step)
    lr = optimizer.warmed_up(c.lr, step=step, warmup_steps=c.warmup_steps)
    # Examples were sampled by nobody and have no advantage: zeros.
    zeros = batch.rows.logp_sampler
    state, stats = trainer.update(
      state,
      batch.rows,
      update.Experience(zeros, zeros),
      batch.micro_batches,
      lr,
    )
    seen.append(stats)
    counters = checkpoint.Counters(rollout_steps=step + 1, updates=step + 1)
    progress = progress._replace(counters=counters)


def _loss(
  seen: Sequence[update.UpdateStats], max_skipped: int
) -> dict[str, int | float]:
  """Returns the metrics of updates; refuses too many that moved nothing."""
  seen = jax.device_get(seen)
  in_a_row = 0
  for stats in seen:
    in_a_row = in_a_row + 1 if stats.is_skipped else 0
    if in_a_row >= max_skipped:
      raise ValueError(
        f'{in_a_row} updates in a row were not finite and moved nothing; what '
        'was saved before is whole: lower --config.sft.lr, or raise '
        '--config.optim.max_skipped_updates, and give the same command'
      )
  losses_seen = [float(s.loss) for s in seen if not s.is_skipped]
  found = {}
  if len(losses_seen) < len(seen):
    found['optim/skipped_update_count'] = len(seen) - len(losses_seen)
  if losses_seen:
    found['sft/loss'] = float(np.mean(losses_seen))
  return found


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
    row_tokens=assemble.row_tokens(config),
    micro_batch_rows=config.learner.micro_batch_rows,
    max_segments=count,
    share_prompts=False,
  )
  return packed._replace(rows=placement.put_rows(packed.rows, parts.mesh))


def _check_solutions(prompts: Sequence[records.Prompt]) -> None:
  without = sum(not p.solution for p in prompts)
  if without:
    raise ValueError(
      f'{without} of {len(prompts)} training problems have no solution, which '
      'supervised training needs; change --config.data.source to a file with '
      'the field `solution` in every row'
    )


def _line(metrics: dict[str, int | float], *, step: int) -> str:
  text = evaluate.summary_line(metrics, step=step)
  if 'sft/loss' in metrics:
    text += f', loss {metrics["sft/loss"]:.3f}'
  return text

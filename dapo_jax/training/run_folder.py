"""The work directory of a run: what it may hold, and what is told of it."""

import json
import pathlib

from ml_collections import FrozenConfigDict

from dapo_jax.monitor import writers
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import checkpoint, interrupt


def check(folder: pathlib.Path) -> None:
  """Refuses a work directory in which a run would spoil something.

  Raises:
    ValueError: it holds a run of another kind, or what is no model where the
      policy will be written.
  """
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


def of_process(folder: pathlib.Path, job: job_lib.Job) -> pathlib.Path:
  """Returns where a process keeps what is its own, a download say.

  For the first one, which also writes all that is the run's, it is the work
  directory; the others have a folder each in it, on whichever machine.
  """
  own = folder if job.is_first else folder / f'process-{job.index}'
  own.mkdir(parents=True, exist_ok=True)
  return own


def settled(
  progress: checkpoint.Progress, folder: pathlib.Path, job: job_lib.Job
) -> checkpoint.Progress:
  """Returns the progress, its metrics not pending if they have their line.

  A checkpoint that was made when its evaluation was interrupted is not made
  again when the evaluation is done; the line says that it is. The first
  process has the lines.
  """
  line = json.loads(
    job.from_first(
      lambda: json.dumps(writers.last_line(folder / 'metrics.jsonl')).encode(),
      what='the last line of the metrics',
    )
  )
  if progress.pending is None or not line:
    return progress
  if line['step'] != progress.counters.rollout_steps:
    return progress
  last = line.get('eval/accuracy_frac', progress.last_accuracy)
  first = progress.first_accuracy if line['step'] else last
  return progress._replace(
    pending=None, first_accuracy=first, last_accuracy=last
  )


def is_done(config: FrozenConfigDict, progress: checkpoint.Progress) -> bool:
  """Says whether all steps are done, the metrics of the last included."""
  steps = progress.counters.rollout_steps
  return steps >= config.train.steps and progress.pending is None


def done_again(config: FrozenConfigDict, progress: checkpoint.Progress) -> str:
  """Returns what has to be done again when a run ends at this boundary."""
  steps = progress.counters.rollout_steps
  if is_done(config, progress):
    return 'the writing of the policy'
  if progress.pending is not None:
    return f'the evaluation after step {steps}'
  return f'step {steps + 1}'


def closing_lines(
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
  if is_done(config, progress):
    lines.append(f'done: the policy is {folder / "model"}; {files}')
  else:
    again = done_again(config, progress)
    lines.append(
      f'stopped after {steps} of {config.train.steps} steps; {files}\n'
      + interrupt.saved_line(steps, again)
    )
  return '\n'.join(lines)

"""How a run begins, or goes on with what its checkpoints hold."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

from etils import epath
from ml_collections import FrozenConfigDict

from dapo_jax.monitor import writers
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import (
  assemble,
  checkpoint,
  checkpoint_folder,
  origin,
  run_folder,
  run_lock,
  sameness,
)


@contextlib.contextmanager
def open_store(
  config: FrozenConfigDict,
  workdir: pathlib.Path,
  *,
  keep: int,
  job: job_lib.Job,
) -> Iterator[checkpoint.Store]:
  """Yields the run's store, the work directory being this run's alone.

  So is the folder of the checkpoints, where it is one of this machine.

  Raises:
    ValueError: another process has one of them, or it cannot be used.
  """
  folder = checkpoint_folder.locate(workdir, config.checkpoint.folder)
  with contextlib.ExitStack() as stack:
    if job.is_first:
      stack.enter_context(run_lock.held(workdir, flag='--workdir'))
    # Of one folder that is both there is one lock.
    is_both = os.path.realpath(folder) == os.path.realpath(workdir)
    if job.is_first and checkpoint_folder.is_local(folder) and not is_both:
      # Looked at first: a file in its place has a better message.
      checkpoint_folder.look(folder)
      lock = run_lock.held(folder, flag=checkpoint_folder.FLAG)
      stack.enter_context(lock)
    yield stack.enter_context(
      checkpoint.open_store(
        workdir,
        keep=keep,
        keep_every_steps=config.checkpoint.keep_every_steps,
        folder=config.checkpoint.folder,
        job=job,
      )
    )


def build(
  config: FrozenConfigDict,
  workdir: pathlib.Path,
  store: checkpoint.Store,
  *,
  command: str,
  every_steps: int,
  job: job_lib.Job,
) -> tuple[assemble.Parts, list[str]]:
  """Returns the parts of a run, and what changed since its last checkpoint.

  Args:
    config: the run's.
    workdir: its work directory, whose tokenizer comes back if it is gone.
    store: of its checkpoints.
    command: 'train' or 'sft'.
    every_steps: steps from save to save.
    job: the processes of the run.

  Raises:
    ValueError: something changed that the saved state depends on, or the
      checkpoints of a run that is under way are not there.
  """
  if job.is_first:
    _check_not_lost(workdir, store, every_steps)
  sameness.check_checkpoint(job, store.latest_step())
  workdir = run_folder.of_process(workdir, job)
  changes = store.changes_since_saved(config.to_dict())
  bring_tokenizer(config, workdir, store.saved_origin())
  parts = assemble.build(config, workdir, job)
  trained = assemble.trained_tokenizer(config, workdir)
  now = origin.of(
    command,
    parts.tokenizer,
    parts.train_prompts,
    parts.encode,
    tokenizer_file=trained and trained.read_bytes(),
    model=parts.model.spec,
  )
  return parts, changes + store.begin_from(
    now, may_change_data=config.checkpoint.allow_changed_data
  )


def bring_tokenizer(
  config: FrozenConfigDict,
  workdir: pathlib.Path,
  saved: origin.Origin | None,
) -> None:
  """Writes the tokenizer that a run trained, where it is not there."""
  trained = assemble.trained_tokenizer(config, workdir)
  if trained and saved and saved.tokenizer_file and not trained.exists():
    workdir.mkdir(parents=True, exist_ok=True)
    half = trained.with_name(trained.name + '.half')
    half.write_bytes(saved.tokenizer_file)
    half.replace(trained)


def _check_not_lost(
  workdir: pathlib.Path, store: checkpoint.Store, every_steps: int
) -> None:
  """Refuses to begin anew, and drop the lines, where a run was under way.

  Its settings say where it saved itself. And a run whose lines reach beyond the
  second save has had the first: the second waited for it.
  """
  if store.latest_step() is not None:
    return
  named = checkpoint_folder.named(epath.Path(workdir))
  before = checkpoint_folder.locate(workdir, named)
  if before != store.folder and checkpoint_folder.look(before).whole:
    raise ValueError(
      f'the run in {workdir} has its checkpoints in {before}, and there is '
      f'none in {store.folder}: give {checkpoint_folder.FLAG}={named}, or '
      'another --workdir'
    )
  last = writers.last_line(workdir / 'metrics.jsonl').get('step', 0)
  if last > 2 * every_steps:
    raise ValueError(
      f'{workdir / "metrics.jsonl"} goes up to step {last}, but there is no '
      f'whole checkpoint in {store.folder}: name the folder that has them by '
      f'{checkpoint_folder.FLAG}, or move metrics.jsonl away to begin anew'
    )

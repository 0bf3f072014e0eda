"""Where a run shows and keeps what it does, and is asked to stop."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

from ml_collections import FrozenConfigDict

from dapo_jax.monitor import progress as progress_lib
from dapo_jax.monitor import writers
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import checkpoint, interrupt, run_folder


class Outlets(NamedTuple):
  """The open files of a run, its display, its checkpoints and its guard."""

  folder: pathlib.Path  # of this process
  metrics: writers.JsonlWriter | writers.NoWriter
  samples: writers.SampleWriter | writers.NoWriter
  display: progress_lib.Progress
  store: checkpoint.Store
  guard: interrupt.Guard
  noticed: set[str]  # what is said once


@contextlib.contextmanager
def opened(
  config: FrozenConfigDict,
  folder: pathlib.Path,
  store: checkpoint.Store,
  guard: interrupt.Guard,
  progress: checkpoint.Progress,
  *,
  job: job_lib.Job,
) -> Iterator[Outlets]:
  """Yields the outlets of a run that goes on from `progress`.

  The first process has them; the others write to nowhere, but for a trace,
  which each has in a folder of its own.
  """
  if not job.is_first:
    with open(os.devnull, 'w') as stream:
      yield Outlets(
        run_folder.of_process(folder, job),
        writers.NoWriter(),
        writers.NoWriter(),
        progress_lib.Progress(
          total_steps=config.train.steps, first_step=0, stream=stream
        ),
        store,
        guard,
        set(),
      )
    return
  writers.write_config(folder / 'run_config.json', config.to_dict())
  done = progress.counters.rollout_steps
  with (
    writers.JsonlWriter(folder / 'metrics.jsonl') as metrics,
    writers.SampleWriter(folder / 'samples.jsonl') as samples,
    progress_lib.Progress(
      total_steps=config.train.steps, first_step=done, stream=sys.stdout
    ) as display,
  ):
    # A step whose metrics are pending gets its line now.
    metrics.keep_until(done + (progress.pending is None))
    samples.keep_until(done + 1)
    yield Outlets(folder, metrics, samples, display, store, guard, set())

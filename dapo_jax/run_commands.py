"""The commands that run by a configuration: train, sft and eval.

What is heavy to import is imported by the command that needs it, once a signal
can end it.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import ml_collections
from absl import flags, logging

from dapo_jax import config as config_lib

USAGE = 'dapo-jax {} --config=FILE --workdir=DIR [--config.KEY=VALUE ...]'


def define(flag_values: flags.FlagValues) -> None:
  """Defines their flags."""
  config_lib.define_flag(flag_values)
  flags.DEFINE_string(
    'workdir',
    None,
    'Folder of the run; the same command again goes on in it.',
    flag_values=flag_values,
  )
  flags.DEFINE_bool(
    'distributed',
    False,
    'Join the processes of a TPU pod, of GKE or Slurm.',
    flag_values=flag_values,
  )
  flags.DEFINE_string(
    'coordinator',
    None,
    'Else HOST:PORT of the first process, with the next two.',
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'processes', None, 'Their number.', flag_values=flag_values
  )
  flags.DEFINE_integer(
    'process', None, 'The number of this one, from 0.', flag_values=flag_values
  )


def _config_and_workdir(
  args: Sequence[str], flag_values: flags.FlagValues
) -> tuple[ml_collections.FrozenConfigDict, str]:
  """Returns what the commands that run by a configuration are given."""
  config, rest = config_lib.parse(args, flag_values)
  if rest:
    raise config_lib.ConfigError(f'unexpected argument {rest[0]!r}')
  if not flag_values.workdir:
    raise config_lib.ConfigError(
      '--workdir=DIR is required: the folder that the run writes to'
    )
  if '://' in flag_values.workdir:
    raise config_lib.ConfigError(
      f'--workdir ({flag_values.workdir}) must be a folder of this machine; '
      'a bucket can be mounted as one'
    )
  return config, os.path.expanduser(flag_values.workdir)


def train(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Trains a policy, until it is done or stopped."""
  config, workdir = _config_and_workdir(args, flag_values)
  with _stopped_in_time(config, workdir, flag_values) as guard:
    from dapo_jax.training import loop

    loop.train(config, workdir, guard)


def sft(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Trains a model on solved problems."""
  config, workdir = _config_and_workdir(args, flag_values)
  with _stopped_in_time(config, workdir, flag_values) as guard:
    from dapo_jax.training import supervised

    supervised.run(config, workdir, guard)


def evaluate(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Measures the accuracy of a model."""
  config, workdir = _config_and_workdir(args, flag_values)
  launch = _launch(flag_values)
  from dapo_jax.training import stopping

  with (
    stopping.at_once() as before_end,
    _job(launch, quiet_s=config.train.wait_warn_s) as job,
  ):
    # Or the others would wait until it is found lost.
    before_end += [job.tell_stop, job.part]
    from dapo_jax.training import evaluate as evaluate_lib

    evaluate_lib.run(config, workdir, job)


@contextlib.contextmanager
def _stopped_in_time(
  config: ml_collections.FrozenConfigDict,
  workdir: str,
  flag_values: flags.FlagValues,
) -> Iterator[Any]:
  """Yields the guard of a run, which knows its processes."""
  launch = _launch(flag_values)
  from dapo_jax.training import checkpoint_folder, stopping

  checkpoints = checkpoint_folder.locate(workdir, config.checkpoint.folder)
  with (
    stopping.in_time(checkpoints, grace_s=config.train.grace_s) as guard,
    _job(launch, quiet_s=config.train.wait_warn_s) as job,
  ):
    guard.job = job
    if guard.requested:
      job.tell_stop()  # it came before there was anyone to tell
    yield guard


def _launch(flag_values: flags.FlagValues) -> Any:
  """Returns how the processes find each other, by the flags."""
  from dapo_jax.parallel import job as job_lib

  launch = job_lib.Launch(
    flag_values.distributed,
    flag_values.coordinator,
    flag_values.processes,
    flag_values.process,
  )
  job_lib.check(launch)
  return launch


@contextlib.contextmanager
def _job(launch: Any, *, quiet_s: float) -> Iterator[Any]:
  """Yields the processes of the run, of which the first prints."""
  from dapo_jax.parallel import job as job_lib
  from dapo_jax.parallel import watch
  from dapo_jax.training import stopping

  hooks = watch.Hooks(
    # As if the signal had come here: what follows is the same.
    stop=lambda: os.kill(os.getpid(), signal.SIGTERM),
    leave=lambda status, line: stopping.leave(
      status, f'dapo-jax: error: {line}', is_error=True
    ),
    tell=lambda line: print(f'warning: {line}', file=sys.stderr, flush=True),
  )
  with job_lib.started(launch, hooks=hooks, quiet_s=quiet_s) as job:
    if not job.is_first:
      logging.set_verbosity(logging.ERROR)
    yield job

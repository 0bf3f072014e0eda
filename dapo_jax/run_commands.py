"""The commands that run by a configuration: train, sft and eval.

What is heavy to import is imported by the command that needs it, once a signal
can end it.
"""

import os
from collections.abc import Sequence

import ml_collections
from absl import flags

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
  from dapo_jax.training import checkpoint_folder, stopping

  checkpoints = checkpoint_folder.locate(workdir, config.checkpoint.folder)
  with stopping.in_time(checkpoints, grace_s=config.train.grace_s) as guard:
    from dapo_jax.training import loop

    loop.train(config, workdir, guard)


def sft(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Trains a model on solved problems."""
  config, workdir = _config_and_workdir(args, flag_values)
  from dapo_jax.training import checkpoint_folder, stopping

  checkpoints = checkpoint_folder.locate(workdir, config.checkpoint.folder)
  with stopping.in_time(checkpoints, grace_s=config.train.grace_s) as guard:
    from dapo_jax.training import supervised

    supervised.run(config, workdir, guard)


def evaluate(args: Sequence[str], flag_values: flags.FlagValues) -> None:
  """Measures the accuracy of a model."""
  config, workdir = _config_and_workdir(args, flag_values)
  from dapo_jax.training import stopping

  with stopping.at_once():
    from dapo_jax.training import evaluate as evaluate_lib

    evaluate_lib.run(config, workdir)

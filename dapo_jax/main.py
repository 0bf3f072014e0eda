"""The `dapo-jax` command: reads the command line and calls one program.

What is heavy to import (jax, the engine's TensorFlow) is imported by the
command that needs it, so that help and faults in the flags are told at once.
"""

import difflib
import errno
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from absl import flags

import dapo_jax
from dapo_jax import config as config_lib
from dapo_jax import data_command, model_commands, plan_command, run_commands

# What a disk says that is full, or a file that may not be touched.
_REFUSED = (
  errno.ENOSPC,
  errno.EDQUOT,
  errno.EFBIG,
  errno.EROFS,
  errno.EACCES,
  errno.EPERM,
)
_PACKAGE = os.path.dirname(os.path.abspath(__file__))


class _Command(NamedTuple):
  """A command: how it is called, what it does, and the function that does."""

  usage: str
  summary: str
  define_flags: Callable[[flags.FlagValues], None]
  # Returns the exit status, None = 0.
  run: Callable[[Sequence[str], flags.FlagValues], int | None]


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command that `argv` names and returns the exit status.

  A ValueError that this package raises tells the user what to change: it is
  printed as one line, with status 2; so is a file that finds no room or may
  not be touched. Every other exception is a fault of the program and keeps its
  traceback.
  """
  args = list(sys.argv[1:] if argv is None else argv)
  _give_virtual_devices_threads()
  try:
    return _dispatch(args)
  except ValueError as error:
    if not _raised_here(error):
      raise
    print(f'dapo-jax: error: {" ".join(str(error).split())}', file=sys.stderr)
    return 2
  except OSError as error:
    if error.errno not in _REFUSED:
      raise
    print(f'dapo-jax: error: {_refused(error)}', file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    # The second Ctrl-C, or the first before there was anything to save.
    print('dapo-jax: interrupted', file=sys.stderr)
    return 130


def run() -> None:
  """Runs the command of the command line and ends the process.

  A thread that is no more waited for, a grader's that hangs or is inside jax,
  would abort an interpreter that ends in the usual way.
  """
  try:
    status = main()
    if sys.stdout is not None:
      sys.stdout.flush()
  except Exception as error:
    if isinstance(error, BrokenPipeError) and _nobody_reads():
      status = 128 + signal.SIGPIPE
    else:
      sys.excepthook(*sys.exc_info())
      status = 1
  if any(thread.daemon for thread in threading.enumerate()):
    from dapo_jax.training import stopping

    stopping.leave(status)
  sys.exit(status)


def _nobody_reads() -> bool:
  """Returns whether who read what is printed has left, as `head` does.

  Then the rest goes nowhere.
  """
  if sys.stdout is None:
    return False
  poll = select.poll()
  poll.register(sys.stdout.fileno(), 0)
  broken = select.POLLERR | select.POLLHUP
  is_broken = any(event & broken for _, event in poll.poll(0))
  if is_broken:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  return is_broken


def _refused(error: OSError) -> str:
  """Returns what is said of a file that the system refuses."""
  file = error.filename2 or error.filename or 'a file'
  return (
    f'{file}: {error.strerror}; make room there or give access to it, and give '
    'the same command'
  )


def _give_virtual_devices_threads() -> None:
  """Lets programs with collectives end on virtual CPU devices.

  XLA:CPU blocks a thread for every collective that a device waits in. It has
  as many threads as devices, or as the variable NPROC says; two collectives
  under way at once then wait for each other's threads for ever.
  """
  flag = re.search(
    r'--xla_force_host_platform_device_count=(\d+)',
    os.environ.get('XLA_FLAGS', ''),
  )
  if flag:
    os.environ.setdefault('NPROC', str(8 * int(flag[1])))


def _dispatch(args: list[str]) -> int:
  """Answers for help and version, or runs a command."""
  name = args[0] if args else ''
  if name in ('--help', '-h', 'help'):
    print(_help())
    return 0
  if name == '--version':
    print(f'dapo-jax {dapo_jax.__version__}')
    return 0
  if name not in _COMMANDS:
    near = difflib.get_close_matches(name, _COMMANDS, n=1)
    hint = f'did you mean {near[0]}?' if near else 'see dapo-jax --help'
    problem = f'there is no command {name!r}' if name else 'name a command'
    raise config_lib.ConfigError(f'{problem}; {hint}')
  command = _COMMANDS[name]
  flag_values = flags.FlagValues()
  command.define_flags(flag_values)
  if {'--help', '-h'} & set(args[1:]):
    print(_command_help(command, flag_values))
    return 0
  return command.run(args[1:], flag_values) or 0


def _raised_here(error: ValueError) -> bool:
  """Says whether this package raised the error, not a library below it."""
  last = error.__traceback__
  while last.tb_next is not None:
    last = last.tb_next
  file = os.path.abspath(last.tb_frame.f_code.co_filename)
  return file.startswith(_PACKAGE + os.sep)


def _help() -> str:
  lines = [f'  {name:11}{c.summary}' for name, c in _COMMANDS.items()]
  return '\n'.join(
    [
      'Trains language models by reinforcement learning with DAPO, in JAX.',
      '',
      'Usage: dapo-jax COMMAND [FLAGS]',
      '',
      *lines,
      '',
      "`dapo-jax COMMAND --help` lists a command's flags.",
    ]
  )


def _command_help(command: _Command, flag_values: flags.FlagValues) -> str:
  lines = [f'  --{name:18}{flag_values[name].help}' for name in flag_values]
  if 'config' in flag_values:
    lines += [
      f'  --{"config.KEY":18}Another value for one key of the file, as in',
      f'  {"":20}--config.optim.lr=1e-3. configs/base.py lists every key',
      f'  {"":20}with its unit, source and default.',
    ]
  return '\n'.join([command.summary, '', f'Usage: {command.usage}', '', *lines])


_COMMANDS = {
  'train': _Command(
    run_commands.USAGE.format('train'),
    'Train a policy by reinforcement learning.',
    run_commands.define,
    run_commands.train,
  ),
  'sft': _Command(
    run_commands.USAGE.format('sft'),
    'Train a model on solved problems: the warm start of a policy.',
    run_commands.define,
    run_commands.sft,
  ),
  'eval': _Command(
    run_commands.USAGE.format('eval'),
    'Measure the accuracy of a model on held-out problems.',
    run_commands.define,
    run_commands.evaluate,
  ),
  'sample': _Command(
    'dapo-jax sample --model=DIR [FLAGS] PROMPT',
    'Print a response of a model to a prompt.',
    model_commands.define_sample,
    model_commands.sample,
  ),
  'serve': _Command(
    'dapo-jax serve --model=DIR [FLAGS]',
    'Answer requests of other programs, over gRPC, until Ctrl-C.',
    model_commands.define_serve,
    model_commands.serve,
  ),
  'fetch': _Command(
    'dapo-jax fetch smollm2 DIR',
    'Download a small open model as a Hugging Face folder.',
    model_commands.define_none,
    model_commands.fetch,
  ),
  'import-hf': _Command(
    'dapo-jax import-hf HF_DIR OUT [--allow_download]',
    'Make an Orbax model folder of a Hugging Face folder.',
    model_commands.define_import,
    model_commands.import_hf,
  ),
  'export-hf': _Command(
    'dapo-jax export-hf CHECKPOINT OUT [FLAGS]',
    'Write a trained policy as a Hugging Face folder.',
    model_commands.define_export,
    model_commands.export_hf,
  ),
  'data': _Command(
    data_command.USAGE,
    'Prepare problems: a data set of the papers, integer answers.',
    data_command.define,
    data_command.run,
  ),
  'plan': _Command(
    plan_command.USAGE,
    'Compile a job for a TPU slice that is not there: does it fit?',
    plan_command.define,
    plan_command.run,
  ),
}


if __name__ == '__main__':
  run()

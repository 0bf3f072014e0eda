"""The `plan` command: its flags, what it prints, and its exit status."""

import contextlib
import json
import logging as python_logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags, logging

from dapo_jax import config as config_lib

USAGE = 'dapo-jax plan --config=FILE --topology=SLICE [FLAGS]'
# Goes on under the first line of a flag's help, see `main`.
_NEXT_LINE = '\n' + 22 * ' '


def define(flag_values: flags.FlagValues) -> None:
  """Defines its flags."""
  config_lib.define_flag(flag_values)
  flags.DEFINE_string(
    'topology',
    None,
    f'The TPU slice: as Cloud calls it (v5p-256,{_NEXT_LINE}v5litepod-16, '
    'v6e-8), or its grid (v5p:4x4x8).',
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'num_slices', 1, 'Slices (default 1).', flag_values=flag_values
  )
  for name, text in (
    ('json', 'Print numbers instead of text.'),
    ('fast', 'Compile nothing: FLOPs, times and what is held.'),
  ):
    flags.DEFINE_bool(name, False, text, flag_values=flag_values)
  flags.DEFINE_bool(
    'sweep',
    None,
    f'Also try other meshes, policies and engines,{_NEXT_LINE}and rank them; '
    f'by itself those of what does not{_NEXT_LINE}fit, with --nosweep none.',
    flag_values=flag_values,
  )
  flags.DEFINE_string(
    'metrics',
    None,
    "A run's metrics.jsonl, to take lengths from.",
    flag_values=flag_values,
  )


def run(args: Sequence[str], flag_values: flags.FlagValues) -> int:
  """Prints a plan; returns 0 where it fits, else 1."""
  config, rest = config_lib.parse(args, flag_values, reads_problems=False)
  if rest:
    raise config_lib.ConfigError(f'unexpected argument {rest[0]!r}')
  if not flag_values.topology:
    raise config_lib.ConfigError(
      '--topology=SLICE is required, such as v5p-256 or v6e:4x4'
    )
  # Before jax looks for devices: none is used, not even one that is here.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  # It keeps programs for absent devices on disk, and then can't read them.
  os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
  from dapo_jax.planning import topology

  slices = topology.parse(
    flag_values.topology, num_slices=flag_values.num_slices
  )
  from dapo_jax.planning import (
    job_plan,
    measured_lengths,
    model_shapes,
    plan_json,
    plan_text,
    workload,
  )

  lengths = workload.of_config(config)
  if flag_values.metrics is not None:
    lengths = measured_lengths.of_metrics(flag_values.metrics, lengths)
  with _interruptible(), _told() as tell, _noted() as notes:
    spec = model_shapes.spec(config)
    plan = job_plan.make(
      config,
      spec,
      slices,
      lengths,
      compiles=not flag_values.fast,
      on_program=lambda name, number, count: tell(
        f'program {number} of {count}: {name}'
      ),
    )
    swept = _swept(plan, flag_values, tell)
  notes = list(dict.fromkeys(notes))
  if flag_values.json:
    made = plan_json.as_json(plan) | plan_json.choices(swept)
    print(json.dumps(made | {'notes': notes}))
  else:
    parts = [plan_text.render(plan), *plan_text.choices(swept)]
    print('\n\n'.join([*(f'Note: {note}' for note in notes), *parts]))
  return 0 if plan.fits else 1


def _swept(plan: Any, flag_values: flags.FlagValues, tell: Any) -> dict:
  """Returns other choices for phases: all if asked, or those that don't fit."""
  from dapo_jax.planning import step_programs, sweep

  bad = {phase.name for phase in plan.phases if not phase.fits}
  bad |= {report.phase for report in plan.faults}
  if flag_values.sweep is False:
    return {}
  if flag_values.sweep:
    bad = {step_programs.ROLLOUT, step_programs.UPDATE}
  job = plan.config, plan.spec, plan.slices, plan.lengths
  found = {}
  if step_programs.ROLLOUT in bad:
    tell('engines that would fit')
    with _silent():
      found[step_programs.ROLLOUT] = sweep.engines(
        *job, compiles=not flag_values.fast
      )
  if step_programs.UPDATE in bad and not flag_values.fast:
    with _silent():
      found[step_programs.UPDATE] = sweep.updates(
        *job,
        on_choice=lambda flags, count: tell(
          f'update {count + 1}: tensor {flags["mesh.tensor"]}, remat '
          f'{flags["model.remat"]}'
        ),
      )
  return found


@contextlib.contextmanager
def _silent() -> Iterator[None]:
  """Keeps back warnings: what is tried out was not asked for."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(before)


@contextlib.contextmanager
def _noted() -> Iterator[list[str]]:
  """Yields a list that gets what would be logged, which is a plan's to say."""
  notes: list[str] = []
  logger = logging.get_absl_logger()

  def keep(record: python_logging.LogRecord) -> bool:
    notes.append(record.getMessage())
    return False

  logger.addFilter(keep)
  try:
    yield notes
  finally:
    logger.removeFilter(keep)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
  """Lets Ctrl-C end the process at once.

  Python would hear it only when the compiler returns, minutes later. A thread
  hears it from a pipe, into which the signal is written as it comes.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  heard, told = os.pipe()
  os.set_blocking(told, False)
  # Compilers' messages are hidden by turning 2 elsewhere.
  terminal = os.dup(2)

  def listen() -> None:
    while number := os.read(heard, 1):
      if number[0] == signal.SIGINT:
        show_cursor = b'\r\x1b[2K\x1b[?25h' if os.isatty(terminal) else b''
        os.write(terminal, show_cursor + b'dapo-jax: interrupted\n')
        os._exit(130)

  listener = threading.Thread(target=listen)
  before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
  listener.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    os.close(told)
    listener.join()
    os.close(heard)
    os.close(terminal)


@contextlib.contextmanager
def _told() -> Iterator[Any]:
  """Yields what shows what is being done, on stderr.

  A line that moves on a terminal, nothing elsewhere. It has a handle of its
  own, for what compilers print there is hidden meanwhile.
  """
  if not sys.stderr.isatty():
    yield lambda text: None
    return
  from rich import console as rich_console

  with os.fdopen(os.dup(2), 'w') as terminal:
    console = rich_console.Console(file=terminal, force_terminal=True)
    with console.status('shapes') as status:
      yield lambda text: status.update(text)

"""The `plan` command: its flags, what it prints, and its exit status."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags, logging

from dapo_jax import config as config_lib

USAGE = 'dapo-jax plan --config=FILE --topology=SLICE [FLAGS]'
# Goes on under the first line of a flag's help, see `main`.
_NEXT_LINE = '\n' + 22 * ' '
# Files that a plan does not read.
_UNNEEDED = ('data.source', 'eval.source')


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
    (
      'sweep',
      f'Also try other meshes, policies and engines,{_NEXT_LINE}and rank them.',
    ),
  ):
    flags.DEFINE_bool(name, False, text, flag_values=flag_values)
  flags.DEFINE_string(
    'metrics',
    None,
    "A run's metrics.jsonl, to take lengths from.",
    flag_values=flag_values,
  )


def run(args: Sequence[str], flag_values: flags.FlagValues) -> int:
  """Prints a plan; returns 0 where it fits, else 1."""
  config, rest = config_lib.parse(args, flag_values, unneeded=_UNNEEDED)
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
    model_shapes,
    plan_json,
    plan_text,
    workload,
  )

  spec = model_shapes.spec(config)
  lengths = workload.of_config(config)
  if flag_values.metrics:
    lengths, _ = workload.of_metrics(flag_values.metrics, lengths)
  with _told() as tell:
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
  if flag_values.json:
    print(json.dumps(plan_json.as_json(plan) | plan_json.choices(swept)))
  else:
    print('\n\n'.join([plan_text.render(plan), *plan_text.choices(swept)]))
  return 0 if plan.fits else 1


def _swept(plan: Any, flag_values: flags.FlagValues, tell: Any) -> dict:
  """Returns other choices for phases: all if asked, or those that don't fit."""
  from dapo_jax.planning import step_programs, sweep

  bad = {phase.name for phase in plan.phases if not phase.fits}
  bad |= {report.phase for report in plan.faults}
  if flag_values.sweep:
    bad = {step_programs.ROLLOUT, step_programs.UPDATE}
  job = plan.config, plan.spec, plan.slices, plan.lengths
  found = {}
  if step_programs.ROLLOUT in bad:
    tell('engines that would fit')
    with _silent():
      found[step_programs.ROLLOUT] = sweep.engines(*job)
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

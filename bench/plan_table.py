"""Plans the papers' models on TPU slices, for the table of docs/planning.md.

    python bench/plan_table.py [--models=1.5b,3b,...] [--slices=v5p-256,...]

A line is what `dapo-jax plan --json` says with the flags that stand in it: the
update's heads over as many chips as there are key heads, at most eight; the
engine that `dapo-jax plan --fast --sweep` ranks first, with fewer slots where
its programs need more memory than was left to them; of the policies that fit,
the one that recomputes least. `smallest` looks for the smallest slice of any
generation, from 4 chips on, in which the job fits with everything recomputed.
What the compiler said is kept, so a second run is quick.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DCPO = 'configs/dcpo_qwen2p5_math.py:dcpo_'
_CONFIGS = {
  '1.5b': f'{_DCPO}1.5b',
  '3b': f'{_DCPO}3b',
  '7b': f'{_DCPO}7b',
  '14b': f'{_DCPO}14b',
  '32b': 'configs/dapo_qwen2p5_32b.py',
}
_CACHE = '--config.sampler.cache_gib='
_KV_HEADS = {'1.5b': 2, '3b': 2, '7b': 4, '14b': 8, '32b': 8}
# What recomputes least first.
_REMATS = ('dots', 'attention', 'full', 'offload')
_SLICES = ('v5p-256', 'v6e-256', 'v5litepod-256', 'smallest')
# From the smallest on; of as many chips, those with less memory first.
_ASCENDING = (
  *('v5litepod-4', 'v6e-4', 'v5p-8', 'v5litepod-8', 'v6e-8', 'v5p-16'),
  *('v5litepod-16', 'v6e-16', 'v5p-32', 'v5litepod-32', 'v6e-32', 'v5p-64'),
  *('v5litepod-64', 'v6e-64', 'v5p-128'),
)
_COLUMNS = (
  f'{"model":6}{"slice":15}{"chips":>6}  {"rollout":>8}{"update":>8}  '
  f'{"of GiB":>7}  {"rollout s":>13}{"update s":>13}  {"MFU":>9}  '
  f'{"updates a day":>15}  flags'
)


def main() -> None:
  """Prints a line for each model and slice."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--models', default=','.join(_CONFIGS))
  parser.add_argument('--slices', default=','.join(_SLICES))
  args = parser.parse_args()
  print(_COLUMNS, flush=True)
  for model in args.models.split(','):
    for name in args.slices.split(','):
      if name == 'smallest':
        plan, flags = _first_that_fits(model, _ASCENDING, ('full', 'offload'))
      else:
        plan, flags = _first_that_fits(model, (name,), _REMATS)
      print(_line(model, plan, flags), flush=True)


def _first_that_fits(
  model: str, names: Sequence[str], remats: Sequence[str]
) -> tuple[Mapping[str, Any], Sequence[str]]:
  """Returns the plan of the first slice in which it fits, else of the last."""
  plan, flags = {}, []
  for name in names:
    for flags in _flags(model, name, remats):
      plan, flags = _with_fewer_slots(model, name, flags)
      if plan.get('fits'):
        return plan, flags
  return plan, flags


def _with_fewer_slots(
  model: str, name: str, flags: list[str]
) -> tuple[Mapping[str, Any], list[str]]:
  """Returns a plan whose slots, if they alone do not fit, are made fewer."""
  plan = _plan(model, name, flags)
  given = [flag for flag in flags if flag.startswith(_CACHE)]
  if not plan or plan['fits'] or not given:
    return plan, flags
  if not plan['phases']['update']['fits']:
    return plan, flags
  cache_gib = float(given[0].removeprefix(_CACHE))
  fewer = f'{_CACHE}{0.8 * cache_gib:.1f}'
  flags = [fewer if flag == given[0] else flag for flag in flags]
  return _plan(model, name, flags), flags


def _flags(model: str, name: str, remats: Sequence[str]) -> Iterator[list[str]]:
  """Yields what a plan may be asked with, for one policy after the other.

  Nothing where what is held alone does not fit.
  """
  heads = _KV_HEADS[model]
  chips = int(name.rpartition('-')[2]) // (2 if name.startswith('v5p') else 1)
  tensor = min(heads, 8, chips)
  update = [f'--config.mesh.tensor={tensor}']
  swept = _plan(model, name, [*update, '--fast'], sweep=True)
  if 'choices' not in swept or not swept['phases']['update']['fits']:
    return
  best = swept['choices']['rollout'][0]
  if best['why_not']:
    return
  engine = [
    f'--config.{key}={value}'
    for key, value in best['flags'].items()
    if value is not None
  ]
  for remat in remats:
    # Products of 64 layers and 22,528 tokens are 37 GB, over 8 chips.
    if (model, remat) != ('32b', 'dots') or name.startswith('v5p'):
      yield [*update, *engine, f'--config.model.remat={remat}']


def _plan(
  model: str, name: str, flags: Sequence[str], *, sweep: bool = False
) -> Mapping[str, Any]:
  """Returns what `dapo-jax plan` says; nothing where it refuses."""
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'dapo_jax.main', 'plan', '--json'),
      *(f'--config={_CONFIGS[model]}', f'--topology={name}', *flags),
      '--sweep' if sweep else '--nosweep',
    ],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode > 1:
    print(f'{model} {name} {" ".join(flags)}: {done.stderr}', file=sys.stderr)
    return {}
  return json.loads(done.stdout)


def _line(model: str, plan: Mapping[str, Any], flags: Sequence[str]) -> str:
  if not plan or not plan['fits']:
    return f'{model:6}does not fit'
  phases, times = plan['phases'], plan['times_s']
  worst, best = plan['update_mfu_frac']
  low, high = plan['updates_per_day']
  short = ' '.join(flag.removeprefix('--config.') for flag in flags)
  pair = lambda times: f'{times[0]:.0f}..{times[1]:.0f}'
  return (
    f'{model:6}{plan["cloud_name"] + "*" * bool(plan["doubt"]):15}'
    f'{plan["chips_count"]:6d}  '
    f'{phases["rollout"]["total_gib"]:8.1f}{phases["update"]["total_gib"]:8.1f}'
    f'  {phases["update"]["limit_gib"]:7.2f}  {pair(times["rollout"]):>13}'
    f'{pair(times["update"]):>13}  {f"{worst:.0%}..{best:.0%}":>9}  '
    f'{f"{low:,.0f}..{high:,.0f}":>15}  {short}'
  )


if __name__ == '__main__':
  main()

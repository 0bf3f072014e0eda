"""Kills a training run at random instants and compares it with one unbroken.

    python bench/kill_test.py [--trials=30] [--seed=0] [--kills=6]
        [--cases=sas,refill,ppo]

A trial starts the run of `kill_test_config.py` again and again in one work
directory and ends it by SIGKILL: at an instant of the whole run's time, or just
after a sign of what it does is seen (a save that begins, a step that is done
but for its evaluation, a line of metrics), until it ends by itself. Compared
with the unbroken run, bit by bit: every line of metrics but its times, every
sample with its draw, and the whole last checkpoint: parameters, moments,
counters, history. Prints a line a trial, and the sums.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_CONFIG = _ROOT / 'bench/kill_test_config.py'
sys.path.insert(0, str(_ROOT))

# What a kill waits for.
_SIGNS = ('time', 'time', 'save', 'evaluation', 'rollout')
# Longest wait after a sign, [s].
_AFTER_S = 0.25
# Metrics that tell of the machine.
_TIMES = ('time/', 'sampler/tokens_per_s')
_NEVER_S = 600.0


class Case(NamedTuple):
  """A run that is killed, and what it is without."""

  name: str
  model: pathlib.Path
  unbroken: pathlib.Path
  unbroken_s: float


class Kill(NamedTuple):
  """When a run was ended."""

  after_s: float
  step: int  # the last that has its line
  during: str


def main() -> None:
  """Runs the trials; the exit status is 1 if anything differs."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--trials', type=int, default=30)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument(
    '--kills', type=int, default=6, help='most in a trial, so that it ends'
  )
  parser.add_argument('--cases', default='sas,refill,ppo')
  args = parser.parse_args()
  with tempfile.TemporaryDirectory(prefix='kill_test_') as name:
    folder = pathlib.Path(name)
    os.environ['JAX_COMPILATION_CACHE_DIR'] = str(folder / 'cache')
    os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
    cases = [prepare(case, folder) for case in args.cases.split(',')]
    kills_count = differences_count = 0
    for trial in range(args.trials):
      case = cases[trial % len(cases)]
      workdir = folder / f'trial{trial}'
      source = random.Random(f'{args.seed} {trial}')
      kills = run_and_kill(case, workdir, source, most_kills=args.kills)
      found = differences(case.unbroken, workdir)
      print(trial_line(trial, case, kills, found), flush=True)
      kills_count += len(kills)
      differences_count += len(found)
  print(
    f'{args.trials} trials, {kills_count} kills, '
    f'{differences_count} differences'
  )
  sys.exit(bool(differences_count))


def prepare(name: str, folder: pathlib.Path) -> Case:
  """Returns a case with its unbroken run, timed when all is compiled."""
  model = folder / 'sft' / 'model'
  if not model.exists():
    _run('sft', name, folder / 'sft', []).check_returncode()
  flag = f'--config.model.path={model}'
  # The first compiles; the second is as fast as those that will be killed.
  _run('train', name, folder / f'{name}_compiles', [flag]).check_returncode()
  begin = time.perf_counter()
  unbroken = folder / name
  _run('train', name, unbroken, [flag]).check_returncode()
  seconds = time.perf_counter() - begin
  print(f'{name}: unbroken in {seconds:.1f} s', flush=True)
  return Case(name, model, unbroken, seconds)


def run_and_kill(
  case: Case,
  workdir: pathlib.Path,
  source: random.Random,
  *,
  most_kills: int,
) -> list[Kill]:
  """Runs a case to its end, and returns when it was killed."""
  kills = []
  while True:
    process = subprocess.Popen(
      _command('train', case.name, workdir)
      + [f'--config.model.path={case.model}'],
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      cwd=_ROOT,
    )
    begin = time.perf_counter()
    if len(kills) < most_kills:
      sign = source.choice(_SIGNS)
      limit_s = source.uniform(0, case.unbroken_s)
      _wait(process, workdir, sign, limit_s, source.uniform(0, _AFTER_S))
      process.kill()
    errors = process.communicate()[1]
    if process.returncode == 0:
      return kills
    if process.returncode != -9:
      sys.exit(f'{case.name} ended by itself:\n{errors.decode()}')
    kills.append(
      Kill(time.perf_counter() - begin, _last_step(workdir), _phase(workdir))
    )


def differences(unbroken: pathlib.Path, broken: pathlib.Path) -> list[str]:
  """Returns the names of all that is not the same, bit by bit."""
  found = []
  for name in ('metrics.jsonl', 'samples.jsonl'):
    ours, theirs = (_rows(folder / name) for folder in (broken, unbroken))
    if len(ours) != len(theirs):
      found.append(f'{name}: {len(ours)} rows for {len(theirs)}')
      continue
    found += [
      f'{name}:{number} {key}'
      for number, (a, b) in enumerate(zip(ours, theirs, strict=True))
      for key in sorted(a.keys() | b.keys())
      if a.get(key) != b.get(key)
    ]
  ours, theirs = (_arrays(folder) for folder in (broken, unbroken))
  found += [
    f'checkpoint {path}'
    for path in sorted(ours.keys() | theirs.keys())
    if path not in ours
    or path not in theirs
    or ours[path].tobytes() != theirs[path].tobytes()
  ]
  return found


def trial_line(
  trial: int, case: Case, kills: list[Kill], found: list[str]
) -> str:
  """Returns what became of a trial, in one line."""
  told = ', '.join(
    f'{k.after_s:.1f} s after its start in {k.during}, step {k.step} written'
    for k in kills
  )
  line = f'trial {trial} {case.name}: {len(kills)} kills'
  line += f' ({told})' if told else ''
  line += f', {len(found)} differences'
  return line + (f': {"; ".join(found[:5])}' if found else '')


def _command(task: str, case: str, workdir: pathlib.Path) -> list[str]:
  return [
    *(sys.executable, '-m', 'dapo_jax.main', task),
    *(f'--config={_CONFIG}:{case}', f'--workdir={workdir}'),
  ]


def _run(task: str, case: str, workdir: pathlib.Path, flags: list[str]):
  return subprocess.run(
    _command(task, case, workdir) + flags,
    cwd=_ROOT,
    stdout=subprocess.DEVNULL,
  )


def _wait(
  process: subprocess.Popen,
  workdir: pathlib.Path,
  sign: str,
  limit_s: float,
  after_s: float,
) -> None:
  """Returns at the instant of a kill, or when the run has ended."""
  begin = time.perf_counter()
  first = _last_step(workdir)
  passed_s = lambda: time.perf_counter() - begin
  while process.poll() is None and passed_s() < _NEVER_S:
    if sign == 'time' and passed_s() >= limit_s:
      return
    seen = {
      'time': False,
      'save': _phase(workdir) == 'a save',
      'evaluation': _phase(workdir) == 'an evaluation',
      'rollout': _last_step(workdir) > first,
    }[sign]
    # A sign that may be of the run before counts after a while only.
    if seen and passed_s() > limit_s / 2:
      time.sleep(after_s)
      return
    time.sleep(0.002)


def _phase(workdir: pathlib.Path) -> str:
  """Returns what a run is doing, as far as its files tell."""
  if any(workdir.glob('checkpoints/*tmp*')):
    return 'a save'
  if _last_step(workdir, 'samples.jsonl') > _last_step(workdir):
    return 'an evaluation'
  return 'rollout or update'


def _last_step(workdir: pathlib.Path, name: str = 'metrics.jsonl') -> int:
  """Returns the step of a file's last whole line; -1 without one."""
  try:
    lines = (workdir / name).read_bytes().split(b'\n')[:-1]
    return json.loads(lines[-1])['step'] if lines else -1
  except (FileNotFoundError, ValueError):
    return -1


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  return [
    {k: v for k, v in row.items() if not k.startswith(_TIMES)} for row in rows
  ]


def _arrays(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns all of the last checkpoint, by path."""
  import jax
  import orbax.checkpoint as ocp

  steps = [p for p in (workdir / 'checkpoints').iterdir() if p.name.isdigit()]
  last = max(steps, key=lambda p: int(p.name))
  state = ocp.StandardCheckpointer().restore(last / 'state')
  found = {
    jax.tree_util.keystr(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state)
  }
  about = json.loads((last / 'about' / 'metadata').read_text())
  del about['config']
  return found | {
    f'about {key}': np.array(json.dumps(value)) for key, value in about.items()
  }


if __name__ == '__main__':
  main()

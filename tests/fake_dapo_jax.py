"""A stand-in for `dapo-jax` in tests of launch/: counts steps, and goes on.

Its work directory and its checkpoints look like a run's. A configuration's
name says what it does: `bad.py` is refused, `crash.py` fails at step 3. It
stays at the first step of `holds` in CLOUD/state.json, until that is another:
so what happens to it there does not depend on time.
"""

import json
import os
import pathlib
import signal
import sys
import time

_STEP_S = 0.05
_EVERY = 2  # steps from one checkpoint to the next


def _flag(name: str, default: str = '') -> str:
  found = [a.split('=', 1)[1] for a in sys.argv if a.startswith(f'--{name}=')]
  return found[-1] if found else default


def _numbers(file: pathlib.Path) -> list[int]:
  """Returns the steps that have a line of metrics."""
  lines = file.read_text().splitlines() if file.exists() else []
  return [json.loads(line)['step'] for line in lines]


def _hold(step: int, stopped: list[int]) -> None:
  """Returns when it is not to stay at this step."""
  state = pathlib.Path(os.environ['FAKE_CLOUD'], 'state.json')
  while json.loads(state.read_text())['holds'][:1] == [step] and not stopped:
    time.sleep(0.01)


def _saved(checkpoints: pathlib.Path) -> int:
  steps = [int(path.name) for path in checkpoints.glob('[0-9]*')]
  return max(steps, default=0)


def _others(checkpoints: pathlib.Path, stopped: list[int]) -> int:
  """Is a process that is not the first: it ends when the first has ended."""
  while not (checkpoints / 'end').exists() and not stopped:
    time.sleep(_STEP_S / 2)
  return 0


def main() -> int:
  """Runs, and returns the exit status."""
  stopped: list[int] = []
  signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
  signal.signal(signal.SIGINT, lambda number, _: stopped.append(number))
  workdir = pathlib.Path(_flag('workdir'))
  folder = _flag('config.checkpoint.folder', str(workdir / 'checkpoints'))
  checkpoints = pathlib.Path(folder.replace('gs:/', os.environ['FAKE_BUCKETS']))
  checkpoints.mkdir(parents=True, exist_ok=True)
  workdir.mkdir(parents=True, exist_ok=True)
  config = _flag('config')
  if config == 'bad.py':
    print('dapo-jax: error: there is no key optim.learning', file=sys.stderr)
    return 2
  if os.environ.get('DAPO_JAX_FIRST', 'true') != 'true':
    return _others(checkpoints, stopped)
  (checkpoints / 'end').unlink(missing_ok=True)
  try:
    return _run(workdir, checkpoints, config, stopped)
  finally:
    (checkpoints / 'end').touch()


def _run(workdir, checkpoints, config: str, stopped: list[int]) -> int:
  step, steps = _saved(checkpoints), int(_flag('config.train.steps', '8'))
  metrics = workdir / 'metrics.jsonl'
  kept = [{'step': number} for number in _numbers(metrics) if number <= step]
  metrics.write_text(''.join(json.dumps(line) + '\n' for line in kept))
  print(f'resumed after step {step}' if step else 'begun', flush=True)
  while step < steps:
    time.sleep(_STEP_S)
    step += 1
    with open(metrics, 'a') as file:
      file.write(json.dumps({'step': step}) + '\n')
    print(f'step {step}', flush=True)
    if config == 'crash.py' and step == 3:
      print('RuntimeError: out of memory', file=sys.stderr)
      return 1
    if step % _EVERY == 0:
      (checkpoints / str(step)).touch()
    _hold(step, stopped)
    if stopped:
      (checkpoints / str(step)).touch()
      print(f'stopped after {step} of {steps} steps', flush=True)
      return 0
  (checkpoints / str(step)).touch()
  (workdir / 'model').mkdir(exist_ok=True)
  (workdir / 'model' / 'config.json').write_text('{}')
  print('done: the policy is', workdir / 'model', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())

"""A stand-in for `gcloud` in tests of launch/: workers are folders.

It notes every call in CLOUD/calls.jsonl, keeps what there is in
CLOUD/state.json, and really runs what is to be run on a worker, its home being
CLOUD/machines/NODE/wN. `faults` of the state are what goes wrong, each once, in
order: when (a word of the call), step (of the run, to be waited for; the run
stays there) and what.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

_CLOUD = pathlib.Path(os.environ['FAKE_CLOUD'])
_MACHINES = _CLOUD / 'machines'


@contextlib.contextmanager
def _state() -> Iterator[dict[str, Any]]:
  """Yields what there is, and keeps what becomes of it."""
  with open(_CLOUD / 'lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    file = _CLOUD / 'state.json'
    state = json.loads(file.read_text())
    yield state
    half = file.with_suffix('.half')
    half.write_text(json.dumps(state))
    half.replace(file)


def _fault(call: str) -> dict[str, Any] | None:
  """Returns what goes wrong in this call, and takes it off the list."""
  with _state() as state:
    faults = state['faults']
    if faults and faults[0]['when'] in call:
      return faults.pop(0)
  return None


def _say(message: str) -> int:
  print(f'ERROR: (gcloud) {message}', file=sys.stderr)
  return 1


def _workers(node: str) -> list[pathlib.Path]:
  return sorted((_MACHINES / node).iterdir())


def _step(node: str) -> int:
  """Returns the step that the run of a node is at."""
  files = _MACHINES.glob(f'{node}/w0/dapo_jax_runs/*/workdir/metrics.jsonl')
  last = [line for f in files for line in f.read_text().splitlines()[-1:]]
  return max((json.loads(line)['step'] for line in last), default=0)


def _pids(node: str) -> list[int]:
  files = sorted(_MACHINES.glob(f'{node}/*/dapo_jax_runs/*/pid'))
  return [int(file.read_text()) for file in files]


def _preempt(state: dict[str, Any]) -> None:
  """Takes every machine away, as it is."""
  for node in state['nodes']:
    for pid in _pids(node):
      with contextlib.suppress(ProcessLookupError):
        os.killpg(os.getpgid(pid), signal.SIGKILL)
    shutil.rmtree(_MACHINES / node, ignore_errors=True)
    state['nodes'][node] = 'PREEMPTED'
  state['resource'] = 'SUSPENDED'


def _go_wrong(fault: dict[str, Any], node: str) -> int | None:
  """Does what the fault says; returns the status of the call, if it ends."""
  while _step(node) < fault.get('step', 0):
    time.sleep(0.01)
  what = fault['what']
  if what == 'terminate':
    for pid in _pids(node):
      os.kill(pid, signal.SIGTERM)
  with _state() as state:
    state['holds'] = state['holds'][1:]
    if what == 'preempt':
      _preempt(state)
  return None if what == 'terminate' else 255


def _resources(
  verb: str, name: str, flags: dict[str, str], *, waits: bool
) -> int:
  with _state() as state:
    if verb == 'create':
      if state['resource']:
        return _say(f'ALREADY_EXISTS: {name}')
      count = int(flags.get('node-count', 1))
      nodes = [name] if count == 1 else [f'{name}-{i}' for i in range(count)]
      state.update(resource='WAITING_FOR_RESOURCES')
      state['nodes'] = dict.fromkeys(nodes, 'READY')
      for node in nodes:
        for i in range(state['hosts']):
          (_MACHINES / node / f'w{i}').mkdir(parents=True)
    elif not state['resource']:
      return _say(f'NOT_FOUND: no queued resource {name}')
    elif verb == 'describe':
      print(state['resource'])
      if state['resource'] == 'WAITING_FOR_RESOURCES' and not waits:
        state['resource'] = 'ACTIVE'
    else:
      _preempt(state)
      state.update(resource='', nodes={})
      with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(_MACHINES)
  return 0


def _on_workers(node: str, flags: dict[str, str]) -> int:
  """Runs a command on workers, one after the other."""
  workers = _workers(node)
  if flags['worker'] != 'all':
    workers = [workers[int(flags['worker'])]]
  status = 0
  for home in workers:
    done = subprocess.run(
      ['bash', '-c', flags['command']],
      cwd=home,
      env=os.environ | {'HOME': str(home)},
    )
    status = status or done.returncode
  return status


def _vm(verb: str, words: list[str], flags: dict[str, str]) -> int:
  if verb == 'scp':
    source, (node, target) = words[0], words[1].split(':')
  else:
    node = words[0]
  with _state() as state:
    found = state['nodes'].get(node)
  if found is None:
    return _say(f'NOT_FOUND: no node {node}')
  if verb == 'describe':
    print(found)
    return 0
  if found != 'READY':
    print('ssh: connection timed out', file=sys.stderr)
    return 255
  if verb == 'ssh':
    fault = _fault(flags['command'])
    status = _go_wrong(fault, node) if fault else None
    return _on_workers(node, flags) if status is None else status
  for home in _workers(node):
    shutil.copy(source, home / target)
  return 0


def main() -> int:
  """Does what the command line says, and returns the exit status."""
  args = sys.argv[1:]
  with open(_CLOUD / 'calls.jsonl', 'a') as file:
    file.write(json.dumps(['gcloud', *args]) + '\n')
  flags = {}
  for arg in args:
    if match := re.fullmatch('--([^=]+)=?(.*)', arg, re.DOTALL):
      flags[match[1]] = match[2]
  words = [arg for arg in args if not arg.startswith('--')]
  if words[0] == 'config':
    print({'project': 'some-project'}.get(words[2], 'some-zone'))
    return 0
  _, _, kind, verb, *rest = words
  fault = _fault(' '.join(words)) or {'what': ''}
  if fault['what'] == 'refuse':
    return _say(fault['message'])
  if kind == 'queued-resources':
    waits = fault['what'] == 'wait'
    return _resources(verb, rest[0], flags, waits=waits)
  return _vm(verb, rest, flags)


if __name__ == '__main__':
  sys.exit(main())

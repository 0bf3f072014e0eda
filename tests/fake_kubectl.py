"""A stand-in for `kubectl` in tests of launch/, with JobSets that have one pod.

It notes every call in CLOUD/calls.jsonl, and keeps the JobSet that was applied
in CLOUD/jobset.json. What a pod does is really run, by `logs`; CLOUD/state.json
has what goes wrong, in the manner of fake_gcloud, and in `pending` how often no
pod is begun yet. Then it does as Kubernetes does by the JobSet's policies.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import yaml

_CLOUD = pathlib.Path(os.environ['FAKE_CLOUD'])
_JOBSET = _CLOUD / 'jobset.json'
_STATE = _CLOUD / 'state.json'
# Where a pod has its volume, by gke.sh and by xpk.sh.
_MOUNTS = ('/run/dapo-jax', '/tmp/dapo-jax')


def apply(manifest: dict[str, Any]) -> None:
  """Makes a JobSet."""
  about = {'manifest': manifest, 'restarts': 0, 'condition': '', 'begun': False}
  _JOBSET.write_text(json.dumps(about))


def delete() -> None:
  """Deletes it, if there is one."""
  _JOBSET.unlink(missing_ok=True)


def _pod(about: dict[str, Any]) -> str:
  return (
    f'{about["manifest"]["metadata"]["name"]}-slice-0-0-{about["restarts"]}'
  )


def _step(volume: pathlib.Path) -> int:
  file = volume / 'metrics.jsonl'
  lines = file.read_text().splitlines() if file.exists() else []
  return json.loads(lines[-1])['step'] if lines else 0


def _run_pod(about: dict[str, Any]) -> int:
  """Runs the container of a pod; returns its exit status."""
  pod = about['manifest']['spec']['replicatedJobs'][0]['template']['spec'][
    'template'
  ]['spec']
  [container] = pod['containers']
  volume = pathlib.Path(tempfile.mkdtemp(dir=_CLOUD))
  args = container['args']
  for mount in _MOUNTS:
    args = [a.replace(mount, str(volume)) for a in args]
  state = json.loads(_STATE.read_text())
  process = subprocess.Popen(
    [*container['command'], *args],
    cwd=os.environ['FAKE_IMAGE'],
    start_new_session=True,
  )
  if state['faults']:
    fault = state['faults'].pop(0)
    while _step(volume) < fault['step']:
      time.sleep(0.01)
    if fault['what'] == 'preempt':
      os.killpg(process.pid, signal.SIGKILL)
    else:
      process.send_signal(signal.SIGTERM)
    half = _STATE.with_suffix('.half')
    half.write_text(json.dumps(state | {'holds': state['holds'][1:]}))
    half.replace(_STATE)
  status = process.wait()
  return status if status >= 0 else 128 - status


def _end_pod(about: dict[str, Any], status: int) -> None:
  """Does what the policies say of a pod that ended."""
  spec = about['manifest']['spec']
  job = spec['replicatedJobs'][0]['template']['spec']
  [rule] = job['podFailurePolicy']['rules']
  if status == 0:
    about['condition'] = 'Completed'
  elif status in rule['onExitCodes']['values']:
    about['condition'] = 'Failed'
  elif about['restarts'] == spec['failurePolicy']['maxRestarts']:
    about['condition'] = 'Failed'
  else:
    about['restarts'] += 1


def _pods(about: dict[str, Any], template: str) -> int:
  """Prints the pods that are begun; kubectl can take none out of no list."""
  state = json.loads(_STATE.read_text())
  if pending := state.get('pending', 0):
    half = _STATE.with_suffix('.half')
    half.write_text(json.dumps(state | {'pending': pending - 1}))
    half.replace(_STATE)
    if '[-1' in template:
      print('error: array index out of bounds', file=sys.stderr)
    return 1 if '[-1' in template else 0
  print(_pod(about), 'Running')
  return 0


def main() -> int:
  """Does what the command line says, and returns the exit status."""
  args = sys.argv[1:]
  with open(_CLOUD / 'calls.jsonl', 'a') as file:
    file.write(json.dumps(['kubectl', *args]) + '\n')
  words = [arg for arg in args if not arg.startswith('--')]
  about = json.loads(_JOBSET.read_text()) if _JOBSET.exists() else None
  if words == ['config', 'current-context']:
    print('some-cluster')
  elif words[0] == 'apply':
    apply(yaml.safe_load(sys.stdin))
  elif words[0] == 'delete':
    delete()
  elif words[0] == 'logs':
    _end_pod(about, _run_pod(about))
    _JOBSET.write_text(json.dumps(about))
  elif words[:2] == ['get', 'jobset'] and about:
    print(words[2], about['condition'], end='')
  elif words[:2] == ['get', 'pods'] and about:
    return _pods(about, args[-1])
  return 0


if __name__ == '__main__':
  sys.exit(main())

"""A stand-in for `xpk` in tests of launch/.

A workload is a JobSet, which fake_kubectl runs. It notes every call in
CLOUD/calls.jsonl.
"""

import json
import os
import pathlib
import sys

import fake_kubectl

_CLOUD = pathlib.Path(os.environ['FAKE_CLOUD'])
# Those after which xpk restarts, whatever it is told.
_RESTARTED = {42, *range(127, 256)}


def _jobset(flags: dict[str, str]) -> dict:
  """Returns what xpk makes of its flags, as far as the fake looks at it."""
  told = {int(n) for n in flags['restart-on-exit-codes'].split(',')}
  failing = sorted(set(range(1, 256)) - _RESTARTED - told)
  container = {'command': ['bash', '-c'], 'args': [flags['command']]}
  rule = {'onExitCodes': {'values': failing}}
  job = {
    'podFailurePolicy': {'rules': [rule]},
    'template': {'spec': {'containers': [container]}},
  }
  return {
    'metadata': {'name': flags['workload']},
    'spec': {
      'failurePolicy': {'maxRestarts': int(flags['max-restarts'])},
      'replicatedJobs': [{'template': {'spec': job}}],
    },
  }


def main() -> int:
  """Does what the command line says, and returns the exit status."""
  args = sys.argv[1:]
  with open(_CLOUD / 'calls.jsonl', 'a') as file:
    file.write(json.dumps(['xpk', *args]) + '\n')
  flags = dict(
    arg[2:].split('=', 1) for arg in args if '=' in arg and arg[:2] == '--'
  )
  if args[:2] == ['workload', 'create']:
    fake_kubectl.apply(_jobset(flags))
  elif args[:2] == ['workload', 'delete']:
    fake_kubectl.delete()
  return 0


if __name__ == '__main__':
  sys.exit(main())

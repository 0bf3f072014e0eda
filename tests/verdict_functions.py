"""What the tests of the verifiers judge with, in worker processes.

A function there is imported by name, so it cannot stand in the test itself.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

from dapo_jax.rewards import verdicts


def equal(answer: str, gold: str) -> bool:
  """Returns whether the texts are equal."""
  return answer == gold


def fails(answer: str, gold: str) -> bool:
  """Has no verdict."""
  raise ValueError(f'{answer} and {gold}')


def act(answer: str, gold: str) -> object:
  """Does what the answer says, if that is a name below; else as `equal`."""
  return _ACTS.get(answer, equal)(answer, gold)


def hash_seed_is_zero(answer: str, gold: str) -> bool:
  """Returns whether texts are hashed as everywhere."""
  return (
    os.environ['PYTHONHASHSEED'] == '0' and not sys.flags.hash_randomization
  )


def _note(answer, gold):
  """Adds a line to the file that the gold names."""
  with open(gold, 'a', encoding='utf-8') as file:
    file.write(f'{os.getpid()}\n')
  return True


def _note_and_sleep(answer, gold):
  time.sleep(0.2)
  return _note(answer, gold)


def _note_and_hang(answer, gold):
  _note(answer, gold)
  return _compute(answer, gold)


def _compute(answer, gold):
  # One operation of minutes: no other thread of the process goes on.
  return bool(3 ** (10**9))


def _crash(answer, gold):
  os.kill(os.getpid(), signal.SIGSEGV)
  return True


def _fill(answer, gold):
  kept = []
  while True:
    # Large, so that it is not touched: the limit is reached at once.
    kept.append(bytearray(1 << 26))


def _recurse(answer, gold):
  return _recurse(answer, gold)


def _raise(answer, gold):
  raise ZeroDivisionError('of\nmine')


def _print(answer, gold):
  print('printed')
  print('printed', file=sys.stderr)
  os.write(1, b'printed')
  os.write(2, b'printed')
  return sys.stdin.read() == ''


def _start_a_process(answer, gold):
  code = 'import time; time.sleep(3600)'
  with open(gold, 'w', encoding='utf-8') as file:
    file.write(str(subprocess.Popen([sys.executable, '-c', code]).pid))
  return True


def _fork(answer, gold):
  os.fork()
  return True


def _fork_and_sleep(answer, gold):
  for _ in range(3):
    if not os.fork():
      time.sleep(3600)
  with open(gold, 'w', encoding='utf-8') as file:
    for children in os.listdir(f'/proc/{os.getpid()}/task'):
      path = f'/proc/{os.getpid()}/task/{children}/children'
      with open(path, encoding='utf-8') as found:
        file.write(found.read())
  return True


def _close_all(answer, gold):
  os.closerange(0, 1000)
  return True


def _garble(answer, gold, text=b'\0\0\0\2no'):
  # Whatever is open takes it, the connection to the parent too.
  for descriptor in range(3, 100):
    with contextlib.suppress(OSError):
      os.write(descriptor, text)
  return True


def _move(answer, gold):
  os.chdir('/')
  os.environ.clear()
  sys.path.clear()
  return True


def _limit(answer, gold):
  sys.setrecursionlimit(60)
  signal.signal(signal.SIGALRM, signal.SIG_IGN)
  signal.setitimer(signal.ITIMER_REAL, 0.001)
  return True


_ACTS = {
  'fork': _fork,
  'fork and sleep': _fork_and_sleep,
  'close all': _close_all,
  'garble': _garble,
  'garble a message': lambda a, g: _garble(a, g, b'\0\0\0\2{}'),
  'move': _move,
  'limit': _limit,
  'note': _note,
  'note and sleep': _note_and_sleep,
  'note and hang': _note_and_hang,
  'compute': _compute,
  'sleep': lambda answer, gold: time.sleep(3600),
  'exit': lambda answer, gold: os._exit(0),
  'leave': lambda answer, gold: sys.exit(),
  'crash': _crash,
  'fill': _fill,
  'recurse': _recurse,
  'raise': _raise,
  'print': _print,
  'start a process': _start_a_process,
  'one': lambda answer, gold: 1,
  'function': lambda answer, gold: equal,
}


def graded_by_length(response, prompt):
  """A grader of a user's that pays for characters."""
  del prompt
  return verdicts.Verdict(float(len(response)), False, response)

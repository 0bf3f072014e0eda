"""What the tests of launch/ run its scripts with.

That is a small repository, and fakes of the programs that the scripts call.
"""

import json
import os
import pathlib
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
_TESTS = ROOT / 'tests'
_LIMIT_S = 60.0

# Python of a worker: gs:// is a folder, and `-m venv` makes one of fakes.
_PYTHON = """#!/usr/bin/env bash
if [[ "$*" == "-m venv"* ]]; then
  mkdir -p "${@: -1}/bin"
  cp "$FAKE_BIN"/{python,pip,dapo-jax} "${@: -1}/bin/"
else
  exec REAL "${@//gs:\\//$FAKE_BUCKETS}"
fi
"""


class Done(NamedTuple):
  """How a script ended."""

  status: int
  output: str


class Place:
  """A temporary folder with a repository, fakes and what they note."""

  def __init__(self, case: Any, *, hosts: int = 1):
    """Is removed at the end of a test.

    Args:
      case: the test.
      hosts: of a slice.
    """
    folder = tempfile.TemporaryDirectory()
    case.addCleanup(folder.cleanup)
    self.path = pathlib.Path(folder.name)
    self.repository = self.path / 'repository'
    self.cloud = self.path / 'cloud'
    self.buckets = self.path / 'buckets'
    self.bin = self.path / 'bin'
    for made in (self.repository, self.cloud, self.buckets, self.bin):
      made.mkdir()
    shutil.copytree(ROOT / 'launch', self.repository / 'launch')
    # As fake_dapo_jax knows them.
    for config in ('good.py', 'bad.py', 'crash.py'):
      (self.repository / config).touch()
    self._git('init', '--quiet')
    self._git('add', '.')
    author = ('-c', 'user.name=a', '-c', 'user.email=a@example.com')
    self._git(*author, 'commit', '--quiet', '--message=All')
    self.set_state(resource='', nodes={}, hosts=hosts, faults=[], holds=[])
    real = shlex.quote(sys.executable)
    python = _PYTHON.replace('REAL', real)
    for name in ('python', 'python3.12', 'python3.11'):
      self.program(name, python)
    self.program('pip', '#!/bin/sh\necho "$0 $*" >>"$FAKE_CLOUD/pip.txt"\n')
    for name in ('dapo-jax', 'gcloud', 'kubectl', 'xpk'):
      file = _TESTS / f'fake_{name.replace("-", "_")}.py'
      # Without the packages of the environment it starts sooner.
      packages = '' if name in ('kubectl', 'xpk') else '-S'
      self.program(name, f'#!/bin/sh\nexec {real} {packages} {file} "$@"\n')

  def _git(self, *args: str) -> None:
    subprocess.run(['git', '-C', str(self.repository), *args], check=True)

  def program(self, name: str, text: str) -> None:
    """Makes a program that the scripts find before all others."""
    file = self.bin / name
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)

  def set_state(self, **state: Any) -> None:
    """Sets what there is in the cloud, what goes wrong, where runs stay."""
    file = self.cloud / 'state.json'
    known = json.loads(file.read_text()) if file.exists() else {}
    if 'faults' in state:
      holds = [fault['step'] for fault in state['faults'] if 'step' in fault]
      known['holds'] = holds
    half = file.with_suffix('.new')
    half.write_text(json.dumps(known | state))
    half.replace(file)

  def calls(self, *words: str) -> list[list[str]]:
    """Returns the calls of fakes that have all these words."""
    file = self.cloud / 'calls.jsonl'
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return [call for call in found if set(words) <= set(call)]

  def steps(self, folder: str) -> list[int]:
    """Returns the steps that a run has lines of in its bucket."""
    file = self.buckets / folder / 'workdir/metrics.jsonl'
    return [json.loads(line)['step'] for line in file.read_text().splitlines()]

  def begin(
    self, script: str, *args: str, more: Mapping[str, str] | None = None
  ) -> subprocess.Popen:
    """Starts a script of launch/ and returns its process."""
    own = {
      'PATH': f'{self.bin}:{os.environ["PATH"]}',
      'FAKE_CLOUD': str(self.cloud),
      'FAKE_BUCKETS': str(self.buckets),
      'FAKE_BIN': str(self.bin),
      'FAKE_IMAGE': str(self.repository),
      'DAPO_JAX_COPY_S': '0.1',
    }
    return subprocess.Popen(
      [str(self.repository / 'launch' / script), *args],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      cwd=self.path,
      env=os.environ | own | dict(more or {}),
      start_new_session=True,
      # As a terminal's: pytest may have been started to ignore it.
      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

  def run(self, script: str, *args: str, **how: Any) -> Done:
    """Runs a script of launch/ to its end."""
    process = self.begin(script, *args, **how)
    try:
      output, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, signal.SIGKILL)
      output, _ = process.communicate()
      raise AssertionError(f'{script} did not end: {output}') from None
    return Done(process.returncode, output)


def wait_until(is_so: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
  """Returns when it is so."""
  until_s = time.monotonic() + limit_s
  while not is_so():
    if time.monotonic() > until_s:
      raise AssertionError('not so in time')
    time.sleep(0.02)


def commands(output: str, *programs: str) -> list[list[str]]:
  """Returns the commands of these programs that a dry run has printed."""
  lines = [shlex.split(line) for line in _whole_lines(output)]
  return [words for words in lines if words and words[0] in programs]


def _whole_lines(output: str) -> Sequence[str]:
  """Returns the lines that a shell can read by themselves."""
  found = []
  for line in output.splitlines():
    try:
      shlex.split(line)
    except ValueError:
      continue
    found.append(line)
  return found

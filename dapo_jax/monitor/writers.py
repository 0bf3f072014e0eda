"""Files of one JSON object a line, written once a step.

Host only. Steps only grow within a file, so a resumed run drops what it is
about to write again by cutting the file's end. Lines leave the program before
`write` returns; one torn by a kill is dropped when the file is opened next, and
one that found no room is taken back.
"""

import contextlib
import json
import math
import numbers
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from dapo_jax.monitor import catalogue

# Every line starts with its step, so none has to be parsed to find it.
_STEP = re.compile(rb'\{"step": (-?\d+)[,}]')


class WriteError(ValueError):
  """A file could not be written; what was in it before still is."""


class JsonlWriter:
  """Writes metrics, one line a step: {"step": 12, "reward/mean": 0.25, ...}."""

  def __init__(self, path: str | os.PathLike[str]):
    """Opens the file, new or to be continued, and makes its folder."""
    self._lines = _Lines(path)

  def __enter__(self) -> 'JsonlWriter':
    return self

  def __exit__(self, *exception: object) -> None:
    self._lines.close()

  def write(self, step: int, metrics: Mapping[str, numbers.Real]) -> None:
    """Writes a step's metrics, all of them at once.

    Raises:
      ValueError: on a name that is not in the catalogue, a value that is not
        finite, or a step that is not above the last one written.
      WriteError: the disk is full, say.
    """
    catalogue.check(metrics)
    values = {name: _number(name, value) for name, value in metrics.items()}
    self._lines.append(step, [values], once=True)

  def keep_until(self, step: int) -> None:
    """Drops the lines of `step` and of later steps."""
    self._lines.keep_until(step)


def last_line(path: str | os.PathLike[str]) -> dict[str, Any]:
  """Returns the last whole line of such a file; {} when there is none.

  Nor is there one in a file of another kind, which a writer refuses to open.
  """
  path = pathlib.Path(path)
  lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
  whole = [line for line in lines if line.endswith(b'\n')]
  if not whole or _STEP.match(whole[-1]) is None:
    return {}
  return json.loads(whole[-1])


class SampleWriter:
  """Writes sampled responses, a line each: {"step": 12, "text": ..., ...}."""

  def __init__(self, path: str | os.PathLike[str]):
    """Opens the file, new or to be continued, and makes its folder."""
    self._lines = _Lines(path)

  def __enter__(self) -> 'SampleWriter':
    return self

  def __exit__(self, *exception: object) -> None:
    self._lines.close()

  def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a step's rows; any text is safe, lone surrogates included.

    Raises:
      ValueError: on a row with a `step` of its own or a number that is not
        finite, or a step below the last one written.
      WriteError: the disk is full, say.
    """
    if any('step' in row for row in rows):
      raise ValueError('a row must not have a field named step')
    self._lines.append(step, rows, once=False)

  def keep_until(self, step: int) -> None:
    """Drops the rows of `step` and of later steps."""
    self._lines.keep_until(step)


class NoWriter:
  """Stands in for a writer where another process writes."""

  def __enter__(self) -> 'NoWriter':
    return self

  def __exit__(self, *exception: object) -> None:
    pass

  def keep_until(self, step: int) -> None:
    """Drops nothing."""

  def write(self, step: int, values: Any) -> None:
    """Writes nothing."""


def write_config(
  path: str | os.PathLike[str], config: Mapping[str, Any]
) -> None:
  """Writes a run's whole configuration as JSON, to be read by people.

  A run that goes on reads its checkpoint, not this file. Its name is not
  config.json, which makes a folder a model.

  Raises:
    WriteError: the disk is full, say.
  """
  path = pathlib.Path(path)
  part = path.with_name(path.name + '.part')
  with _writing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(json.dumps(config, indent=2) + '\n', encoding='utf-8')
    part.replace(path)


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
  """Tells what the system refuses inside as a WriteError."""
  try:
    yield
  except OSError as error:
    raise WriteError(
      f'{path} could not be written ({error.strerror}); what was saved before '
      'is whole: make room there or give access to it, and give the same '
      'command'
    ) from error


class _Lines:
  """An open file of JSON lines whose steps never fall."""

  def __init__(self, path: str | os.PathLike[str]):
    self.path = pathlib.Path(path)
    with _writing(self.path):
      self.path.parent.mkdir(parents=True, exist_ok=True)
      # Without a buffer, which would keep what found no room and try again.
      self._file = open(self.path, 'ab', buffering=0)
    self.last_step: int | None = None
    try:
      self._cut(None)
    except BaseException:
      self._file.close()
      raise

  def close(self) -> None:
    self._file.close()

  def append(
    self, step: int, rows: Sequence[Mapping[str, Any]], *, once: bool
  ) -> None:
    last = self.last_step
    if last is not None and (step < last or once and step == last):
      raise ValueError(
        f'{self.path} already holds step {last}, so step {step} cannot be '
        'added; a run that goes back calls keep_until(step) first'
      )
    lines = [
      json.dumps({'step': int(step), **row}, allow_nan=False) + '\n'
      for row in rows
    ]
    if lines:
      self._write(''.join(lines).encode('ascii'))
      self.last_step = int(step)

  def _write(self, text: bytes) -> None:
    """Writes all of the text or none of it."""
    end = os.fstat(self._file.fileno()).st_size
    try:
      with _writing(self.path):
        left = memoryview(text)
        while left:
          left = left[self._file.write(left) :]
    except WriteError:
      with contextlib.suppress(OSError):
        self._file.truncate(end)
      raise

  def keep_until(self, step: int) -> None:
    self._cut(step)

  def _cut(self, first_dropped: int | None) -> None:
    """Ends the file before the first line that is torn or dropped.

    Cutting is one system call, so a kill leaves the old file or the new one.
    """
    self.last_step = None
    with open(self.path, 'rb') as written:
      end = self._end(written, first_dropped)
    with _writing(self.path):
      self._file.truncate(end)

  def _end(self, written: BinaryIO, first_dropped: int | None) -> int:
    """Returns where what stays ends, having noted its last step."""
    end = 0
    for number, line in enumerate(written, start=1):
      if not line.endswith(b'\n'):
        break
      match = _STEP.match(line)
      if match is None:
        raise ValueError(
          f'{self.path}, line {number} does not start with a step; the file '
          'is not one of this program, move it away'
        )
      step = int(match[1])
      if first_dropped is not None and step >= first_dropped:
        break
      self.last_step = step
      end += len(line)
    return end


def _number(name: str, value: numbers.Real) -> int | float:
  """Returns a metric's value as a plain number that JSON can hold."""
  if isinstance(value, numbers.Integral):
    return int(value)
  number = float(value)
  if not math.isfinite(number):
    raise ValueError(f'metric {name} is {number}')
  return number

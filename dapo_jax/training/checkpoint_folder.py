"""The folder of a run's checkpoints: where it is, and what in it is whole.

A checkpoint is a folder whose name is its step. It is whole once the marker of
Orbax is in it: on a disk it gets its name after that, in a bucket before.
"""

import contextlib
import errno
import json
import os
import re
import uuid
from typing import NamedTuple

import numpy as np
from absl import logging
from etils import epath

from dapo_jax.parallel import job as job_lib

FLAG = '--config.checkpoint.folder'
_MARKER = 'commit_success.txt'
# How Orbax calls what it has begun to write to a disk.
_BEGUN = re.compile(r'(\d+)\.orbax-checkpoint-tmp')


class Found(NamedTuple):
  """The checkpoints in a folder."""

  whole: tuple[int, ...]  # ascending
  # Folders that have the name of a step, but were never finished.
  unfinished: tuple[int, ...]
  # Names of what was begun and has no such name yet.
  begun: tuple[str, ...]


def locate(workdir: str | os.PathLike[str], folder: str) -> epath.Path:
  """Returns the folder of a run's checkpoints.

  Args:
    workdir: of the run, on this machine.
    folder: what `checkpoint.folder` says: a folder here, or a bucket's
      (gs://...), which is passed on as it is; '' = WORKDIR/checkpoints.
  """
  path = folder or os.path.join(workdir, 'checkpoints')
  if '://' in path:
    return epath.Path(path)
  return epath.Path(os.path.abspath(os.path.expanduser(path)))


def named(workdir: epath.Path) -> str:
  """Returns the checkpoint.folder of a work directory's run; '' without one.

  Raises:
    ValueError: the file with its settings cannot be read.
  """
  settings = workdir / 'run_config.json'
  if not settings.exists():
    return ''
  try:
    return json.loads(settings.read_text())['checkpoint'].get('folder', '')
  except (ValueError, LookupError, TypeError, AttributeError) as error:
    raise ValueError(
      f'{settings} is broken ({error}): remove it, and name the folder of the '
      'checkpoints'
    ) from error


def is_local(folder: epath.Path) -> bool:
  """Says whether the folder is one of this machine."""
  return '://' not in os.fspath(folder)


def look(folder: epath.Path) -> Found:
  """Returns what is in the folder; nothing where there is none.

  Raises:
    ValueError: it cannot be read, or something in it could be taken for a
      checkpoint and is none.
  """
  try:
    if not folder.exists():
      return Found((), (), ())
    if not folder.is_dir():
      raise ValueError(
        f'{folder} is a file, where checkpoints should be; move it away, or '
        f'change {FLAG}'
      )
    paths = {path.name: path for path in folder.iterdir()}
    whole, unfinished = [], []
    for name, path in paths.items():
      if re.fullmatch(r'[0-9]+', name):
        _check_name(path)
        is_whole = (path / _MARKER).exists()
        (whole if is_whole else unfinished).append(int(name))
  except ValueError:
    raise
  except Exception as error:  # each file system has its own
    raise ValueError(unusable(folder, error)) from error
  begun = sorted(name for name in paths if _BEGUN.match(name))
  return Found(tuple(sorted(whole)), tuple(sorted(unfinished)), tuple(begun))


def warn(folder: epath.Path, found: Found) -> None:
  """Warns of each checkpoint that was never finished, a line for each."""
  last = max(found.whole, default=None)
  used = 'none is whole' if last is None else f'{last} is the newest whole one'
  for name in (*map(str, found.unfinished), *found.begun):
    logging.warning(
      'checkpoint %s is not finished (its save was cut off, or is under way) '
      'and is left out: %s',
      folder / name,
      used,
    )


def prepare(folder: epath.Path, found: Found) -> None:
  """Makes the folder, tries to write to it, and drops what was only begun.

  Raises:
    ValueError: it cannot be written to.
  """
  probe = folder / f'probe-{uuid.uuid4().hex}'
  try:
    folder.mkdir(parents=True, exist_ok=True)
    probe.write_text('written and removed to see that it can be\n')
    probe.unlink()
    for name in found.begun:
      (folder / name).rmtree()
  except Exception as error:  # each file system has its own
    with contextlib.suppress(Exception):
      probe.unlink(missing_ok=True)
    raise ValueError(unusable(folder, error)) from error


def prepare_together(
  folder: epath.Path, found: Found, job: job_lib.Job
) -> None:
  """Prepares the folder in the first process; the others must see it, too.

  Raises:
    ValueError: it cannot be written to, or is not one folder for all.
  """
  if job.count == 1:
    prepare(folder, found)
    return

  def mark() -> bytes:
    prepare(folder, found)
    name = f'probe-{uuid.uuid4().hex}'
    (folder / name).write_text('removed when every process has seen it\n')
    return name.encode()

  probe = folder / job.from_first(mark, what='the checkpoints').decode()
  sees = job.gather(np.array([probe.exists()]), what='the checkpoints')[:, 0]
  if job.is_first:
    probe.unlink()
  if not sees.all():
    raise ValueError(
      f'{folder} is not one folder for all processes: process '
      f'{int(np.argmin(sees))} does not see what the first writes there; name '
      f'one that all share, in a bucket (gs://...) say, by {FLAG}'
    )


# What the system says of a file that it refuses.
_SYSTEM_WORDS = [
  os.strerror(code)
  for code in (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
  )
]


def unusable(folder: epath.Path, error: Exception) -> str:
  """Returns what is said of a folder that cannot be used."""
  return (
    f'{folder} cannot be used for checkpoints ({reason(error)}); change '
    f'{FLAG}, or give access to it'
  )


def reason(error: BaseException) -> str:
  """Returns what an error of a file system or of Orbax says, on one line."""
  while error.__cause__ is not None:
    error = error.__cause__
  text = ' '.join(str(error).split()) or type(error).__name__
  if len(text) <= 400:
    return text
  # What it is about stands at its beginning, the cause at its end, or what the
  # system says of a file somewhere between.
  begin, end = text[:100], text[-300:]
  found = (w for w in _SYSTEM_WORDS if w in text and w not in begin + end)
  return ' ... '.join([begin, *list(found)[:1], end])


def _check_name(path: epath.Path) -> None:
  """Refuses what is named as a checkpoint and is none."""
  if not path.is_dir():
    raise ValueError(
      f'{path} is a file, and a checkpoint is a folder; move it away'
    )
  if path.name != str(int(path.name)):
    raise ValueError(
      f'{path} is not named as a checkpoint is: rename it to '
      f'{int(path.name)}, or move it away'
    )

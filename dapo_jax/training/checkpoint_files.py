"""The checkpoints of one folder as Orbax writes and reads them.

Each is the item `state`, arrays, and the item `about`, JSON, which the storage
does not check: it has a checksum of its own. Whatever fails is told as what a
user can do about it.
"""

import contextlib
import json
import logging
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath

from dapo_jax.parallel import job as job_lib
from dapo_jax.training import checkpoint_folder, digests

# Counted up when what is saved changes, or when the default of a new key is
# not what was done before there was the key.
FORMAT_VERSION = 3


class SaveError(ValueError):
  """A checkpoint could not be written; those before it are whole."""


class Files:
  """The checkpoints of one folder."""

  def __init__(
    self,
    folder: epath.Path,
    *,
    keep: int | None,
    keep_every_steps: int | None,
    read_only: bool,
    job: job_lib.Job,
  ):
    """Opens the folder, made if need be; see `checkpoint.open_store`."""
    self.folder = folder
    self._job = job
    found = checkpoint_folder.look(folder)
    if job.is_first:
      checkpoint_folder.warn(folder, found)
    if not read_only:
      checkpoint_folder.prepare_together(folder, found, job)
    # As the first process sees it: all save, or remove, the same together.
    unfinished = job.from_first(
      lambda: json.dumps(found.unfinished).encode(), what='the checkpoints'
    )
    self._left_out = set(json.loads(unfinished))
    self._begun: int | None = None  # the last save
    options = ocp.CheckpointManagerOptions(
      # Its own `read_only` warns of it whenever a store is opened.
      create=not read_only,
      preservation_policy=_Preservation(keep, keep_every_steps, self._left_out),
      # Or where it cannot be done, threads wait minutes for it.
      async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
    )
    try:
      self._manager = ocp.CheckpointManager(folder, options=options)
    except Exception as error:  # of whatever the folder is on
      raise ValueError(checkpoint_folder.unusable(folder, error)) from error

  def steps(self) -> list[int]:
    """Returns the steps of the checkpoints that are whole, ascending."""
    return sorted(set(self._manager.all_steps()) - self._left_out)

  def latest_step(self) -> int | None:
    """Returns the newest whole checkpoint's step, None without one."""
    return max(self.steps(), default=None)

  def save(self, step: int, state: Any, about: Mapping[str, Any]) -> None:
    """Begins to save; the arrays may be donated once this returns.

    Raises:
      SaveError: it could not begin, or the save before it failed.
    """
    about = {'format_version': FORMAT_VERSION, **about}
    self.wait()
    self._begun = step
    with self._saving():
      if step in self._left_out:
        if self._job.is_first:
          (self.folder / str(step)).rmtree()
        self._job.meet('the removal of a checkpoint that was not finished')
        self._manager.reload()
        self._left_out.discard(step)
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          about=ocp.args.JsonSave(about | {'crc32': _crc32(about)}),
        ),
        # Or it is left out where there is a later one that is not whole.
        force=True,
      )

  def check(self) -> None:
    """Returns at once unless a save that is over has failed.

    Raises:
      SaveError: it has.
    """
    if not self._manager.is_saving_in_progress():
      self.wait()

  def about(self, step: int) -> dict[str, Any]:
    """Returns what is saved beside the arrays, if its format is today's."""
    args = ocp.args.Composite(about=ocp.args.JsonRestore())
    with self._reading(step):
      about = self._manager.restore(step, args=args).about
      version = about['format_version']
    if version != FORMAT_VERSION:
      raise ValueError(
        f'{self.name(step)} has format {version} and this version of dapo-jax '
        f'reads format {FORMAT_VERSION}: use the version that wrote it, or '
        'another --workdir'
      )
    if about.pop('crc32', None) != _crc32(about):
      raise ValueError(self.damage(step, 'its file about/metadata changed'))
    return about

  def state(self, step: int, args: Any) -> Any:
    """Returns the arrays that `args`, of Orbax, asks for."""
    with self._reading(step):
      return self._manager.restore(
        step, args=ocp.args.Composite(state=args)
      ).state

  def close(self) -> None:
    """Waits for saves under way and ends.

    Raises:
      SaveError: the last one failed.
    """
    try:
      with self._saving():
        self._manager.close()
    except SaveError:
      # What has failed is told once; a thread may still write beside it, in
      # the way of whoever opens the folder next.
      with contextlib.suppress(Exception):
        self._manager.close()
      raise

  def name(self, step: int) -> str:
    """Returns what a checkpoint is called in a message."""
    return f'checkpoint {step} in {self.folder}'

  def damage(self, step: int, what: str) -> str:
    """Returns what is said of a checkpoint that is whole and cannot be used."""
    earlier = [s for s in self.steps() if s < step]
    then = (
      f'goes on from checkpoint {earlier[-1]}' if earlier else 'has none before'
    )
    return (
      f'{self.name(step)} is damaged or cannot be read ({what}): restore its '
      f'files, or move {self.folder / str(step)} away, and the same command '
      f'{then}'
    )

  def check_kinds(
    self,
    step: int,
    saved: Mapping[str, digests.Leaf],
    wanted: Mapping[str, str],
  ) -> None:
    """Raises ValueError where arrays were saved in other kinds than wanted."""
    if faults := digests.differences(saved, wanted):
      raise ValueError(
        f'{self.name(step)} is of another model or optimizer '
        f'({"; ".join(faults)}); give the settings it was saved with, or '
        'another --workdir'
      )

  def check_digests(
    self, step: int, saved: Mapping[str, digests.Leaf], state: Any
  ) -> None:
    """Raises ValueError where a restored array is not what was saved."""
    found = digests.leaves(state)
    bad = [path for path, leaf in found.items() if saved[path] != leaf]
    if bad:
      what = f'other values than were saved in {", ".join(bad)}'
      raise ValueError(self.damage(step, what))

  @contextlib.contextmanager
  def _reading(self, step: int) -> Iterator[None]:
    """Tells what fails inside as damage, unless it is want of memory."""
    try:
      yield
    except (MemoryError, jax.errors.JaxRuntimeError):
      raise
    except Exception as error:  # TensorStore raises nothing more exact
      if not (self.folder / str(step)).exists():
        raise ValueError(
          f'{self.name(step)} was removed while it was read: a run that is '
          'under way keeps only its newest; give the same command again'
        ) from error
      reason = checkpoint_folder.reason(error)
      raise ValueError(self.damage(step, reason)) from error

  def wait(self) -> None:
    """Waits for the save under way, if there is one.

    Raises:
      SaveError: it failed.
    """
    with self._saving():
      self._manager.wait_until_finished()

  @contextlib.contextmanager
  def _saving(self) -> Iterator[None]:
    """Tells what fails inside as the failure of the last save."""
    try:
      yield
    except Exception as error:  # of whatever the folder is on
      raise SaveError(self._failure(error)) from error

  def _failure(self, error: Exception) -> str:
    """Returns what is said of a save that failed."""
    try:
      whole = checkpoint_folder.look(self.folder).whole
    except ValueError:
      whole = ()
    last = f'checkpoint {max(whole)} is whole' if whole else 'none is whole yet'
    return (
      f'checkpoint {self._begun} could not be written to {self.folder} '
      f'({checkpoint_folder.reason(error)}); {last}: make room there or give '
      'access to it, and give the same command'
    )


@contextlib.contextmanager
def without_traces() -> Iterator[None]:
  """Keeps tracebacks of what is told as one line from being shown.

  Orbax logs them. TensorStore, when an array has failed, tells the others to
  an event loop that has ended, and what that raises would be shown; they are
  futures that nobody asks any more.
  """
  orbax, futures = logging.getLogger('absl'), logging.getLogger('asyncio')
  show = sys.unraisablehook

  def shown(fault) -> None:
    if str(fault.exc_value) != 'Event loop is closed':
      show(fault)

  orbax.addFilter(_is_no_trace)
  futures.addFilter(_is_no_future)
  sys.unraisablehook = shown
  try:
    yield
  finally:
    sys.unraisablehook = show
    futures.removeFilter(_is_no_future)
    orbax.removeFilter(_is_no_trace)


def _is_no_trace(record: logging.LogRecord) -> bool:
  is_orbax = f'{os.sep}orbax{os.sep}' in record.pathname
  return not is_orbax or record.levelno < logging.ERROR


def _is_no_future(record: logging.LogRecord) -> bool:
  return 'exception was never retrieved' not in record.getMessage()


class _Preservation(NamedTuple):
  """Which checkpoints Orbax keeps: of the whole ones the newest, and more."""

  keep: int | None
  every_steps: int | None
  left_out: set[int]

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context
  ) -> list[bool]:
    """Returns whether each is kept; those that are left out are not touched."""
    del context
    steps = [c.step for c in checkpoints]
    whole = [s for s in steps if s not in self.left_out]
    newest = whole if self.keep is None else whole[-self.keep :]
    every = self.every_steps
    return [
      s in self.left_out or s in newest or bool(every and s % every == 0)
      for s in steps
    ]


def _crc32(about: Mapping[str, Any]) -> int:
  return zlib.crc32(json.dumps(about, sort_keys=True).encode('ascii'))

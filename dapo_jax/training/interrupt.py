"""Ctrl-C and SIGTERM: where a run stands, and what ending it now would lose.

The parameters of an update are donated: while it runs there is no state in
memory that could be saved. The run tells its guard where it stands, and the
guard ends it at the next safe place. `training.stopping` ends the process in
time when that place does not come.
"""

import contextlib
import enum
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dapo_jax.parallel import job as job_lib
from dapo_jax.rollout import sharing


class Interrupted(sharing.StoppedError):
  """The run was asked to stop, and this place is safe to stop at."""


class Phase(enum.Enum):
  """What a run does, by what there is to save."""

  # Nothing that is not on the disk: weights and data are read.
  LOADING = 'loading'
  # The state in memory is whole: it samples, grades, evaluates.
  BOUNDARY = 'boundary'
  # The first update compiles: the state is whole, but not for long.
  COMPILING = 'compiling'
  # The state is between two boundaries.
  UPDATE = 'update'
  # A state or the policy goes to the disk.
  WRITING = 'writing'


class Moment(NamedTuple):
  """Where a run stands.

  Attributes:
    phase: what it does.
    since_s: when that began, by `time.monotonic`.
    step: the last boundary that was reached.
    save: saves that boundary and waits until it is whole on the disk; None
      where there is nothing to save.
    again: what is done again if the run is ended now and that was saved.
  """

  phase: Phase
  since_s: float
  step: int = 0
  save: Callable[[], None] | None = None
  again: str = ''


def last_line(moment: Moment, saved: int | None) -> str:
  """Returns what is saved and what will be done again."""
  phase, step = moment.phase, moment.step
  if phase is Phase.LOADING:
    return f'stopped while loading; {next_line(saved)}'
  if phase not in (Phase.COMPILING, Phase.UPDATE):
    if saved == step:
      return saved_line(step, moment.again)
    where = f'step {step} was not saved in time'
  elif phase is Phase.UPDATE:
    step += 1
    where = f'step {step} was in its update'
  else:
    step += 1
    where = f'the update of step {step} was being compiled'
  if saved is None and step == 0:
    return 'stopped before the first step; the same command begins again'
  if saved is None:
    return f'{where} and nothing is saved yet: the same command begins again'
  count = step - saved
  again = '1 step is' if count == 1 else f'{count} steps are'
  return (
    f'{where}: the same command goes on from step {saved}, {again} done again'
  )


def next_line(saved: int | None) -> str:
  """Returns what the same command does when so much is on the disk."""
  what = 'begins again' if saved is None else f'goes on from step {saved}'
  return f'the same command {what}'


def saved_line(step: int, again: str) -> str:
  """Returns what is told when a boundary is saved; `again` as in `Moment`."""
  return f'saved step {step}; the same command goes on, {again} is done again'


class Guard:
  """While entered, notes the first signal instead of dying of it.

  The second raises KeyboardInterrupt, unless `is_watched`: then all that
  happens to a run that does not end is the affair of `training.stopping`.
  """

  def __init__(self, *, is_watched: bool = False):
    self.requested = False
    # The processes of the run, which stop together; set by whoever knows them.
    self.job = job_lib.Job()
    # Seconds from the begin of the last update to its boundary.
    self.update_s = 0.0
    self._is_watched = is_watched
    self._before: dict[int, object] = {}
    self._has_compiled = False
    self._changes = threading.Lock()  # of what follows
    self._moment = Moment(Phase.LOADING, time.monotonic())
    self._writes = threading.Lock()  # held by who writes a state

  def __enter__(self) -> 'Guard':
    for number in (signal.SIGINT, signal.SIGTERM):
      self._before[number] = signal.signal(number, self._note)
    return self

  def __exit__(self, *exc) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def check(self) -> None:
    """Raises Interrupted when a signal came; called at safe places only."""
    if self.requested:
      raise Interrupted

  def check_together(self, where: str) -> None:
    """Raises Interrupted in all processes when a signal came to one of them.

    Called by all of them, at the same safe places.
    """
    if self.job.any(self.requested, what=where):
      raise Interrupted

  def boundary(
    self, step: int, save: Callable[[], None] | None, *, again: str
  ) -> None:
    """Says that the state in memory is whole from here on; see `Moment`."""
    with self._changes:
      now = time.monotonic()
      if self._moment.phase is Phase.UPDATE:
        self.update_s = now - self._moment.since_s
      self._moment = Moment(Phase.BOUNDARY, now, step, save, again)

  def told(self, update: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an update that says when it makes the state unusable.

    It raises Interrupted in place of the first after a boundary, when a signal
    came.
    """

    def call(*args):
      if self.moment().phase is Phase.BOUNDARY and self.job.count > 1:
        self.check_together('the begin of the updates')
      self._begin_update()
      result = update(*args)
      with self._changes:
        if self._moment.phase is Phase.COMPILING:
          self._move(Phase.UPDATE)
        self._has_compiled = True
      return result

    return call

  @contextlib.contextmanager
  def writing(self) -> Iterator[None]:
    """Tells that a state is being written, and goes on afterwards."""
    with self._writes:
      with self._changes:
        before = self._moment
        self._move(Phase.WRITING)
      yield
      with self._changes:
        self._moment = before._replace(since_s=time.monotonic())

  def ends(self) -> None:
    """Tells that the rest is writing; waits for ever when another thread ends.

    That is the one of `take_over`.
    """
    self._writes.acquire()
    with self._changes:
      self._move(Phase.WRITING)

  def request(self) -> None:
    """Asks the run to stop, as a signal does, from any thread."""
    with self._changes:
      self.requested = True

  def moment(self) -> Moment:
    """Returns where the run stands."""
    with self._changes:
      return self._moment

  def take_over(self) -> Moment | None:
    """Returns the boundary that the caller is to save from now on.

    The main thread writes nothing any more, and begins no update if it was
    asked to stop before. None = it writes, or is not at a boundary, or is one
    of several processes, which save together.
    """
    if self.job.count > 1:
      return None
    if not self._writes.acquire(blocking=False):
      return None
    with self._changes:
      if self._moment.phase is Phase.BOUNDARY:
        return self._moment
    self._writes.release()
    return None

  def _begin_update(self) -> None:
    with self._changes:
      if self._moment.phase in (Phase.COMPILING, Phase.UPDATE):
        return  # another one of the same step
      if self.requested and self.job.count == 1:
        raise Interrupted
      self._move(Phase.UPDATE if self._has_compiled else Phase.COMPILING)
      # It would keep the donated state, and memory where nothing is donated.
      self._moment = self._moment._replace(save=None)

  def _move(self, phase: Phase) -> None:
    self._moment = self._moment._replace(phase=phase, since_s=time.monotonic())

  def _note(self, number: int, frame: types.FrameType | None) -> None:
    # It may interrupt a method of this in the main thread: it takes no lock.
    del number, frame
    if self.requested and not self._is_watched:
      raise KeyboardInterrupt
    self.requested = True


@contextlib.contextmanager
def entered(guard: Guard | None) -> Iterator[Guard]:
  """Yields a guard that is entered already, or one of its own if None."""
  if guard is not None:
    yield guard
    return
  with Guard() as own:
    yield own

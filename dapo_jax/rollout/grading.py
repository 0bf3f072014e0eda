"""Judges responses in threads, while the sampler goes on.

A judge that waits, for another process say, holds up nothing; one that
computes in Python takes turns with the sampler's own Python, which is little.
Host only. The threads are daemons, not those of concurrent.futures: the end
of a program waits for the latter, and a judge may never return.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dapo_jax.data import records
from dapo_jax.rewards import reward

# Gives the verdict on (prompt, text, length in tokens). It is called by
# several threads at a time.
Judge = Callable[[records.Prompt, str, int], reward.Judgement]
# Number of the draw, number of the response to it.
Key = tuple[int, int]
Graded = tuple[records.Response, reward.Judgement]

# The longest time between two looks during the wait for verdicts, [s].
_LOOK_S = 0.1
# Prompts that a message names.
_NAMED_COUNT = 5


class Grading(NamedTuple):
  """How responses are judged."""

  judge: Judge
  # Most seconds to wait for verdicts after the last response.
  wait_s: float
  # Called again and again during that wait with the seconds since the last
  # call, or since its begin; what it raises ends the wait.
  on_wait: Callable[[float], None]
  # Verdicts under way at one time. A judge that hangs keeps one thread; one
  # that computes in Python gains nothing by more, one that waits does.
  threads: int = 4


class JudgeError(RuntimeError):
  """A judge raised: a fault of the reward, which is the cause of this."""


class MissingVerdictsError(ValueError):
  """The limit on the wait for verdicts is reached."""


# What ends a run between two steps by no fault of its state.
ERRORS = (JudgeError, MissingVerdictsError)


class Graders:
  """Threads that judge; while entered.

  Afterwards what no thread has begun is dropped, and what is under way ends by
  itself: nobody waits for it.
  """

  def __init__(self, grading: Grading):
    self._grading = grading
    self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
    self._outcomes: queue.SimpleQueue[tuple[Key, Graded | JudgeError]] = (
      queue.SimpleQueue()
    )
    self._left = threading.Event()
    self._waiting: dict[Key, records.Prompt] = {}
    self._graded: dict[Key, Graded] = {}

  def __enter__(self) -> 'Graders':
    for _ in range(self._grading.threads):
      threading.Thread(target=self._work, name='judge', daemon=True).start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._left.set()
    for _ in range(self._grading.threads):
      self._tasks.put(None)  # wakes those that wait for a task

  def submit(
    self, key: Key, prompt: records.Prompt, response: records.Response
  ) -> None:
    """Hands a response over; returns at once."""
    self._waiting[key] = prompt
    self._tasks.put(_Task(key, prompt, response))

  def look(self) -> None:
    """Takes in the verdicts that there are.

    Raises:
      JudgeError: a judge raised.
    """
    self._take_in(0.0)

  def finish(self) -> dict[Key, Graded]:
    """Returns all responses with their verdicts; waits for them.

    Raises:
      JudgeError: a judge raised.
      MissingVerdictsError: the wait took too long.
    """
    begin = now = time.perf_counter()
    while self._waiting:
      left_s = self._grading.wait_s - (now - begin)
      if left_s <= 0:
        raise MissingVerdictsError(
          _missing_text(self._waiting.values(), self._grading.wait_s)
        )
      self._take_in(min(_LOOK_S, left_s))
      before, now = now, time.perf_counter()
      self._grading.on_wait(now - before)
    return self._graded

  def _work(self) -> None:
    """Judges what is handed over until this is left."""
    while (task := self._tasks.get()) is not None and not self._left.is_set():
      self._outcomes.put((task.key, _outcome(task, self._grading.judge)))

  def _take_in(self, wait_s: float) -> None:
    """Takes in the verdicts that there are after so long a wait for one."""
    failures = {}
    with contextlib.suppress(queue.Empty):
      key, outcome = self._outcomes.get(timeout=wait_s)
      while True:
        del self._waiting[key]
        if isinstance(outcome, JudgeError):
          failures[key] = outcome
        else:
          self._graded[key] = outcome
        key, outcome = self._outcomes.get_nowait()
    if failures:
      raise failures[min(failures)]


class _Task(NamedTuple):
  key: Key
  prompt: records.Prompt
  response: records.Response


def _outcome(task: _Task, judge: Judge) -> Graded | JudgeError:
  """Returns what a judge gives, or what it raises: whatever that is."""
  prompt, response = task.prompt, task.response
  try:
    verdict = judge(prompt, response.text, len(response.tokens))
    return response, verdict
  except BaseException as error:
    failure = JudgeError(
      f'response {task.key[1]} (from 0) to prompt {prompt.id} could not be '
      f'judged: {type(error).__name__}: {_text(error)}'
    )
    failure.__cause__ = error
    failure.add_note(f'The response ends in {response.text[-200:]!r}')
    return failure


def _text(error: BaseException) -> str:
  try:
    return str(error)
  except Exception:  # it is the judge's own, too
    return '(its text could not be made)'


def _missing_text(prompts: Iterable[records.Prompt], wait_s: float) -> str:
  """Returns one line: how many verdicts of which prompts are missing."""
  prompts = list(prompts)
  ids = list(dict.fromkeys(prompt.id for prompt in prompts))
  named = ', '.join(ids[:_NAMED_COUNT])
  if len(ids) > _NAMED_COUNT:
    named += f' and {len(ids) - _NAMED_COUNT} more'
  return (
    f'{len(prompts)} verdicts are missing {wait_s:g} s after the last response '
    f'(to {"prompt" if len(ids) == 1 else "prompts"} {named}); a judge hangs, '
    'or is so slow that --config.reward.wait_s must be raised'
  )

"""Worker processes that judge pairs of answers, within limits.

A verdict on a mathematical expression may take for ever, all memory or the
process itself. SIGALRM would limit the time in the main thread alone, and only
where Python is reached, so the function runs in processes that can be killed.

Host only.
"""

import collections
import queue
import threading
from collections.abc import Iterable
from concurrent import futures
from typing import Literal, NamedTuple

from dapo_jax.rewards import verifier_process

Pair = tuple[str, str]  # answer, gold
Function = verifier_process.Function

# The longest wait for the processes to end, [s].
_CLOSE_S = 5.0
# Characters of a pair's texts in the line on what went wrong.
_NAMED_CHARACTERS = 100

LoadError = verifier_process.LoadError


class Outcome(NamedTuple):
  """A verdict, or the lack of one."""

  # False where there is no verdict.
  equal: bool
  status: Literal['ok', 'timeout', 'error']


class Counts(NamedTuple):
  """Pairs without a verdict so far; one that is asked again counts once."""

  timeouts: int
  errors: int


class Verifiers:
  """Processes that run one function; to be closed, or entered as a context.

  Any number of threads may ask at the same time. A pair is judged once, also
  if it is asked twice at the same time: the latest `known_pairs` outcomes are
  kept, time-outs and errors among them. The processes are new interpreters and
  die with this one, however it ends.

  One that fails a pair is replaced when there is a pair for it, and no other
  pair is touched. Some fail only because of what their process did before,
  such as an expression for which no memory was left.
  """

  def __init__(
    self,
    function: Function,
    *,
    processes: int,
    limit_s: float = 5.0,
    memory_gib: float = 1.0,
    process_verdicts: int = 5000,
    known_pairs: int = 100_000,
  ):
    """Returns when the first process has loaded the function.

    The others start when there are pairs for them.

    Args:
      function: says if (answer, gold) are equal. The processes import it from
        its module, which is not to be `__main__`; or where they find it.
      processes: most processes, each with one verdict under way.
      limit_s: longest wall time of a verdict, [s]; loading is not counted.
      memory_gib: most address space of a process, all told, [GiB].
      process_verdicts: verdicts after which a process is replaced, since
        libraries of symbols keep what they have seen.
      known_pairs: outcomes that are kept.

    Raises:
      ValueError: a number is not positive, or the function has no name.
      LoadError: a process cannot load the function.
    """
    _check_positive(
      processes=processes,
      limit_s=limit_s,
      memory_gib=memory_gib,
      process_verdicts=process_verdicts,
      known_pairs=known_pairs,
    )
    self._function = verifier_process.module_and_name(function)
    self._limit_s = limit_s
    self._memory_gib = memory_gib
    self._process_verdicts = process_verdicts
    self._known_pairs = known_pairs
    # Pairs to judge, and None to start a process or to look at `_refusal`.
    self._tasks: queue.SimpleQueue[Pair | None] = queue.SimpleQueue()
    self._lock = threading.Lock()  # of all that follows
    self._known: collections.OrderedDict[Pair, Outcome] = (
      collections.OrderedDict()
    )
    self._pending: dict[Pair | None, futures.Future[Outcome]] = {}
    self._workers: set[verifier_process.Worker] = set()
    self._refusal: RuntimeError | None = None
    self._timeouts = self._errors = 0
    self._last_fault = ''
    # A thread for every process. They are daemons: the end of the program
    # waits for none.
    self._threads = [
      threading.Thread(target=self._keep, name='verifier', daemon=True)
      for _ in range(processes)
    ]
    self._start()

  def __enter__(self) -> 'Verifiers':
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()

  def verdict(self, answer: str, gold: str) -> Outcome:
    """Returns the outcome for a pair; waits for it.

    Raises:
      LoadError: a process could not load the function.
      RuntimeError: this is closed, before the call or during it.
    """
    return self._ask((answer, gold)).result()

  def verdicts(self, pairs: Iterable[Pair]) -> list[Outcome]:
    """Returns the outcome for every (answer, gold), in their order.

    Raises as `verdict` does.
    """
    asked = [self._ask((answer, gold)) for answer, gold in pairs]
    return [outcome.result() for outcome in asked]

  def counts(self) -> Counts:
    """Returns how many pairs had no verdict so far."""
    with self._lock:
      return Counts(self._timeouts, self._errors)

  def last_fault(self) -> str:
    """Returns in one line why the latest pair without a verdict has none.

    It is empty as long as there is none.
    """
    with self._lock:
      return self._last_fault

  def close(self) -> None:
    """Ends the processes, whatever they do. Whoever waits is told."""
    self._refuse(RuntimeError('the verifiers are closed'))
    for thread in self._threads:
      if thread.is_alive():
        thread.join(_CLOSE_S)

  def _start(self) -> None:
    """Starts the threads and one process."""
    ready = self._pending[None] = futures.Future()
    self._tasks.put(None)
    try:
      for thread in self._threads:
        thread.start()
      ready.result()
    except BaseException:
      self.close()
      raise

  def _ask(self, pair: Pair) -> 'futures.Future[Outcome] | _Known':
    """Returns what will be a pair's outcome; returns at once."""
    if not all(isinstance(text, str) for text in pair):
      raise TypeError(f'answer and gold must be text, not {pair!r}')
    with self._lock:
      if self._refusal is not None:
        raise self._refusal
      known = self._known.get(pair)
      if known is not None:
        self._known.move_to_end(pair)
        return _Known(known)
      future = self._pending.get(pair)
      if future is None:
        future = futures.Future()
        # In this order, an interrupt in between leaves nothing that waits.
        self._tasks.put(pair)
        self._pending[pair] = future
      return future

  def _keep(self) -> None:
    """Keeps a process and hands it pairs, until this is closed."""
    worker = None
    try:
      while True:
        pair = self._tasks.get()
        if self._refusal is not None:
          return
        if worker is None:
          worker = self._new_worker()
        if pair is None:
          self._settle(None, Outcome(False, 'ok'))
        elif not self._judge(worker, pair):
          self._drop(worker)
          worker = None
    except BaseException as error:
      # Also of ours: nobody must wait for a thread that has ended.
      self._refuse(
        error
        if isinstance(error, RuntimeError)
        else RuntimeError(f'no verdicts: {type(error).__name__}: {error}')
      )
    finally:
      if worker is not None:
        self._drop(worker)

  def _new_worker(self) -> verifier_process.Worker:
    worker = verifier_process.Worker(memory_gib=self._memory_gib)
    try:
      with self._lock:
        if self._refusal is not None:
          raise self._refusal
        self._workers.add(worker)
      worker.load(*self._function)
    except BaseException:
      self._drop(worker)
      raise
    return worker

  def _drop(self, worker: verifier_process.Worker) -> None:
    with self._lock:
      self._workers.discard(worker)
    worker.end()

  def _judge(self, worker: verifier_process.Worker, pair: Pair) -> bool:
    """Settles a pair; returns whether the process can take another one."""
    try:
      reply = worker.verdict(*pair, limit_s=self._limit_s)
    except TimeoutError:
      fault = f'no verdict after {self._limit_s:g} s'
      self._settle(pair, Outcome(False, 'timeout'), fault)
      return False
    except verifier_process.EndedError as error:
      self._settle(pair, Outcome(False, 'error'), str(error))
      return False
    outcome = Outcome(reply.equal, 'error' if reply.fault else 'ok')
    self._settle(pair, outcome, reply.fault)
    return not reply.ends and worker.verdicts < self._process_verdicts

  def _settle(
    self, pair: Pair | None, outcome: Outcome, fault: str = ''
  ) -> None:
    with self._lock:
      future = self._pending.pop(pair, None)
      if future is None:
        return  # closed: whoever waited has been told
      if pair is not None:
        self._known[pair] = outcome
        if len(self._known) > self._known_pairs:
          self._known.popitem(last=False)
      self._timeouts += outcome.status == 'timeout'
      self._errors += outcome.status == 'error'
      if fault:
        self._last_fault = _fault_text(pair, fault)
    future.set_result(outcome)

  def _refuse(self, error: RuntimeError) -> None:
    """Ends everything; the first reason is what everyone is told."""
    with self._lock:
      if self._refusal is None:
        self._refusal = error
      pending, self._pending = list(self._pending.values()), {}
      workers = list(self._workers)
    for future in pending:
      future.set_exception(self._refusal)
    for worker in workers:
      worker.hang_up()
    for _ in self._threads:
      self._tasks.put(None)


class _Known(NamedTuple):
  outcome: Outcome

  def result(self) -> Outcome:
    return self.outcome


def _check_positive(**numbers: int | float) -> None:
  for name, number in numbers.items():
    if not number > 0:
      raise ValueError(f'{name} ({number:g}) must be above 0')


def _fault_text(pair: Pair | None, fault: str) -> str:
  """Returns one line with the ends of long texts left out."""
  if pair is None:
    return fault
  answer, gold = (repr(text[:_NAMED_CHARACTERS]) for text in pair)
  return f'answer {answer}, gold {gold}: {fault}'

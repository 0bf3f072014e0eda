"""Tests of `rewards.verifiers`, with real processes."""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent import futures

import jaxtyping
from absl.testing import absltest, parameterized

import processes
import verdict_functions
from dapo_jax.rewards import verifiers

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_EQUAL = verifiers.Outcome(True, 'ok')
_UNEQUAL = verifiers.Outcome(False, 'ok')
_TIMEOUT = verifiers.Outcome(False, 'timeout')
_ERROR = verifiers.Outcome(False, 'error')
_LIMIT_S = 1.0
# Beyond what a slow machine needs for anything but a time-out.
_SLACK_S = 10.0


def _open(function=verdict_functions.act, **changes):
  limits = dict(processes=2, limit_s=_LIMIT_S, memory_gib=0.5)
  return verifiers.Verifiers(function, **limits | changes)


def _elapsed_s(call):
  begin = time.monotonic()
  call()
  return time.monotonic() - begin


def _wait_for(claim):
  until_s = time.monotonic() + _SLACK_S
  while not claim() and time.monotonic() < until_s:
    time.sleep(0.01)
  return claim()


class _Folder(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    # A new one for every test, so that no pair was asked before.
    self.file = pathlib.Path(folder.name) / 'file'

  def _lines(self):
    return self.file.read_text().split() if self.file.exists() else []


class OutcomeTest(_Folder):
  """One pool for all: each failure leaves it as good as new."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.pool = _open()
    cls.addClassCleanup(cls.pool.close)
    # For what fails by itself, however busy the machine is.
    cls.patient = _open(limit_s=60.0)
    cls.addClassCleanup(cls.patient.close)

  def test_verdicts_are_the_functions(self):
    self.assertEqual(self.pool.verdict('1', '1'), _EQUAL)
    self.assertEqual(self.pool.verdict('1', '2'), _UNEQUAL)
    self.assertEqual(self.pool.verdict('', ''), _EQUAL)

  @parameterized.parameters(
    ('raise', _ERROR, 'ZeroDivisionError: of mine'),
    ('recurse', _ERROR, 'RecursionError: '),
    ('one', _ERROR, "the result is of <class 'int'>, no bool"),
    ('function', _ERROR, "the result is of <class 'function'>, no bool"),
    ('exit', _ERROR, 'the process ended with exit code 0'),
    ('leave', _ERROR, 'SystemExit'),
    ('crash', _ERROR, 'the process was ended by SIGSEGV'),
    ('fill', _ERROR, 'MemoryError'),
    ('compute', _TIMEOUT, 'no verdict after 1 s'),
    ('sleep', _TIMEOUT, 'no verdict after 1 s'),
  )
  def test_a_pair_that_fails_is_told_and_no_other(self, answer, outcome, fault):
    pool = self.pool if outcome == _TIMEOUT else self.patient
    before = pool.counts()
    # As many others before and after as keep both processes busy.
    others = [(f'{answer} {i}', f'{answer} {i // 2 * 2}') for i in range(20)]
    pairs = others[:10] + [(answer, 'x' * 200)] + others[10:]
    found = pool.verdicts(pairs)
    self.assertEqual(
      found, 5 * [_EQUAL, _UNEQUAL] + [outcome] + 5 * [_EQUAL, _UNEQUAL]
    )
    after = pool.counts()
    self.assertEqual(
      (after.timeouts - before.timeouts, after.errors - before.errors),
      (1, 0) if outcome == _TIMEOUT else (0, 1),
    )
    # The first 100 characters tell which pair it was.
    self.assertStartsWith(
      pool.last_fault(), f"answer '{answer}', gold '{'x' * 100}': {fault}"
    )

  def test_order_and_number_are_kept_with_failures_in_between(self):
    # 60 pairs; every fifth fails, and none was asked before.
    failing = ('raise', 'exit', 'crash', 'leave')
    pairs, expected = [], []
    for i in range(60):
      gold = f'{self.id()} {i}'
      if i % 5 == 2:
        pairs.append((failing[i // 5 % 4], gold))
        expected.append(_ERROR)
      else:
        pairs.append((gold if i % 3 else 'other', gold))
        expected.append(_EQUAL if i % 3 else _UNEQUAL)
    self.assertEqual(self.pool.verdicts(pairs), expected)

  def test_no_pairs_have_no_outcomes(self):
    self.assertEqual(self.pool.verdicts([]), [])

  @parameterized.parameters(
    'é\n\0', '\U0001d54f', '\ud800', '\\boxed{1}', 'x' * 300_000
  )
  def test_any_text_is_judged(self, text):
    self.assertEqual(self.pool.verdict(text, text), _EQUAL)
    self.assertEqual(self.pool.verdict(text, text + '.'), _UNEQUAL)

  @parameterized.parameters((b'1', '1'), ('1', 1), (None, '1'))
  def test_what_is_no_text_is_refused_and_nothing_else(self, answer, gold):
    # The second where the tests check types.
    errors = (TypeError, jaxtyping.TypeCheckError)
    with self.assertRaises(errors):
      self.pool.verdicts([(answer, gold)])
    self.assertEqual(self.pool.verdict('1', '1'), _EQUAL)

  def test_threads_get_the_verdicts_of_the_main_thread(self):
    pairs = [(f'{self.id()} {i}', f'{self.id()} {i % 20}') for i in range(200)]
    with futures.ThreadPoolExecutor(8) as executor:
      found = list(executor.map(lambda pair: self.pool.verdict(*pair), pairs))
    self.assertEqual(found, 20 * [_EQUAL] + 180 * [_UNEQUAL])
    self.assertEqual(self.pool.verdicts(pairs), found)

  def test_a_pair_is_judged_once(self):
    pair = ('note', str(self.file))
    self.assertEqual(self.pool.verdict(*pair), _EQUAL)
    self.assertEqual(self.pool.verdicts([pair, pair]), [_EQUAL, _EQUAL])
    self.assertLen(self._lines(), 1)

  def test_a_pair_that_is_asked_at_the_same_time_is_judged_once(self):
    pair = ('note and sleep', str(self.file))
    with futures.ThreadPoolExecutor(8) as executor:
      asked = [executor.submit(self.pool.verdict, *pair) for _ in range(8)]
    self.assertEqual([one.result() for one in asked], 8 * [_EQUAL])
    self.assertLen(self._lines(), 1)

  def test_a_failed_pair_is_judged_and_counted_once(self):
    pair = ('note and hang', str(self.file))
    before = self.pool.counts()
    found = self.pool.verdicts([pair, pair])
    self.assertLess(_elapsed_s(lambda: self.pool.verdict(*pair)), _LIMIT_S)
    self.assertEqual(found, [_TIMEOUT, _TIMEOUT])
    self.assertLen(self._lines(), 1)
    self.assertEqual(self.pool.counts().timeouts, before.timeouts + 1)

  def test_another_process_judges_while_one_hangs(self):
    hanging = threading.Thread(
      target=self.pool.verdict, args=('note and hang', str(self.file))
    )
    hanging.start()
    self.assertTrue(_wait_for(self._lines))
    pairs = [(self.id(), str(i)) for i in range(50)]
    took_s = _elapsed_s(lambda: self.pool.verdicts(pairs))
    self.assertTrue(hanging.is_alive(), msg=f'{took_s} s for the others')
    hanging.join()

  def test_ten_thousand_verdicts(self):
    pairs = [(f'{i}', f'{i}' if i % 3 else 'x') for i in range(10_000)]
    begin = time.monotonic()
    found = self.pool.verdicts(pairs)
    took_s = time.monotonic() - begin
    self.assertEqual(
      found, [_EQUAL if i % 3 else _UNEQUAL for i in range(10_000)]
    )
    # 0.4 s without type checks on two cores; a limit for a machine under load.
    self.assertLess(took_s, _SLACK_S)


class LimitTest(_Folder):
  def test_hanging_pairs_take_their_limit_in_turns_of_the_processes(self):
    # Four hang, two at a time: 2 x 0.5 s, and what starting takes.
    with _open(limit_s=0.5) as pool:
      pairs = [('compute', str(i)) for i in range(4)]
      took_s = _elapsed_s(lambda: pool.verdicts(pairs))
      self.assertEqual(pool.counts(), (4, 0))
    self.assertBetween(took_s, 1.0, 1.0 + _SLACK_S)

  def test_a_process_is_replaced_after_its_verdicts(self):
    with _open(processes=1, process_verdicts=3) as pool:
      for i in range(7):
        # Each name is another pair, of the same file.
        gold = str(self.file.parent) + '/.' * i + '/file'
        self.assertEqual(pool.verdict('note', gold), _EQUAL)
    pids = self._lines()
    self.assertLen(pids, 7)
    self.assertLen(set(pids), 3)
    self.assertEqual(pids, sorted(pids, key=pids.index))  # 3, 3 and 1 in turn
    self.assertEqual([pids.count(p) for p in dict.fromkeys(pids)], [3, 3, 1])

  def test_the_latest_outcomes_are_kept(self):
    with _open(processes=1, known_pairs=2) as pool:
      note = ('note', str(self.file))
      pool.verdicts([note, ('1', '1')])
      pool.verdict(*note)  # now it is later than ('1', '1')
      pool.verdict('2', '2')
      pool.verdict(*note)
      self.assertLen(self._lines(), 1)
      pool.verdicts([('3', '3'), ('4', '4')])
      pool.verdict(*note)
      self.assertLen(self._lines(), 2)

  @parameterized.parameters(
    'processes', 'limit_s', 'memory_gib', 'process_verdicts', 'known_pairs'
  )
  def test_numbers_are_above_zero(self, name):
    zero = 0.0 if name in ('limit_s', 'memory_gib') else 0
    with self.assertRaisesRegex(ValueError, rf'{name} \(0\) must be above 0'):
      _open(**{name: zero})


class LoadTest(_Folder):
  def _module(self, text):
    name = f'functions_{self.id().rpartition(".")[2]}'
    (self.file.parent / f'{name}.py').write_text(textwrap.dedent(text))
    sys.path.append(str(self.file.parent))
    self.addCleanup(sys.path.remove, str(self.file.parent))
    return name

  def _function(self, module, name='judge'):
    function = lambda answer, gold: True
    function.__module__, function.__qualname__ = module, name
    return function

  def test_a_function_that_cannot_be_imported_is_one_error(self):
    module = self._module(
      f"""
      with open({str(self.file)!r}, 'a') as file:
        file.write('loaded\\n')
      import no_such_module
      """
    )
    with self.assertRaisesRegex(
      verifiers.LoadError,
      f'^a worker process cannot load judge of module {module}: '
      "ModuleNotFoundError: No module named 'no_such_module'$",
    ):
      _open(self._function(module))
    self.assertLen(self._lines(), 1)

  def test_one_that_fails_later_is_told_to_all(self):
    # It can be loaded once.
    module = self._module(
      f"""
      import os
      with open({str(self.file)!r}, 'x') as file:
        pass
      def judge(answer, gold):
        os._exit(1)
      """
    )
    with _open(self._function(module), processes=1) as pool:
      self.assertEqual(pool.verdict('1', '1'), _ERROR)
      for _ in range(2):
        with self.assertRaisesRegex(verifiers.LoadError, 'FileExistsError'):
          pool.verdicts([('2', '2'), ('3', '3')])

  def test_loading_does_not_count(self):
    module = self._module(
      """
      import time
      time.sleep(0.6)
      def judge(answer, gold):
        return True
      """
    )
    with _open(self._function(module), limit_s=0.3, processes=1) as pool:
      self.assertEqual(pool.verdict('1', '1'), _EQUAL)

  @parameterized.parameters(
    (lambda answer, gold: True,),
    (futures.Future().set_result,),
    (functools.partial(verdict_functions.equal),),
  )
  def test_a_function_without_a_place_is_refused(self, function):
    with self.assertRaisesRegex(ValueError, 'at the top of a module'):
      _open(function)

  def test_one_of_the_main_module_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'other than the main one'):
      _open(self._function('__main__'))

  def test_import_brings_little(self):
    code = 'import sys; import dapo_jax.rewards.verifiers; print(*sys.modules)'
    done = subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      text=True,
      cwd=_ROOT,
      check=True,
    )
    self.assertNoCommonElements(
      done.stdout.split(), ('jax', 'numpy', 'multiprocessing', 'sympy')
    )


class CloseTest(_Folder):
  def _hang(self, pool):
    """Lets a pair hang; returns the process that does, and what was raised."""
    raised = []

    def ask():
      try:
        pool.verdict('note and hang', str(self.file))
      except RuntimeError as error:
        raised.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    self.assertTrue(_wait_for(self._lines))
    return int(self._lines()[0]), thread, raised

  def test_it_ends_what_hangs_and_tells_those_who_wait(self):
    pool = _open(processes=1, limit_s=600.0)
    pid, thread, raised = self._hang(pool)
    self.assertLess(_elapsed_s(pool.close), _SLACK_S)
    thread.join(_SLACK_S)
    self.assertEqual(raised, ['the verifiers are closed'])
    with self.assertRaises(ProcessLookupError):
      os.kill(pid, 0)
    self.assertEqual(pool.counts(), (0, 0))
    pool.close()  # again does no harm

  def test_afterwards_all_is_refused(self):
    with _open(processes=1) as pool:
      pool.verdict('1', '1')
    with self.assertRaisesRegex(RuntimeError, 'the verifiers are closed'):
      pool.verdict('1', '1')
    self.assertFalse(any(t.is_alive() for t in pool._threads))

  def test_an_exception_closes_it(self):
    with self.assertRaises(ZeroDivisionError), _open(processes=1) as pool:
      raise ZeroDivisionError
    with self.assertRaises(RuntimeError):
      pool.verdict('1', '1')

  def test_no_descriptor_is_left(self):
    with _open(processes=1):
      pass  # what Python itself keeps open is open now
    before = len(os.listdir('/proc/self/fd'))
    with _open(limit_s=0.2) as pool:
      pool.verdicts([(a, 'x') for a in ('exit', 'sleep', 'raise', 'leave')])
    self.assertLen(os.listdir('/proc/self/fd'), before)

  def test_ctrl_c_ends_the_wait_at_once(self):
    with _open(processes=1, limit_s=600.0) as pool:
      # Its own handler: a shell's background jobs begin with it ignored.
      old = signal.signal(signal.SIGINT, signal.default_int_handler)
      self.addCleanup(signal.signal, signal.SIGINT, old)
      interrupt = threading.Thread(target=self._interrupt)
      interrupt.start()
      with self.assertRaises(KeyboardInterrupt):
        pool.verdict('note and hang', str(self.file))
      interrupted_s = time.monotonic()
      interrupt.join()
    self.assertLess(interrupted_s - self.sent_s, _SLACK_S)
    self.assertLess(time.monotonic() - self.sent_s, _SLACK_S)

  def _interrupt(self):
    _wait_for(self._lines)
    self.sent_s = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  def test_a_process_ignores_what_asks_the_parent_to_stop(self, number):
    with _open(processes=1) as pool:
      note = ('note', str(self.file))
      pool.verdict(*note)
      pid = int(self._lines()[0])
      os.kill(pid, number)
      self.assertNotEqual(os.getpgid(pid), os.getpgid(0))
      pool.verdict('note', f'{self.file.parent}/./file')
    self.assertEqual(self._lines(), 2 * [str(pid)])


class ParentTest(_Folder):
  """A parent of its own, which ends in several ways."""

  def _start(self, last):
    code = f"""
      import threading, time
      import verdict_functions
      from dapo_jax.rewards import verifiers
      pool = verifiers.Verifiers(
        verdict_functions.act, processes=2, limit_s=600.0
      )
      pool.verdict('note', {str(self.file)!r})
      # A thread that ends takes no process with it.
      ask = lambda: pool.verdict('note', {f'{self.file.parent}/./file'!r})
      asking = threading.Thread(target=ask)
      asking.start()
      asking.join()
      hang = lambda: pool.verdict('note and hang', {str(self.file)!r})
      threading.Thread(target=hang, daemon=True).start()
      {last}
    """
    parent = subprocess.Popen(
      [sys.executable, '-c', textwrap.dedent(code)],
      env=os.environ | {'PYTHONPATH': f'{_ROOT}:{_ROOT / "tests"}'},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
    )
    self.addCleanup(parent.stdout.close)
    self.addCleanup(parent.kill)
    self.assertTrue(_wait_for(lambda: len(self._lines()) == 3))
    return parent

  def _assert_no_process_is_left(self):
    pids = {int(line) for line in self._lines()}
    self.assertTrue(
      _wait_for(lambda: all(processes.is_dead(pid) for pid in pids)),
      msg=f'{pids}',
    )

  def test_killed(self):
    parent = self._start('time.sleep(3600)')
    parent.kill()
    parent.wait()
    self._assert_no_process_is_left()

  def test_at_its_end_without_closing(self):
    parent = self._start('time.sleep(0.5)')
    self.assertEqual(parent.wait(_SLACK_S), 0)
    self.assertEqual(parent.stdout.read(), b'')
    self._assert_no_process_is_left()


if __name__ == '__main__':
  absltest.main()

"""Tests of `rewards.verifier_worker`, its process played by a thread."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

from absl.testing import absltest, parameterized

from dapo_jax.rewards import verifier_worker


class MessageTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.here, self.there = socket.socketpair()
    self.addCleanup(self.here.close)
    self.addCleanup(self.there.close)

  @parameterized.parameters(
    '', '\\frac{1}{2}', 'é\n\0"', '\U0001d54f', '\ud800', 'x' * 300_000
  )
  def test_any_text_arrives(self, text):
    # The last one is longer than the socket's buffer.
    sender = threading.Thread(
      target=verifier_worker.send, args=(self.here, [text, True])
    )
    sender.start()
    self.assertEqual(verifier_worker.receive(self.there), [text, True])
    sender.join()

  def test_a_message_in_pieces_arrives_whole(self):
    # 10 characters: 00 00 00 0A, then the text.
    text = b'\0\0\0\x0a["answer"]'
    received = []
    reader = threading.Thread(
      target=lambda: received.append(verifier_worker.receive(self.there))
    )
    reader.start()
    for i in range(len(text)):
      self.assertEmpty(received)
      self.here.sendall(text[i : i + 1])
    reader.join(10)
    self.assertEqual(received, [['answer']])

  def test_a_closed_connection_is_its_end(self):
    self.here.sendall(b'\0\0')
    self.here.close()
    with self.assertRaises(EOFError):
      verifier_worker.receive(self.there)

  def test_the_wait_ends(self):
    begin = time.monotonic()
    with self.assertRaises(TimeoutError):
      verifier_worker.receive(self.there, until_s=begin + 0.05)
    self.assertBetween(time.monotonic() - begin, 0.05, 5)

  def test_what_is_not_there_in_time_is_too_late(self):
    with self.assertRaises(TimeoutError):
      verifier_worker.receive(self.there, until_s=time.monotonic() - 1)

  def test_what_is_there_is_never_too_late(self):
    verifier_worker.send(self.here, ['there'])
    self.assertEqual(
      verifier_worker.receive(self.there, until_s=time.monotonic() - 1),
      ['there'],
    )


class VerdictTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_a_bool_is_the_verdict(self, equal):
    self.assertEqual(
      verifier_worker.verdict(lambda answer, gold: equal, '1', '2'),
      (equal, '', False),
    )

  def test_answer_comes_before_gold(self):
    reply = verifier_worker.verdict(
      lambda answer, gold: (answer, gold) == ('a', 'g'), 'a', 'g'
    )
    self.assertTrue(reply.equal)

  @parameterized.parameters(1, None, 'True', ([True],))
  def test_what_is_no_bool_is_a_fault(self, result):
    reply = verifier_worker.verdict(lambda answer, gold: result, '1', '1')
    self.assertIs(reply.equal, False)
    self.assertIn(type(result).__name__, reply.fault)
    self.assertFalse(reply.ends)

  @parameterized.parameters(
    (ZeroDivisionError('of\n mine'), 'ZeroDivisionError: of mine', False),
    (ValueError(), 'ValueError', False),
    (RecursionError('deep'), 'RecursionError: deep', False),
    (MemoryError(), 'MemoryError', True),
    (SystemExit(3), 'SystemExit: 3', True),
    (KeyboardInterrupt(), 'KeyboardInterrupt', True),
  )
  def test_what_is_raised_is_a_fault(self, error, fault, ends):
    def function(answer, gold):
      raise error

    self.assertEqual(
      verifier_worker.verdict(function, '1', '1'), (False, fault, ends)
    )

  def test_a_long_fault_is_cut(self):
    def function(answer, gold):
      raise ValueError('x' * 10_000)

    fault = verifier_worker.verdict(function, '1', '1').fault
    # 'ValueError: ' has 12 characters of the 500.
    self.assertEqual(fault, 'ValueError: ' + 488 * 'x')


class ServeTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # `serve` replaces the import paths.
    self.addCleanup(sys.path.__setitem__, slice(None), sys.path[:])
    self.here, there = socket.socketpair()
    self.here.settimeout(10)
    self.addCleanup(there.close)
    self.thread = threading.Thread(
      target=verifier_worker.serve, args=(there,), daemon=True
    )
    self.thread.start()
    self.addCleanup(self.thread.join, 10)
    self.addCleanup(self.here.close)

  def _ask(self, *message):
    verifier_worker.send(self.here, message)
    return verifier_worker.receive(self.here)

  def test_loads_then_answers_until_the_connection_ends(self):
    self.assertEqual(
      self._ask(sys.path, 'verdict_functions', 'equal'), [False, '', False]
    )
    self.assertEqual(self._ask('1', '1'), [True, '', False])
    self.assertEqual(self._ask('1', '2'), [False, '', False])
    self.here.close()
    self.thread.join(10)
    self.assertFalse(self.thread.is_alive())

  def test_ends_after_a_fault_that_it_may_not_survive(self):
    self._ask(sys.path, 'verdict_functions', 'act')
    self.assertEqual(self._ask('leave', ''), [False, 'SystemExit', True])
    self.thread.join(10)
    self.assertFalse(self.thread.is_alive())

  @parameterized.parameters(
    ('no_such_module', 'equal', 'ModuleNotFoundError.*no_such_module'),
    ('verdict_functions', 'no_such_name', 'AttributeError.*no_such_name'),
  )
  def test_what_it_cannot_load_is_told(self, module, name, fault):
    equal, found, ends = self._ask(sys.path, module, name)
    self.assertRegex(found, fault)
    self.assertFalse(equal)
    self.assertTrue(ends)
    self.thread.join(10)
    self.assertFalse(self.thread.is_alive())

  def test_paths_are_the_parents(self):
    equal, fault, _ = self._ask([], 'verdict_functions', 'equal')
    # It is loaded in this process: found whatever the paths are.
    self.assertEqual((equal, fault), (False, ''))
    self.assertEqual(sys.path, [])


class ConfineTest(absltest.TestCase):
  def _run(self, parent):
    script = (
      'import json, resource, signal\n'
      'from dapo_jax.rewards import verifier_worker\n'
      'verifier_worker.confine(memory_bytes=1 << 28, parent=%d)\n'
      'print(json.dumps([\n'
      '  resource.getrlimit(resource.RLIMIT_AS),\n'
      '  resource.getrlimit(resource.RLIMIT_CORE),\n'
      '  signal.getsignal(signal.SIGINT) == signal.SIG_IGN,\n'
      '  signal.getsignal(signal.SIGTERM) == signal.SIG_IGN,\n'
      ']))\n'
    )
    return subprocess.run(
      [sys.executable, '-c', script % parent],
      capture_output=True,
      text=True,
      timeout=60,
      cwd=pathlib.Path(__file__).parents[1],
    )

  def test_limits_hold_and_signals_are_ignored(self):
    done = self._run(os.getpid())
    self.assertEqual(
      json.loads(done.stdout),
      [[1 << 28, 1 << 28], [0, 0], True, True],
      msg=done.stderr,
    )

  @absltest.skipUnless(sys.platform == 'linux', 'only Linux tells of deaths')
  def test_an_orphan_ends(self):
    done = self._run(os.getppid())
    self.assertEqual((done.returncode, done.stdout), (1, ''))


class ImportTest(absltest.TestCase):
  def test_it_is_imported_without_our_package(self):
    # As it is run: by its path, with paths that lack this repository.
    done = subprocess.run(
      [sys.executable, '-P', '-v', verifier_worker.__file__],
      capture_output=True,
      text=True,
      timeout=60,
    )
    self.assertNotIn("import 'dapo_jax", done.stderr)
    self.assertIn("import 'resource'", done.stderr)


if __name__ == '__main__':
  absltest.main()

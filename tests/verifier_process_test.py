"""Tests of `rewards.verifier_process`, with real processes."""

import os
import pathlib
import sys
import tempfile
import threading
import time

from absl.testing import absltest, parameterized

from dapo_jax.rewards import verifier_process


def _gone(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return True
  return False


class WorkerTest(parameterized.TestCase):
  def _worker(self, name='act', *, memory_gib=0.5, module='verdict_functions'):
    worker = verifier_process.Worker(memory_gib=memory_gib)
    self.addCleanup(worker.end)
    worker.load(module, name)
    return worker

  def _folder(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)

  def _add_module(self, name, text):
    folder = self._folder()
    (folder / f'{name}.py').write_text(text)
    sys.path.append(str(folder))
    self.addCleanup(sys.path.remove, str(folder))

  def _pid(self, worker):
    return worker._process.pid

  def test_gives_verdicts_and_counts_them(self):
    worker = self._worker()
    self.assertTrue(worker.verdict('1', '1', limit_s=30.0).equal)
    self.assertFalse(worker.verdict('1', '2', limit_s=30.0).equal)
    self.assertEqual(worker.verdicts, 2)

  def test_a_fault_leaves_it_alive(self):
    worker = self._worker()
    for answer, fault in (
      ('raise', 'ZeroDivisionError: of mine'),
      ('recurse', 'RecursionError'),
      ('function', 'no bool'),
    ):
      reply = worker.verdict(answer, '', limit_s=30.0)
      self.assertFalse(reply.equal)
      self.assertIn(fault, reply.fault)
      self.assertFalse(reply.ends)
    self.assertTrue(worker.verdict('1', '1', limit_s=30.0).equal)

  def test_full_memory_is_a_fault_and_its_last(self):
    # The whole process has 0.5 GiB.
    reply = self._worker().verdict('fill', '', limit_s=60.0)
    self.assertEqual(reply, (False, 'MemoryError', True))

  @parameterized.parameters('sleep', 'compute')
  def test_a_hanging_one_is_given_up_and_can_be_killed(self, answer):
    worker = self._worker()
    begin = time.monotonic()
    with self.assertRaises(TimeoutError):
      worker.verdict(answer, '', limit_s=0.2)
    self.assertBetween(time.monotonic() - begin, 0.2, 5)
    self.assertEqual(worker.end(), -9)
    self.assertTrue(_gone(self._pid(worker)))

  @parameterized.parameters(
    ('exit', 'the process ended with exit code 0'),
    ('crash', 'the process was ended by SIGSEGV'),
  )
  def test_an_end_is_told_with_its_cause(self, answer, message):
    worker = self._worker()
    with self.assertRaisesRegex(verifier_process.EndedError, f'^{message}$'):
      worker.verdict(answer, '', limit_s=30.0)
    self.assertTrue(_gone(self._pid(worker)))

  def test_what_the_function_has_started_ends_with_it(self):
    worker = self._worker()
    file = self._folder() / 'pid'
    reply = worker.verdict('start a process', str(file), limit_s=30.0)
    self.assertTrue(reply.equal)
    pid = int(file.read_text())
    self.assertFalse(_gone(pid))
    worker.end()
    # Whoever inherits it may take a moment to notice.
    until_s = time.monotonic() + 10
    while not _is_dead(pid) and time.monotonic() < until_s:
      time.sleep(0.01)
    self.assertTrue(_is_dead(pid))

  def test_hanging_up_ends_the_wait_of_another_thread(self):
    worker = self._worker()
    timer = threading.Timer(0.1, worker.hang_up)
    timer.start()
    begin = time.monotonic()
    with self.assertRaises(verifier_process.EndedError):
      worker.verdict('compute', '', limit_s=60.0)
    self.assertLess(time.monotonic() - begin, 10)
    timer.join()
    worker.hang_up()  # too late, and no harm

  def test_ending_twice_does_no_harm(self):
    worker = self._worker()
    self.assertEqual(worker.end(), worker.end())

  def test_nothing_is_printed_or_read(self):
    read, write = os.pipe()
    self.addCleanup(os.close, read)
    kept = [os.dup(1), os.dup(2)]
    try:
      os.dup2(write, 1)
      os.dup2(write, 2)
      worker = self._worker()
      reply = worker.verdict('print', '', limit_s=30.0)
      worker.end()
    finally:
      for number, descriptor in enumerate(kept, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
      os.close(write)
    self.assertEqual(reply, (True, '', False))
    self.assertEqual(os.read(read, 1000), b'')

  def test_the_environment_is_the_same_in_every_process(self):
    # The hash of a text, by which a set is ordered.
    for _ in range(2):
      reply = self._worker('hash_seed_is_zero').verdict('', '', limit_s=30.0)
      self.assertEqual(reply, (True, '', False))

  @parameterized.parameters(
    ('no_such_name', 'cannot load no_such_name of module verdict_functions: '),
    ('raise_at_import', 'module faulty_functions: ZeroDivisionError'),
  )
  def test_what_cannot_be_loaded_is_told(self, name, message):
    self._add_module('faulty_functions', '1 / 0\n')
    module = 'faulty_functions' if 'import' in name else 'verdict_functions'
    with self.assertRaisesRegex(verifier_process.LoadError, message):
      self._worker(name, module=module)

  @parameterized.parameters('exit', 'sleep')
  def test_an_import_that_never_ends_or_ends_all_is_told(self, act):
    code = 'os._exit(7)' if act == 'exit' else 'time.sleep(3600)'
    self._add_module('ending_functions', f'import os, time\n{code}\n')
    message = 'exit code 7' if act == 'exit' else 'more than 0.5 s'
    with (
      absltest.mock.patch.object(verifier_process, '_LOAD_S', 0.5),
      self.assertRaisesRegex(verifier_process.LoadError, message),
    ):
      self._worker('equal', module='ending_functions')


def _is_dead(pid):
  """Whether a process has ended, if its parent has noticed or not."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
      return file.read().rpartition(')')[2].split()[0] == 'Z'
  except FileNotFoundError:
    return True


if __name__ == '__main__':
  absltest.main()

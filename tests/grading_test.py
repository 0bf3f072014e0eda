"""Tests of `rollout.grading`, with judges that wait for the test."""

import pathlib
import subprocess
import sys
import textwrap
import threading
import time
import traceback

import numpy as np
from absl.testing import absltest, parameterized

import tiny_groups
from dapo_jax.data import records
from dapo_jax.rewards import reward
from dapo_jax.rollout import grading

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def _response(text, *, length_tokens=3):
  zeros = np.zeros(length_tokens, np.int32)
  return records.Response(zeros, zeros.astype(np.float32), 'eos', text)


def _verdict(text):
  return reward.Judgement(True, 1.0, 0.0, 0.0, text)


def _grading(judge, **changes):
  plain = grading.Grading(judge, wait_s=60.0, on_wait=lambda seconds: None)
  return plain._replace(**changes)


class GradersTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.released = threading.Event()
    self.addCleanup(self.released.set)

  def _hang(self, prompt, text, length_tokens):
    del prompt, length_tokens
    self.released.wait(60)
    return _verdict(text)

  def test_every_response_has_its_own_verdict(self):
    asked = []

    def judge(prompt, text, length_tokens):
      asked.append((prompt, text, length_tokens))
      return _verdict(f'{text}!')

    prompts = [tiny_groups.prompt(i) for i in range(20)]
    responses = [_response(f'to {i}', length_tokens=i) for i in range(20)]
    with grading.Graders(_grading(judge)) as graders:
      for i, (prompt, response) in enumerate(
        zip(prompts, responses, strict=True)
      ):
        graders.submit((i, 5), prompt, response)
        graders.look()
      found = graders.finish()
    self.assertEqual(sorted(found), [(i, 5) for i in range(20)])
    for i in range(20):
      response, verdict = found[i, 5]
      self.assertIs(response, responses[i])
      self.assertEqual(verdict.extracted, f'to {i}!')
      self.assertIn((prompts[i], f'to {i}', i), asked)
    self.assertLen(asked, 20)

  @parameterized.parameters(1, 3)
  def test_so_many_verdicts_are_under_way_at_one_time(self, threads):
    # Passes only when all are there at once; one more would break it.
    together = threading.Barrier(threads, timeout=10)
    running, most = [], []

    def judge(prompt, text, length_tokens):
      del prompt, length_tokens
      running.append(text)
      together.wait()
      most.append(len(running))
      together.wait()
      running.remove(text)
      together.wait()
      return _verdict(text)

    with grading.Graders(_grading(judge, threads=threads)) as graders:
      for g in range(4 * threads):
        graders.submit((0, g), tiny_groups.prompt(0), _response(str(g)))
      graders.finish()
    self.assertEqual(most, [threads] * 4 * threads)

  @parameterized.parameters(ZeroDivisionError, SystemExit, KeyboardInterrupt)
  def test_what_a_judge_raises_is_the_cause_and_the_text_is_told(self, error):
    def judge(prompt, text, length_tokens):
      raise error('no reward')

    text = 'x' * 500 + 'the\nend'
    with grading.Graders(_grading(judge)) as graders:
      graders.submit((4, 2), tiny_groups.prompt(4), _response(text))
      with self.assertRaisesRegex(
        grading.JudgeError,
        rf'^response 2 \(from 0\) to prompt {tiny_groups.prompt(4).id} could '
        rf'not be judged: {error.__name__}: no reward$',
      ) as caught:
        graders.finish()
    self.assertIsInstance(caught.exception.__cause__, error)
    printed = ''.join(traceback.format_exception(caught.exception))
    # 193 and 7 characters.
    self.assertIn(f"ends in '{'x' * 193}the\\nend'\n", printed)
    self.assertIn("raise error('no reward')", printed)

  def test_what_it_raises_may_have_no_text(self):
    class Mute(Exception):
      def __str__(self):
        raise ValueError

    def judge(prompt, text, length_tokens):
      raise Mute

    with grading.Graders(_grading(judge)) as graders:
      graders.submit((0, 0), tiny_groups.prompt(0), _response(''))
      with self.assertRaisesRegex(grading.JudgeError, 'Mute: .its text could'):
        graders.finish()

  def test_of_several_that_failed_the_first_draw_is_named(self):
    begun = threading.Barrier(5, timeout=10)

    def judge(prompt, text, length_tokens):
      begun.wait()
      raise ZeroDivisionError

    with grading.Graders(_grading(judge)) as graders:
      for i in (3, 1, 2, 5):
        graders.submit((i, 0), tiny_groups.prompt(i), _response(''))
      begun.wait()
      while graders._outcomes.qsize() < 4:
        time.sleep(1e-3)
      with self.assertRaisesRegex(
        grading.JudgeError, f'to prompt {tiny_groups.prompt(1).id} '
      ):
        graders.look()

  def test_the_wait_is_told_as_it_passes(self):
    told = []

    def on_wait(seconds):
      told.append(seconds)
      if len(told) == 3:
        self.released.set()

    with grading.Graders(_grading(self._hang, on_wait=on_wait)) as graders:
      graders.submit((0, 0), tiny_groups.prompt(0), _response(''))
      begin = time.perf_counter()
      graders.finish()
      waited_s = time.perf_counter() - begin
    self.assertGreaterEqual(len(told), 3)
    self.assertLessEqual(sum(told), waited_s)
    # Two looks passed in vain, 0.1 s each.
    self.assertGreater(sum(told), 0.15)

  def test_with_nothing_missing_there_is_no_wait(self):
    told = []
    with grading.Graders(_grading(self._hang, on_wait=told.append)) as graders:
      self.assertEqual(graders.finish(), {})
    self.assertEqual(told, [])

  def test_few_of_many_prompts_are_named(self):
    with grading.Graders(_grading(self._hang, wait_s=0.01)) as graders:
      for i in range(8):
        for g in range(2):
          graders.submit((i, g), tiny_groups.prompt(i), _response(''))
      ids = ', '.join(tiny_groups.prompt(i).id for i in range(5))
      with self.assertRaisesRegex(
        grading.MissingVerdictsError,
        rf'^16 verdicts .* 0\.01 s .*\(to prompts {ids} and 3 more\);',
      ):
        graders.finish()

  def test_its_threads_end_with_it(self):
    before = set(threading.enumerate())
    with grading.Graders(_grading(self._hang)):
      threads = set(threading.enumerate()) - before
      self.assertLen(threads, 4)
    for thread in threads:
      thread.join(10)
      self.assertFalse(thread.is_alive())

  def test_a_program_ends_though_its_judge_does_not(self):
    program = """
      import threading
      import time
      import numpy as np
      import tiny_groups
      from dapo_jax.data import records
      from dapo_jax.rollout import grading

      begun = threading.Event()

      def judge(prompt, text, length_tokens):
        begun.set()
        time.sleep(1000)

      def interrupt(seconds):
        begun.wait()
        raise KeyboardInterrupt

      empty = np.zeros(0)
      with grading.Graders(grading.Grading(judge, 600.0, interrupt)) as graders:
        response = records.Response(empty, empty, 'eos', '')
        graders.submit((0, 0), tiny_groups.prompt(0), response)
        graders.finish()
    """
    ended = subprocess.run(
      [sys.executable, '-c', textwrap.dedent(program)],
      env={'PYTHONPATH': f'{_ROOT}:{_ROOT / "tests"}'},
      capture_output=True,
      text=True,
      timeout=60,
      check=False,
    )
    self.assertIn('KeyboardInterrupt', ended.stderr.splitlines()[-1])


if __name__ == '__main__':
  absltest.main()

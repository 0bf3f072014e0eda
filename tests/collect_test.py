"""Tests of `rollout.collect`, with a sampler made by hand."""

import itertools
import threading
import time

import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tiny_groups
from dapo_jax.data import records
from dapo_jax.rewards import reward
from dapo_jax.rollout import collect, grading, shares
from dapo_jax.sampling import scheduler, stop_strings

_EOS = 1


def _draws(count):
  return [records.Draw(10 + i, 0, tiny_groups.prompt(i)) for i in range(count)]


def _encode(prompt):
  return np.frombuffer(prompt.messages[0].content.encode(), np.uint8).astype(
    np.int32
  )


def _decode(ids):
  return ' '.join(map(str, ids))


def _completion(*tokens):
  finish = 'eos' if tokens[-1] == _EOS else 'length'
  return scheduler.Completion(
    np.array(tokens, np.int32), -np.ones(len(tokens), np.float32), finish
  )


def _grading(judge, *, wait_s=60.0):
  return grading.Grading(judge, wait_s, on_wait=lambda seconds: None)


def _verdict(text):
  return reward.Judgement(
    correct=text == '7',
    correctness=2.0,
    format=-0.25,
    overlong=-0.5,
    extracted=text,
  )


class CollectTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.judged = []
    self.requests = None

  def _judge(self, prompt, text, length_tokens):
    self.judged.append((prompt.id, text, length_tokens))
    return _verdict(text)

  def _collect(self, completions, order, *, samples=2):
    def sample(requests):
      self.requests = requests
      for index in order:
        yield index, completions[index]

    return collect.collect(
      _draws(len(completions)),
      encode=_encode,
      sample=sample,
      decode=_decode,
      grading=_grading(self._judge),
      samples_per_prompt=samples,
      shares=shares.alone(),
    )

  _COMPLETIONS = (
    (_completion(7, _EOS), _completion(8, 9)),
    (_completion(_EOS), _completion(7)),
    (_completion(5, 6, _EOS), _completion(4, _EOS, 3)),
  )

  def test_a_request_has_the_ordinal_and_the_tokens_of_its_draw(self):
    self._collect(self._COMPLETIONS, (0, 1, 2), samples=5)
    self.assertEqual([r.ordinal for r in self.requests], [10, 11, 12])
    self.assertEqual([r.samples for r in self.requests], [5, 5, 5])
    self.assertEqual(bytes(self.requests[2].prompt_tokens.tolist()), b'2+0=?')

  def test_order_of_completion_leaves_no_trace(self):
    expected = self._collect(self._COMPLETIONS, (0, 1, 2))
    self.assertEqual([g.draw.ordinal for g in expected], [10, 11, 12])
    for order in itertools.permutations(range(3)):
      found = self._collect(self._COMPLETIONS, order)
      for group, other in zip(expected, found, strict=True):
        self.assertEqual(group.draw, other.draw)
        self.assertEqual(group.extracted, other.extracted)
        np.testing.assert_array_equal(group.correct, other.correct)
        for a, b in zip(group.responses, other.responses, strict=True):
          np.testing.assert_array_equal(a.tokens, b.tokens)

  def test_tokens_hold_the_end_token_and_the_text_does_not(self):
    groups = self._collect(self._COMPLETIONS, (0, 1, 2))
    first, cut = groups[0].responses
    self.assertEqual(first.tokens.tolist(), [7, _EOS])
    self.assertLen(first.logp_sampler, 2)
    self.assertEqual((first.text, first.finish), ('7', 'eos'))
    self.assertEqual((cut.text, cut.finish), ('8 9', 'length'))
    # One that says nothing, and one that goes on after the token.
    self.assertEqual(groups[1].responses[0].text, '')
    self.assertEqual(groups[2].responses[1].text, f'4 {_EOS} 3')

  def test_the_judge_sees_the_response_alone_and_its_length_with_the_end(self):
    self._collect(self._COMPLETIONS, (0, 1, 2))
    ids = [tiny_groups.prompt(i).id for i in range(3)]
    self.assertCountEqual(
      self.judged,
      [
        (ids[0], '7', 2),
        (ids[0], '8 9', 2),
        (ids[1], '', 1),
        (ids[1], '7', 1),
        (ids[2], '5 6', 3),
        (ids[2], f'4 {_EOS} 3', 3),
      ],
    )

  def test_verdicts_become_the_group_s_numbers(self):
    group = self._collect(self._COMPLETIONS, (2, 1, 0))[0]
    self.assertEqual(group.correct.tolist(), [True, False])
    self.assertEqual(group.correctness.tolist(), [2.0, 2.0])
    self.assertEqual(group.overlong.tolist(), [-0.5, -0.5])
    self.assertEqual(group.extracted, ('7', '8 9'))

  def test_no_draw_gives_no_group(self):
    self.assertEqual(self._collect((), ()), [])


class StopTest(absltest.TestCase):
  def test_the_judge_sees_the_text_before_a_stop_string(self):
    completion = _completion(7, 8, 9)._replace(finish='stop')
    seen = []

    def judge(prompt, text, length_tokens):
      seen.append((text, length_tokens))
      return _verdict(text)

    def sample(requests):
      yield 0, (completion,)

    [group] = collect.collect(
      _draws(1),
      encode=_encode,
      sample=sample,
      decode=stop_strings.decoder(_decode, (' 9',)),
      grading=_grading(judge),
      samples_per_prompt=1,
      shares=shares.alone(),
    )
    [response] = group.responses
    # The loss sees all that was sampled.
    self.assertEqual(response.tokens.tolist(), [7, 8, 9])
    self.assertEqual((response.text, response.finish), ('7 8', 'stop'))
    self.assertEqual(seen, [('7 8', 3)])


class BesideTest(parameterized.TestCase):
  """Graders that are slow, raise or hang, beside a sampler made by hand."""

  def setUp(self):
    super().setUp()
    # What hangs ends with the test.
    self.released = threading.Event()
    self.addCleanup(self.released.set)

  def _collect(self, count, sample, judge, **changes):
    return collect.collect(
      _draws(count),
      encode=_encode,
      sample=sample,
      decode=_decode,
      grading=_grading(judge, **changes),
      samples_per_prompt=2,
      shares=shares.alone(),
    )

  def _group(self, index):
    """Returns what a sampler yields: the texts are '<index> 8', '<index> 9'."""
    return index, (_completion(index, 8), _completion(index, 9))

  def test_all_is_sampled_though_no_verdict_comes(self):
    events, ended = [], threading.Event()

    def judge(prompt, text, length_tokens):
      del prompt, length_tokens
      ended.wait(10)
      events.append('verdict')
      return _verdict(text)

    def sample(requests):
      for index in range(len(requests)):
        events.append(f'asked for {index}')
        yield self._group(index)
      events.append('asked for no more')
      ended.set()

    self._collect(3, sample, judge)
    self.assertEqual(
      events,
      [
        *('asked for 0', 'asked for 1', 'asked for 2', 'asked for no more'),
        *['verdict'] * 6,
      ],
    )

  def test_order_of_verdicts_leaves_no_trace(self):
    judged, others_done = [], threading.Event()

    def judge(prompt, text, length_tokens):
      del prompt, length_tokens
      if text == '0 8':
        others_done.wait(10)
      judged.append(text)
      if len(judged) == 5:
        others_done.set()
      return _verdict(text)

    def sample(requests):
      return (self._group(index) for index in range(len(requests)))

    groups = self._collect(3, sample, judge)
    self.assertEqual(judged[-1], '0 8')
    self.assertEqual([g.draw.ordinal for g in groups], [10, 11, 12])
    for index, group in enumerate(groups):
      texts = (f'{index} 8', f'{index} 9')
      self.assertEqual(group.extracted, texts)
      self.assertEqual(tuple(r.text for r in group.responses), texts)

  def test_a_judge_that_raises_ends_the_sampling_and_is_named(self):
    yielded, fault = [], ZeroDivisionError('of the reward')
    closed = []

    def judge(prompt, text, length_tokens):
      del prompt, length_tokens
      if text == '1 9':
        raise fault
      return _verdict(text)

    def sample(requests):
      try:
        for index in range(len(requests)):
          yielded.append(index)
          yield self._group(index)
          time.sleep(1e-3)
      except GeneratorExit:
        closed.append(True)
        raise

    with self.assertRaisesRegex(
      grading.JudgeError,
      rf'response 1 \(from 0\) to prompt {tiny_groups.prompt(1).id} could not '
      'be judged: ZeroDivisionError: of the reward',
    ) as caught:
      self._collect(5000, sample, judge)
    self.assertIs(caught.exception.__cause__, fault)
    self.assertEqual(closed, [True])
    self.assertLess(len(yielded), 5000)

  @parameterized.parameters(KeyboardInterrupt, MemoryError)
  def test_what_the_sampler_raises_waits_for_no_judge(self, error):
    judged = []

    def judge(prompt, text, length_tokens):
      del prompt, length_tokens
      judged.append(text)
      self.released.wait(60)
      return _verdict(text)

    def sample(requests):
      for index in range(len(requests)):
        yield self._group(index)
      while len(judged) < 4:  # as many as there are threads
        time.sleep(1e-3)
      raise error

    before = set(threading.enumerate())
    with self.assertRaises(error):
      self._collect(30, sample, judge)
    threads = set(threading.enumerate()) - before
    self.assertLen(threads, 4)
    self.assertFalse(self.released.is_set())
    # What nobody had begun to judge is dropped.
    self.released.set()
    for thread in threads:
      thread.join(10)
      self.assertFalse(thread.is_alive())
    self.assertLen(judged, 4)

  def test_verdicts_that_do_not_come_are_counted_and_their_prompts_named(self):
    judged = []

    def judge(prompt, text, length_tokens):
      del prompt, length_tokens
      if text in ('1 8', '1 9', '2 8'):
        self.released.wait(60)
      judged.append(text)
      return _verdict(text)

    def sample(requests):
      for index in range(len(requests)):
        yield self._group(index)
      while len(judged) < 5:
        time.sleep(1e-3)

    ids = [tiny_groups.prompt(i).id for i in range(4)]
    with self.assertRaisesRegex(
      grading.MissingVerdictsError,
      r'^3 verdicts are missing 0\.5 s after the last response '
      rf'\(to prompts {ids[1]}, {ids[2]}\);.*--config\.reward\.wait_s ',
    ):
      self._collect(4, sample, judge, wait_s=0.5)


class EngineTest(absltest.TestCase):
  def test_every_chunk_is_decoded_before_the_first_verdict(self):
    engine, reports, handed_over = tiny_engine.build(), [], []
    sampled, chunks_at_verdict = threading.Event(), []

    def judge(prompt, text, length_tokens):
      del prompt, length_tokens
      sampled.wait(60)
      chunks_at_verdict.append(len(reports))
      return _verdict(text)

    def sample(requests):
      for found in scheduler.generate(
        engine,
        tiny_engine.params(),
        requests,
        tiny_engine.sampling(),
        report=reports.append,
      ):
        handed_over.append(len(reports))
        yield found
      sampled.set()

    prompts = tiny_engine.PROMPTS
    groups = collect.collect(
      _draws(len(prompts)),
      encode=lambda prompt: prompts[int(prompt.gold)],
      sample=sample,
      decode=tiny_engine.Tokenizer().decode,
      grading=_grading(judge),
      samples_per_prompt=4,
      shares=shares.alone(),
    )
    self.assertEqual([len(g.responses) for g in groups], [4] * len(prompts))
    # A group was there to be judged long before the last chunk.
    self.assertLess(handed_over[0], len(reports) - 3)
    self.assertEqual(chunks_at_verdict, [len(reports)] * 4 * len(prompts))


class TruncatedTest(absltest.TestCase):
  def test_a_response_without_an_end_can_be_judged_wrong(self):
    # Right and ended, right and cut off, wrong and ended, right and stopped.
    group = tiny_groups.group(
      (1, 1, 0, 1), finish=['eos', 'length', 'eos', 'stop']
    )
    found = collect.truncated_as_wrong(group, wrong=-3.0)
    self.assertEqual(found.correct.tolist(), [True, False, False, True])
    earned = group.correctness.tolist()
    self.assertEqual(found.correctness.tolist(), [earned[0], -3.0, *earned[2:]])
    self.assertEqual(found.responses, group.responses)

  def test_what_earns_less_than_a_wrong_one_is_not_raised(self):
    # -1 for no answer, 0 for a wrong one; both cut off.
    group = tiny_groups.group((0, 0), finish=['length', 'length'])
    group = group._replace(correctness=np.array([-1.0, 0.0]))
    found = collect.truncated_as_wrong(group, wrong=0.0)
    self.assertEqual(found.correctness.tolist(), [-1.0, 0.0])


if __name__ == '__main__':
  absltest.main()

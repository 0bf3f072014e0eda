"""Tests of `rollout.collect`, with a sampler made by hand."""

import itertools

import numpy as np
from absl.testing import absltest, parameterized

import tiny_groups
from dapo_jax.data import records
from dapo_jax.rewards import reward
from dapo_jax.rollout import collect
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


class CollectTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.judged = []
    self.requests = None

  def _judge(self, prompt, text, length_tokens):
    self.judged.append((prompt.id, text, length_tokens))
    return reward.Judgement(
      correct=text == '7', correctness=2.0, overlong=-0.5, extracted=text
    )

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
      judge=self._judge,
      samples_per_prompt=samples,
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
    self.assertEqual(
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
      return reward.Judgement(
        correct=True, correctness=1.0, overlong=0.0, extracted=text
      )

    [group] = collect.collect(
      _draws(1),
      encode=_encode,
      sample=lambda requests: iter([(0, (completion,))]),
      decode=stop_strings.decoder(_decode, (' 9',)),
      judge=judge,
      samples_per_prompt=1,
    )
    [response] = group.responses
    # The loss sees all that was sampled.
    self.assertEqual(response.tokens.tolist(), [7, 8, 9])
    self.assertEqual((response.text, response.finish), ('7 8', 'stop'))
    self.assertEqual(seen, [('7 8', 3)])


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

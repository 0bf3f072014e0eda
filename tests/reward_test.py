"""Tests of the reward and its components."""

import functools
import random

from absl.testing import absltest, parameterized

from dapo_jax.objective import overlong
from dapo_jax.rewards import answers, reward


def _judge(text, gold='34', *, length_tokens=10):
  return reward.judge(
    text,
    gold,
    length_tokens=length_tokens,
    right=1.0,
    wrong=-1.0,
    no_answer=None,
    overlong=functools.partial(
      overlong.soft_punishment, expected_tokens=16, cache_tokens=4
    ),
  )


class JudgeTest(parameterized.TestCase):
  # DCPO eq. 15: the form is right in the second, though not the answer.
  @parameterized.parameters(
    ('Answer: 34', 1.0), ('Answer: 35', 0.0), ('35', -1.0), ('', -1.0)
  )
  def test_no_answer_may_earn_less_than_a_wrong_one(self, text, expected):
    judgement = reward.judge(
      text,
      '34',
      length_tokens=3,
      right=1.0,
      wrong=0.0,
      no_answer=-1.0,
      overlong=lambda _: 0.0,
    )
    self.assertEqual(judgement.correctness, expected)

  @parameterized.parameters(
    ('Answer: 34', 16, (True, 1.0, 0.0, '34')),
    # Right at the limit earns 0 together, wrong at the limit -2.
    ('Answer: 34', 20, (True, 1.0, -1.0, '34')),
    ('Answer: 35', 20, (False, -1.0, -1.0, '35')),
    ('no idea', 18, (False, -1.0, -0.5, answers.NO_ANSWER)),
    ('', 0, (False, -1.0, 0.0, answers.NO_ANSWER)),
  )
  def test_components_are_apart(self, text, length_tokens, expected):
    self.assertEqual(_judge(text, length_tokens=length_tokens), expected)

  def test_rewards_are_the_callers(self):
    for text, expected in (('Answer: 1', 0.5), ('Answer: 2', 0.0)):
      judgement = reward.judge(
        text,
        '1',
        length_tokens=3,
        right=0.5,
        wrong=0.0,
        no_answer=None,
        overlong=lambda tokens: -0.25 * tokens,
      )
      self.assertEqual(judgement.correctness, expected)
      self.assertEqual(judgement.overlong, -0.75)

  @parameterized.parameters(
    '\x00',
    '\ud800',
    'Answer: \udfff\ud800',
    'Answer: \x00',
    'Answer: \\1 \\g<0> \\',
    'Answer: \\text{\\boxed{$',
    '\u202eAnswer: 3',
    'Answer: ' + '\u0301' * 290,
    'Answer: ²',
    '\r\n' * 1000,
  )
  def test_hostile_text_is_wrong_and_nothing_else(self, text):
    self.assertFalse(_judge(text).correct)

  def test_random_text_never_raises(self):
    rng = random.Random(0)
    pieces = ['Answer:', '$', '\\text{', '\\boxed{', '}', 'frac', '\n', '=']
    for _ in range(2000):
      text = ''.join(
        rng.choice(pieces)
        if rng.random() < 0.4
        # All of Unicode, surrogates included.
        else chr(rng.randrange(0x110000))
        for _ in range(rng.randrange(40))
      )
      # As a response and as a gold answer.
      self.assertIsInstance(_judge(text).correct, bool)
      self.assertIsInstance(_judge('Answer: 1', text).correct, bool)


if __name__ == '__main__':
  absltest.main()

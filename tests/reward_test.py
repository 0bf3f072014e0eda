"""Tests of the reward and its components."""

import functools

from absl.testing import absltest, parameterized

from dapo_jax.objective import overlong
from dapo_jax.rewards import answers, reward, verdicts

_RIGHT = verdicts.Verdict(1.0, True, '34')
_WRONG = verdicts.Verdict(-1.0, False, '35')
_NONE = verdicts.Verdict(-1.0, False, answers.NO_ANSWER)


def _judge(verdict, *, length_tokens=10, right=1.0, wrong=-1.0, no_answer=None):
  return reward.judge(
    verdict,
    length_tokens=length_tokens,
    scale=reward.Scale(right, wrong, no_answer),
    overlong=functools.partial(
      overlong.soft_punishment, expected_tokens=16, cache_tokens=4
    ),
  )


class JudgeTest(parameterized.TestCase):
  @parameterized.parameters(
    (_RIGHT, 16, (True, 1.0, 0.0, 0.0, '34')),
    # Right at the limit earns 0 together, wrong at the limit -2.
    (_RIGHT, 20, (True, 1.0, 0.0, -1.0, '34')),
    (_WRONG, 20, (False, -1.0, 0.0, -1.0, '35')),
    (_NONE, 18, (False, -1.0, 0.0, -0.5, answers.NO_ANSWER)),
    (_NONE, 0, (False, -1.0, 0.0, 0.0, answers.NO_ANSWER)),
  )
  def test_components_are_apart(self, verdict, length_tokens, expected):
    self.assertEqual(_judge(verdict, length_tokens=length_tokens), expected)

  # DCPO eq. 15, (correctness, format): the form is right in the second, though
  # not the answer. Together they are 1, 0 and -1.
  @parameterized.parameters(
    (_RIGHT, (1.0, 0.0)), (_WRONG, (0.0, 0.0)), (_NONE, (0.0, -1.0))
  )
  def test_no_answer_may_cost_more_than_a_wrong_one(self, verdict, expected):
    judgement = _judge(verdict, wrong=0.0, no_answer=-1.0)
    self.assertEqual((judgement.correctness, judgement.format), expected)

  @parameterized.parameters((_RIGHT, 0.5), (_WRONG, 0.25), (_NONE, 0.25))
  def test_the_scale_is_the_callers(self, verdict, expected):
    judgement = _judge(verdict, right=0.5, wrong=0.25)
    self.assertEqual(judgement.correctness, expected)
    self.assertEqual(judgement.format, 0.0)

  def test_without_a_scale_the_score_is_what_is_earned(self):
    judgement = reward.judge(
      verdicts.Verdict(0.3, False, 'half right'),
      length_tokens=3,
      scale=None,
      overlong=lambda tokens: -0.25 * tokens,
    )
    self.assertEqual(judgement, (False, 0.3, 0.0, -0.75, 'half right'))


if __name__ == '__main__':
  absltest.main()

"""Tests of the search for a response's answer."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import answers


class LastAnswerTest(parameterized.TestCase):
  @parameterized.parameters(
    ('Answer: 34', '34'),
    ('answer : 34', '34'),
    ('so\nANSWER:34 \nand so on', '34 '),
    # Below the colon.
    ('Answer:\n\n34', '34'),
    # Within a word.
    ('FinalAnswer: 3', '3'),
    # The last line wins; on one line the first.
    ('Answer: 1\nAnswer: 2', '2'),
    ('Answer: 1 Answer: 2', '1 Answer: 2'),
    # One without content does not hide the one before.
    ('Answer: 1\nAnswer:', '1'),
  )
  def test_found(self, response, expected):
    self.assertEqual(answers.last_answer(response), expected)

  @parameterized.parameters('', 'Answer', 'Answer:', 'Answer:\n\n', '34')
  def test_absent(self, response):
    self.assertEqual(answers.last_answer(response), answers.NO_ANSWER)

  def test_only_the_last_300_characters_are_read(self):
    # 'Answer: 7\n' is 10 characters.
    self.assertEqual(answers.last_answer('Answer: 7\n' + 'z' * 290), '7')
    self.assertEqual(
      answers.last_answer('Answer: 7\n' + 'z' * 291), answers.NO_ANSWER
    )

  def test_answer_is_never_longer_than_the_window(self):
    for response in ('Answer: ' + 'x' * 20_000, 'x' * 20_000 + 'Answer: 1'):
      self.assertLess(
        len(answers.last_answer(response)), answers.WINDOW_CHARACTERS
      )


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.data.instructions`."""

from absl.testing import absltest, parameterized

from dapo_jax.data import instructions, records

_REQUEST = 'Solve this. End with a line Answer: $Answer for the result.'
_REMINDER = 'Put it after "Answer:".'


class TextTest(parameterized.TestCase):
  @parameterized.parameters('1+1=?', 'Two lines.\n\nOf $x$.', 'Answer: what?')
  def test_a_problem_alone_stays_as_it_is(self, problem):
    self.assertEqual(instructions.text(problem), problem)

  @parameterized.parameters('1+1=?', 'Two paragraphs.\n\nSay "Answer:".\n\nx?')
  def test_the_paragraphs_around_a_problem_are_taken_off(self, problem):
    self.assertEqual(
      instructions.text(f'{_REQUEST}\n\n{problem}\n\n{_REMINDER}'), problem
    )

  @parameterized.parameters(f'{_REQUEST}\n\np', f'p\n\n{_REMINDER}', _REQUEST)
  def test_one_of_the_paragraphs_alone_stays(self, prompt):
    self.assertEqual(instructions.text(prompt), prompt)

  @parameterized.parameters(
    (r" Let's think step by step, and box it: \boxed{}.", ''),
    ('\nLet\'s think step by step and end with "####".', ''),
    (" Let's think step by step.", " Let's think step by step."),
  )
  def test_a_last_sentence_that_asks_for_a_form_is_taken_off(self, last, left):
    self.assertEqual(
      instructions.text(f'What is 1+1?{last}'), f'What is 1+1?{left}'
    )


class WithoutTest(absltest.TestCase):
  def test_only_a_system_message_that_asks_for_a_form_is_left_out(self):
    user = records.Message('user', r'Which is the \boxed number?')
    brief = records.Message('system', 'Be brief.')
    boxed = records.Message('system', r'Box the result: \boxed{}.')
    self.assertEqual(instructions.without([boxed, user]), [user])
    self.assertEqual(instructions.without([brief, user]), [brief, user])


if __name__ == '__main__':
  absltest.main()

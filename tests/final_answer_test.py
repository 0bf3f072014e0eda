"""Tests of the search for the answer that a response ends on."""

import time

from absl.testing import absltest, parameterized

from dapo_jax.rewards import answers, final_answer


class FindTest(parameterized.TestCase):
  @parameterized.parameters(
    ('\\boxed{12}, no: \\boxed{15}.', '15'),
    ('\\boxed{\\frac{1}{\\sqrt{2}}}', '\\frac{1}{\\sqrt{2}}'),
    ('\\boxed{\\{1,3\\}}', '\\{1,3\\}'),
    ('\\boxed{\\boxed{42}}', '\\boxed{42}'),
    ('\\boxed {5}', '5'),
    ('\\boxed 5.', '5'),
    ('\\fbox{5}', '5'),
    ('In a \\boxed form: \\boxed{3}, \\boxed as asked.', '3'),
    ('\\boxed{1} \\boxed{2}', '2'),
    ('\\boxed{\n17\n}', '17'),
  )
  def test_last_box(self, response, expected):
    self.assertEqual(final_answer.find(response), expected)

  @parameterized.parameters(
    'no idea',
    '',
    'so x^2 = 16, now',
    '\\boxed{}',
    # Cut off, or empty: the earlier box does not count.
    '\\boxed{7}. That is \\boxed{7',
    '\\boxed{7}. That is \\boxed{}',
    'Answer: 7\nAnswer:',
    'the word \\boxed alone',
    '#### Step 2: add',
    '<think>\\boxed{41}</think> so',
  )
  def test_no_answer(self, response):
    self.assertEqual(final_answer.find(response), answers.NO_ANSWER)

  @parameterized.parameters(
    ('Answer: 17', '17'),
    ('answer : 17', '17'),
    ('**Answer:** 17', '17'),
    ('**Final Answer: 17**', '17'),
    ('Answer：17', '17'),
    ('Answer:\n\n17', '17'),
    ('Answer: **17**.', '17'),
    ('Answer: $17$', '$17$'),
    ('Answer: 1\nAnswer: 2', '2'),
    ('Answer: 17<|im_end|>', '17'),
    ('Answer: 17 </s>\n', '17'),
    ('The answer is: 17', '17'),
    ('### Final Answer\n17', '17'),
    ('Answer: The sum of x is 17.', '17.'),
    ('Answer: 17. We are done', '17'),
    ('Answer: 17. Or 18.', '17. Or 18.'),
    ('Answer: it is not 17', 'it is not 17'),
  )
  def test_line(self, response, expected):
    self.assertEqual(final_answer.find(response), expected)

  @parameterized.parameters(
    ('#### -3', '-3'),
    ('#### 1,234', '1,234'),
    ('#### $18.50', '$18.50'),
    ('<answer>17</answer>', '17'),
    ('So the answer is 72, in total.', '72'),
  )
  def test_other_marks(self, response, expected):
    self.assertEqual(final_answer.find(response), expected)

  @parameterized.parameters(
    ('\\boxed{5}\nAnswer: 6', '6'),
    ('Answer: 6\n\\boxed{5}', '5'),
    ('Answer: \\boxed{5}', '5'),
    ('**Final Answer**\n\\boxed{5}', '5'),
    ('#### 5\nAnswer: 6', '6'),
    ('the answer is 4, so \\boxed{5}', '5'),
    ('<think>\\boxed{41}</think> \\boxed{42}', '42'),
    ('no tags \\boxed{42}', '42'),
  )
  def test_the_mark_that_begins_last_counts(self, response, expected):
    self.assertEqual(final_answer.find(response), expected)

  def test_what_follows_does_not_hide_an_answer(self):
    after = 'The check agrees with the total. ' * 100
    for response in ('Answer: 42\n', '\\boxed{42} ', '#### 42\n'):
      self.assertEqual(final_answer.find(response + after), '42')

  @parameterized.parameters(
    '\\boxed ',
    '\\boxed{',
    'answer ',
    'Answer:',
    '#### 1',
    '.',
    '{',
    '}',
    '<answer>',
    'answer is ',
    '\\',
    ' ',
    '\n',
    '*',
    '#### 1.1.1x\n',
  )
  def test_time_is_linear(self, piece):
    self.assertLess(_growth(piece), 80)

  @parameterized.parameters(
    '*', '"', ' ', '.', '\\\\ ', '}', 'is ', 'a. ', ', a'
  )
  def test_time_within_an_answer_is_linear(self, piece):
    for mark in ('Answer: a', 'The answer is a'):
      self.assertLess(_growth(piece, mark, 'b'), 80, mark)


def _growth(piece, before='', after=''):
  """How many times the time grows when a text grows 16 times."""

  def best_s(characters):
    text = before + (piece * characters)[:characters] + after
    times_s = []
    for _ in range(3):
      start_s = time.perf_counter()
      final_answer.find(text)
      times_s.append(time.perf_counter() - start_s)
    return min(times_s)

  return best_s(80_000) / max(best_s(5_000), 1e-3)


if __name__ == '__main__':
  absltest.main()

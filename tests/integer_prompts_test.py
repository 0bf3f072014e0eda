"""Tests of `dapo_jax.data.integer_prompts`."""

import re
import time

from absl.testing import absltest, parameterized

from dapo_jax.data import integer_answers, integer_prompts

_REPLY = (
  '<format>$k$</format>\n<problem>Find $k$.</problem>\n'
  '<solution>It is 6.</solution>\n<integer>6</integer>'
)


class ProposalTest(parameterized.TestCase):
  @parameterized.parameters(
    _REPLY,
    f'\n{_REPLY}\n',
    f'<think>First <integer>1</integer> ...</think>\n{_REPLY}',
  )
  def test_four_blocks_are_read(self, reply):
    self.assertEqual(
      integer_prompts.proposal(reply),
      integer_prompts.Proposal('$k$', 'Find $k$.', 6),
    )

  @parameterized.parameters(
    '',
    'Sure: ' + _REPLY,
    _REPLY + '\nDone.',
    _REPLY + _REPLY,
    _REPLY.replace('<integer>6', '<integer>6.5'),
    _REPLY.replace('<integer>6', '<integer>k = 6'),
    _REPLY.replace('<integer>6', '<integer>06'),
    _REPLY.replace('<integer>6', '<integer>' + '6' * 16),
    _REPLY.replace('Find $k$.', '  '),
    _REPLY.replace('Find $k$.', 'Find <integer>6</integer>.'),
    _REPLY.replace('<solution>It is 6.</solution>\n', ''),
    _REPLY.replace('format>', 'FORMAT>'),
    _REPLY.replace('Find $k$.', 'Find $k$. <refuse>It.</refuse>'),
    # Half of a character that takes two in JSON.
    _REPLY.replace('Find $k$.', 'Find \ud835.'),
    '<think>' + _REPLY + '</think>',
  )
  def test_anything_else_is_refused(self, reply):
    self.assertEqual(integer_prompts.proposal(reply), 'reply_form')

  def test_a_model_that_repeats_itself_is_refused_at_once(self):
    # To try where each part ends would take minutes.
    middle = '</format><problem>b</problem><solution>c</solution>'
    start = time.monotonic()
    reply = '<format>a' + 1000 * middle
    self.assertEqual(integer_prompts.proposal(reply), 'reply_form')
    self.assertLess(time.monotonic() - start, 5.0)

  def test_the_model_may_decline(self):
    reply = '<refuse>It is a name.</refuse>'
    self.assertEqual(integer_prompts.proposal(reply), 'declined')


class VoteTest(parameterized.TestCase):
  @parameterized.parameters(
    ('So it is <integer>-12</integer>', -12),
    ('<integer>1</integer> no, <integer> 2 </integer>\n', 2),
    ('<integer>1</integer> or so', None),
    ('It is 12.', None),
    ('<integer>1.5</integer>', None),
    ('<think><integer>1</integer></think>', None),
  )
  def test_is_the_integer_at_the_end(self, reply, expected):
    self.assertEqual(integer_prompts.vote(reply), expected)


class PromptTest(absltest.TestCase):
  def test_examples_are_read_as_replies(self):
    prompt = integer_prompts.rewriting('Find $x$.', '$1/2$')
    examples = re.split(r'Example \d\n', prompt.split('Now this one')[0])[1:]
    self.assertLen(examples, 4)
    replies = [text[text.index('\n<') :] for text in examples]
    found = [integer_prompts.proposal(reply) for reply in replies]
    self.assertEqual([f.integer for f in found[:3]], [6, 8, 7])
    self.assertEqual(found[3], 'declined')

  def test_first_example_agrees_with_the_rule(self):
    form, integer = integer_answers.by_rule('', '$3+\\sqrt{2}$')[2:0:-1]
    self.assertIn(f'<format>${form}$', integer_prompts.rewriting('', ''))
    self.assertEqual(integer, 6)

  def test_problem_and_answer_stand_at_the_end(self):
    prompt = integer_prompts.rewriting(' Find {x}. ', '$1/2$')
    self.assertEndsWith(
      prompt, 'Now this one\nProblem: Find {x}.\nAnswer: $1/2$\n'
    )

  def test_a_solver_is_told_nothing_but_the_problem(self):
    prompt = integer_prompts.solving('Find $k$.')
    self.assertEndsWith(prompt, '</integer>.\n\nProblem: Find $k$.\n')
    self.assertNotIn('Answer', prompt)


if __name__ == '__main__':
  absltest.main()

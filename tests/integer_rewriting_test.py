"""Tests of `dapo_jax.data.integer_rewriting`, with models that are scripts."""

from absl.testing import absltest, parameterized

from dapo_jax.data import integer_rewriting

_INTERVAL = ('Solve $x^2 < 4$.', '(-2, 2)')
_SURD = ('How long is it?', '11-2\\sqrt{6}')


def _reply(integer, problem='Which $a + 2b$?', form='$(a, b)$'):
  return (
    f'<format>{form}</format><problem>{problem}</problem>'
    f'<solution>So.</solution><integer>{integer}</integer>'
  )


class _Model:
  """Replies with what it is given; keeps what it was asked."""

  def __init__(self, rewritings, votes=()):
    self.rewritings = iter(rewritings)
    self.votes = iter(votes)
    self.asked = []

  def __call__(self, prompts):
    self.asked.append(prompts)
    return [
      next(self.rewritings) if '<format>' in prompt else self._vote()
      for prompt in prompts
    ]

  def _vote(self):
    vote = next(self.votes)
    return 'no idea' if vote is None else f'<integer>{vote}</integer>'


def _transform(problems, model, votes_count=3):
  return integer_rewriting.transform(problems, model, votes_count=votes_count)


class RuleAppliesTest(parameterized.TestCase):
  def test_same_integer_is_kept_without_a_vote(self):
    model = _Model([_reply(19, 'Find $k + m + n$.', 'k-m√n')])
    [found] = _transform([_SURD], model)
    self.assertEqual(found.rewritten, ('Find $k + m + n$.', 19, 'k-m√n'))
    self.assertLen(model.asked, 1)

  def test_another_integer_is_refused(self):
    # With m = -2 the sum is 11 - 2 + 6.
    [found] = _transform([_SURD], _Model([_reply(15)]))
    self.assertEqual(found, (None, 'disagrees_with_rule'))

  def test_an_integer_is_not_put_to_the_model(self):
    model = _Model([])
    [found] = _transform([('How many?', '42')], model)
    self.assertEqual(found.rewritten, ('How many?', 42, 'unchanged'))
    self.assertEmpty(model.asked)


class MajorityTest(parameterized.TestCase):
  @parameterized.parameters(
    ([2, 2, 2], ''),
    ([2, 5, 2], ''),
    ([None, 2, 2], ''),
    ([2, 5, 7], 'no_majority'),
    ([2, None, None], 'no_majority'),
    ([5, 5, 2], 'disagrees_with_majority'),
    # Half is not more than half.
    ([2, 2, 5, 5], 'no_majority'),
    ([2, 2, 5, None], 'no_majority'),
    ([2], ''),
  )
  def test_more_than_half_must_have_the_integer(self, votes, reason):
    model = _Model([_reply(2)], votes)
    [found] = _transform([_INTERVAL], model, len(votes))
    self.assertEqual(found.reason, reason)
    self.assertEqual(found.rewritten is None, bool(reason))

  def test_votes_are_on_the_rewritten_problem_of_each(self):
    rewritings = [_reply(2, 'First?'), 'nonsense', _reply(3, 'Third?')]
    model = _Model(rewritings, [2, 2, 2, 3, 3, 3])
    found = _transform([_INTERVAL] * 3, model)
    self.assertEqual([f.reason for f in found], ['', 'reply_form', ''])
    solved = model.asked[1]
    self.assertLen(solved, 6)
    for prompt in solved[:3]:
      self.assertEndsWith(prompt, 'Problem: First?\n')
    for prompt in solved[3:]:
      self.assertEndsWith(prompt, 'Problem: Third?\n')


class RefusedTest(parameterized.TestCase):
  @parameterized.parameters(
    ('<refuse>no</refuse>', 'declined'),
    ('It is 2.', 'reply_form'),
    (_reply(2, 'It is $(-2,2)$. Which $a + 2b$?'), 'gives_away'),
  )
  def test_before_any_vote(self, reply, reason):
    model = _Model([reply])
    self.assertEqual(_transform([_INTERVAL], model), [(None, reason)])
    self.assertLen(model.asked, 1)

  @parameterized.parameters(
    '\\frac{11}{35}',
    '\\dfrac{11} {35}',
    '\\left( \\tfrac{11}{35} \\right)',
    'the sum is 46, so give it',
  )
  def test_the_answer_in_another_dress_is_given_away(self, leak):
    problem = ('How long is it?', '$\\frac{11}{35}$')
    model = _Model([_reply(46, f'It is ${leak}$. Find $m + n$.')])
    self.assertEqual(_transform([problem], model), [(None, 'gives_away')])

  def test_a_part_of_a_longer_number_gives_nothing_away(self):
    problem = ('Of 3500, how long is it?', '\\frac{11}{35}')
    model = _Model([_reply(46, 'Of 4600 and $\\frac{11}{350}$, find $m + n$.')])
    self.assertEqual(_transform([problem], model)[0].reason, '')

  def test_a_statement_that_stays_is_not_rewritten(self):
    # Its integer is right, and nobody would be asked for it.
    model = _Model([_reply(19, 'How  long is it?')])
    self.assertEqual(_transform([_SURD], model), [(None, 'not_rewritten')])

  def test_what_the_statement_says_already_is_not_given_away(self):
    problem = ('Is $f(x)$ on (0, 9) negative?', '(0,9)')
    model = _Model([_reply(2, 'On $(0,9)$, which?')], [2, 2, 2])
    self.assertEqual(_transform([problem], model)[0].reason, '')

  def test_no_votes(self):
    with self.assertRaisesRegex(ValueError, r'--k \(0\) must be at least 1'):
      _transform([_INTERVAL], _Model([]), 0)

  def test_too_few_replies(self):
    with self.assertRaisesRegex(ValueError, 'each of 1 prompts, not 0 times'):
      _transform([_INTERVAL], lambda prompts: [])


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.data.problem_sets`."""

from absl.testing import absltest, parameterized

from dapo_jax.data import problem_sets, schemas


def _refusal(name, *, answer='2', level=None):
  problem = schemas.Problem((), answer, '', level, '')
  return problem_sets.refusal(problem, problem_sets.SETS[name], 'f:1')


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(*problem_sets.SETS)
  def test_an_integer_of_level_3_belongs_to_every_set(self, name):
    self.assertEqual(_refusal(name, answer='-12', level=3), '')

  @parameterized.parameters(
    ('aime24', r'\frac12', 'answer no integer'),
    # Digits to Python, but none that a response would have.
    ('aime24', '\u0662\u0665', 'answer no integer'),
    ('dapo_math_17k', '2.5', 'answer no integer'),
    ('math500', r'\frac12', ''),
    ('gsm8k', '2.5', ''),
  )
  def test_which_sets_have_integers_only(self, name, answer, reason):
    self.assertEqual(_refusal(name, answer=answer), reason)

  @parameterized.parameters((2, 'level below 3'), (0, 'level unknown'), (5, ''))
  def test_math_is_from_level_3(self, level, reason):
    self.assertEqual(_refusal('math_levels_3_5', level=level), reason)
    self.assertEqual(_refusal('dcpo_train', level=level), reason)

  def test_only_math_needs_a_level(self):
    self.assertEqual(_refusal('dcpo_train'), '')
    with self.assertRaisesRegex(ValueError, 'f:1: field `level`'):
      _refusal('math_levels_3_5')


class ComparableTest(parameterized.TestCase):
  @parameterized.parameters(
    ('025', '25'),
    (' $-3$ ', '-3'),
    ('25.0', '25'),
    ('-00', '0'),
    ('1/2', '1/2'),
    ('2.50', '2.50'),
    ('$x$', 'x'),
    # More digits than Python makes an integer of.
    ('0' + '9' * 5000, '9' * 5000),
  )
  def test_ways_to_write_an_answer_are_equal(self, answer, expected):
    self.assertEqual(problem_sets.comparable(answer), expected)


if __name__ == '__main__':
  absltest.main()

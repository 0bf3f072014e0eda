"""Tests of `dapo_jax.data.procedural`."""

import re

from absl.testing import absltest, parameterized

from dapo_jax.data import procedural


def _texts(prompts):
  """Returns the problems' texts."""
  return [prompt.messages[0].content for prompt in prompts]


class ArithmeticTest(parameterized.TestCase):
  def test_makes_every_sum_once_in_counting_order(self):
    train, held_out = procedural.arithmetic(
      terms=2, digits=2, held_out_frac=0.0
    )
    self.assertEmpty(held_out)
    self.assertEqual(
      _texts(train), [f'{a}+{b}=?' for a in range(100) for b in range(100)]
    )

  def test_a_prompt_has_answer_and_solution(self):
    train, _ = procedural.arithmetic(terms=2, digits=2, held_out_frac=0.0)
    prompt = train[47 * 100 + 38]
    self.assertEqual(prompt.dataset, 'arithmetic')
    self.assertEqual(prompt.messages, (('user', '47+38=?'),))
    self.assertEqual(prompt.gold, '85')
    self.assertEqual(prompt.solution, 'Answer: 85')

  @parameterized.parameters((3, 1), (2, 1), (4, 1))
  def test_answers_are_the_sums(self, terms, digits):
    train, held_out = procedural.arithmetic(
      terms=terms, digits=digits, held_out_frac=0.2
    )
    self.assertLen(train + held_out, 10 ** (terms * digits))
    for prompt in train + held_out:
      numbers = re.findall(r'\d+', prompt.messages[0].content)
      self.assertLen(numbers, terms)
      self.assertEqual(prompt.gold, str(sum(map(int, numbers))))

  def test_no_problem_is_in_both_lists(self):
    train, held_out = procedural.arithmetic(
      terms=2, digits=2, held_out_frac=0.1
    )
    self.assertEmpty(set(_texts(train)) & set(_texts(held_out)))
    self.assertLen({prompt.id for prompt in train + held_out}, 10_000)
    # Binomial with n = 10,000, p = 0.1: 1000 +- 30; here within 4 of these.
    self.assertBetween(len(held_out), 880, 1120)

  def test_the_split_goes_by_the_hash_of_the_text(self):
    # printf '0+3=?' | sha256sum begins with 19, and 0x19 / 256 = 0.098;
    # printf '0+0=?' | sha256sum begins with b9, and 0xb9 / 256 = 0.723.
    train, held_out = procedural.arithmetic(
      terms=2, digits=1, held_out_frac=0.1
    )
    self.assertIn('0+3=?', _texts(held_out))
    self.assertIn('0+0=?', _texts(train))

  def test_holding_out_more_keeps_what_was_held_out(self):
    _, fewer = procedural.arithmetic(terms=2, digits=2, held_out_frac=0.1)
    _, more = procedural.arithmetic(terms=2, digits=2, held_out_frac=0.3)
    self.assertContainsSubset(_texts(fewer), _texts(more))
    self.assertGreater(len(more), len(fewer))

  def test_is_the_same_every_time(self):
    self.assertEqual(
      procedural.arithmetic(terms=2, digits=1, held_out_frac=0.3),
      procedural.arithmetic(terms=2, digits=1, held_out_frac=0.3),
    )

  def test_chooses_distinct_problems_where_there_are_too_many(self):
    # 10**40 problems: far more than could be enumerated.
    with self._at_most(500):
      train, held_out = procedural.arithmetic(
        terms=2, digits=20, held_out_frac=0.1
      )
      again = procedural.arithmetic(terms=2, digits=20, held_out_frac=0.1)
    self.assertLen(set(_texts(train + held_out)), 500)
    self.assertEqual((train, held_out), again)

  def test_the_choice_is_spread_over_all_problems_in_order(self):
    # 1,000 of the 10,000 sums of 00..99: about 100 begin with each tens digit
    # of the first term, +- 10.
    with self._at_most(1000):
      train, _ = procedural.arithmetic(terms=2, digits=2, held_out_frac=0.0)
    terms = [tuple(map(int, re.findall(r'\d+', t))) for t in _texts(train)]
    self.assertEqual(terms, sorted(terms))
    tens = [first // 10 for first, _ in terms]
    for digit in range(10):
      self.assertBetween(tens.count(digit), 50, 150)

  def _at_most(self, count):
    """Returns a context in which no more than `count` problems are made."""
    return absltest.mock.patch.object(procedural, 'MAX_PROBLEMS_COUNT', count)

  @parameterized.parameters(
    ('terms', 1), ('digits', 0), ('held_out_frac', 1.0), ('held_out_frac', -0.1)
  )
  def test_refuses_what_makes_no_problems(self, name, value):
    arguments = {'terms': 2, 'digits': 2, 'held_out_frac': 0.1, name: value}
    with self.assertRaisesRegex(
      ValueError, rf'got {value}; .*--config\.data\.arithmetic\.{name}'
    ):
      procedural.arithmetic(**arguments)


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.data.procedural`."""

import hashlib
import re

from absl.testing import absltest, parameterized

from dapo_jax.data import procedural


def _texts(prompts):
  """Returns the problems' texts."""
  return [prompt.messages[0].content for prompt in prompts]


def _make(**changes):
  """Returns what `arithmetic` makes of two-digit sums but for the changes."""
  given = {'terms': 2, 'digits': 2, 'held_out_frac': 0.1, 'worked_frac': 1.0}
  given |= {'in_words': False, 'max_per_terms': None} | changes
  return procedural.arithmetic(**({'min_terms': given['terms']} | given))


class ArithmeticTest(parameterized.TestCase):
  def test_makes_every_sum_of_terms_with_so_many_digits_once(self):
    train, held_out = _make(held_out_frac=0.0)
    self.assertEmpty(held_out)
    self.assertCountEqual(
      _texts(train),
      [f'{a}+{b}=?' for a in range(10, 100) for b in range(10, 100)],
    )

  def test_a_prompt_has_answer_and_worked_solution(self):
    train, _ = _make(held_out_frac=0.0)
    [prompt] = [p for p in train if p.messages[0].content == '47+38=?']
    self.assertEqual(prompt.dataset, 'arithmetic')
    self.assertEqual(prompt.messages, (('user', '47+38=?'),))
    self.assertEqual(prompt.gold, '85')
    # 7 + 8 = 15, carry 1; 4 + 3 + 1 = 8.
    self.assertEqual(prompt.solution, '7+8=15\n4+3+1=8\nAnswer: 85')

  def test_in_words_a_problem_is_a_question(self):
    train, held_out = _make(in_words=True)
    self.assertIn('What is 47 + 38?', _texts(train + held_out))

  def test_a_solution_without_working_is_the_answer(self):
    train, _ = _make(worked_frac=0.0)
    for prompt in train:
      self.assertEqual(prompt.solution, f'Answer: {prompt.gold}')

  def test_the_working_ends_in_the_answer(self):
    # The last column's sum stands before the digits of the columns below.
    train, _ = _make(terms=3, digits=1)
    for prompt in train:
      working, answer = prompt.solution.split('\n')
      self.assertEqual(working.split('=')[1], prompt.gold)
      self.assertEqual(answer, f'Answer: {prompt.gold}')

  def test_so_many_solutions_show_their_working(self):
    train, _ = _make(held_out_frac=0.0, worked_frac=0.4)
    worked = sum(p.solution.count('\n') == 2 for p in train)
    self.assertEqual(worked + sum('\n' not in p.solution for p in train), 8100)
    # Binomial with n = 8,100, p = 0.4: 3240 +- 44; here within 4 of these.
    self.assertBetween(worked, 3064, 3416)

  def test_sums_of_several_lengths_stand_together(self):
    train, _ = _make(min_terms=2, terms=3, digits=1, held_out_frac=0.0)
    counts = [text.count('+') for text in _texts(train)]
    # 10 x 10 sums of two terms, 10 x 10 x 10 of three.
    self.assertEqual((counts.count(1), counts.count(2)), (100, 1000))

  def test_so_many_sums_of_each_length_are_chosen(self):
    given = {'min_terms': 2, 'terms': 3, 'digits': 1, 'held_out_frac': 0.25}
    train, held_out = _make(**given, max_per_terms=60)
    for texts, share in ((_texts(train), 45), (_texts(held_out), 15)):
      for plus_count in (1, 2):
        # Binomial with n = 60, p = 0.25 has a deviation of 3.4.
        count = sum(text.count('+') == plus_count for text in texts)
        self.assertBetween(count, share - 10, share + 10)
    texts = _texts(train + held_out)
    self.assertLen(set(texts), 120)
    # Where there are fewer than that, all are there; and more is the same set
    # with others added.
    more, more_held_out = _make(**given, max_per_terms=200)
    self.assertLen(more + more_held_out, 300)
    self.assertContainsSubset(texts, _texts(more + more_held_out))

  @parameterized.parameters((3, 1), (2, 1), (4, 1))
  def test_answers_are_the_sums(self, terms, digits):
    train, held_out = _make(terms=terms, digits=digits, held_out_frac=0.2)
    self.assertLen(train + held_out, 10 ** (terms * digits))
    for prompt in train + held_out:
      numbers = re.findall(r'\d+', prompt.messages[0].content)
      self.assertLen(numbers, terms)
      self.assertEqual(prompt.gold, str(sum(map(int, numbers))))

  def test_no_problem_is_in_both_lists(self):
    train, held_out = _make()
    self.assertEmpty(set(_texts(train)) & set(_texts(held_out)))
    self.assertLen({prompt.id for prompt in train + held_out}, 8100)
    # Binomial with n = 8,100, p = 0.1: 810 +- 27; here within 4 of these.
    self.assertBetween(len(held_out), 702, 918)

  def test_the_split_and_the_order_go_by_the_hash_of_the_text(self):
    # printf '0+3=?' | sha256sum begins with 19, and 0x19 / 256 = 0.098;
    # printf '0+0=?' | sha256sum begins with b9, and 0xb9 / 256 = 0.723.
    train, held_out = _make(digits=1)
    self.assertIn('0+3=?', _texts(held_out))
    self.assertIn('0+0=?', _texts(train))
    hashes = [
      hashlib.sha256(text.encode()).hexdigest()
      for text in _texts(held_out) + _texts(train)
    ]
    self.assertEqual(hashes, sorted(hashes))

  def test_holding_out_more_keeps_what_was_held_out(self):
    _, fewer = _make(held_out_frac=0.1)
    _, more = _make(held_out_frac=0.3)
    self.assertEqual(_texts(fewer), _texts(more)[: len(fewer)])
    self.assertGreater(len(more), len(fewer))

  def test_is_the_same_every_time(self):
    self.assertEqual(_make(digits=1), _make(digits=1))

  def test_chooses_distinct_problems_where_there_are_too_many(self):
    # 81 * 10**38 problems: far more than could be enumerated.
    with self._at_most(500):
      train, held_out = _make(digits=20)
      again = _make(digits=20)
    self.assertLen(set(_texts(train + held_out)), 500)
    self.assertEqual((train, held_out), again)

  def test_the_choice_is_spread_over_all_problems(self):
    # 900 of the 8,100 sums: about 100 begin with each tens digit, +- 10.
    with self._at_most(900):
      train, _ = _make(held_out_frac=0.0)
    tens = [text[0] for text in _texts(train)]
    for digit in '123456789':
      self.assertBetween(tens.count(digit), 50, 150)

  def _at_most(self, count):
    """Returns a context in which no more than `count` problems are made."""
    return absltest.mock.patch.object(procedural, 'MAX_PROBLEMS_COUNT', count)

  @parameterized.parameters(
    ('min_terms', 1),
    ('terms', 1),
    ('digits', 0),
    ('held_out_frac', 1.0),
    ('held_out_frac', -0.1),
    ('worked_frac', 1.5),
  )
  def test_refuses_what_makes_no_problems(self, name, value):
    with self.assertRaisesRegex(
      ValueError, rf'got {value}; .*--config\.data\.arithmetic\.{name}'
    ):
      _make(min_terms=2, **{name: value}) if name != 'min_terms' else _make(
        min_terms=value
      )


if __name__ == '__main__':
  absltest.main()

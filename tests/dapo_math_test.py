"""Tests of DAPO's verdict on an answer."""

import json
import pathlib
import time

from absl.testing import absltest, parameterized

from dapo_jax.rewards import answers, dapo_math

_CASES = json.loads(
  (
    pathlib.Path(__file__).parent / 'data/golden/math_dapo_cases.json'
  ).read_text(encoding='utf-8')
)['cases']


class GoldenTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (f'case_{case["id"]}_{case["category"]}', case) for case in _CASES
  )
  def test_verdict(self, case):
    got = dapo_math.score(case['solution'], case['ground_truth'])
    expected = case['minerva']
    self.assertEqual(
      got, (expected['score'], expected['acc'], expected['pred'])
    )

  @parameterized.named_parameters(
    (f'case_{case["id"]}_{case["category"]}', case)
    for case in _CASES
    # The one that pays an empty box for an empty gold.
    if case['ground_truth']
  )
  def test_strict_verdict(self, case):
    got = dapo_math.score(
      case['solution'], case['ground_truth'], strict_box=True
    )
    expected = case['strict_box']
    extracted = expected['pred']
    if extracted is None:
      extracted = answers.NO_ANSWER
    self.assertEqual(got, (expected['score'], expected['acc'], extracted))

  def test_all_cases_are_there(self):
    self.assertLen(_CASES, 113)


class ScoreTest(parameterized.TestCase):
  @parameterized.parameters(
    'Answer: $34$.',
    'Answer: $34.$',
    'Answer: $\\boxed{34}$',
    'Answer: x = 34',
    'Answer: 34 dollars',
    'Answer: a 34',
    '"Answer:" 34',
    'Answer: 34\\;',
    'Answer: 35\nAnswer: 34',
  )
  def test_pays(self, response):
    self.assertEqual(dapo_math.score(response, '34'), (1.0, True, '34'))

  @parameterized.parameters(
    # The rule's known traps.
    'Answer: 34.',
    '**Answer: 34**',
    '\\boxed{34}',
    'the answer is 34',
    'Answer: 34.0',
    'Answer: 034',
    'Answer: +34',
    'Answer: 34\\%',
    'Answer: \\(34\\)',
    'Answer: 34 because x',
    'Answer: 34 Answer: 34',
    'Answer: 34\nAnswer: 35',
    '',
  )
  def test_does_not_pay(self, response):
    verdict = dapo_math.score(response, '34')
    self.assertEqual(verdict.score, -1.0)
    self.assertFalse(verdict.correct)

  @parameterized.product(
    # Golds that say nothing, the last two after normalisation.
    gold=('', ' ', answers.NO_ANSWER, '$$42$$', 'units'),
    response=(
      '',
      'no idea',
      'Answer:',
      'Answer: ' + answers.NO_ANSWER,
      'Answer: $$17$$',
      'Answer: units',
      'Answer: $$42$$',
    ),
  )
  def test_gold_that_says_nothing_never_pays(self, gold, response):
    verdict = dapo_math.score(response, gold)
    self.assertEqual(verdict.score, -1.0)
    self.assertFalse(verdict.correct)

  def test_no_answer_is_told_from_a_wrong_one(self):
    self.assertEqual(
      dapo_math.score('no idea', '34').extracted, answers.NO_ANSWER
    )
    self.assertEqual(dapo_math.score('Answer: 35', '34').extracted, '35')


class StrictBoxTest(parameterized.TestCase):
  @parameterized.parameters(
    ('\\boxed{34}', '34', True),
    ('\\boxed{33} \\boxed{34}', '34', True),
    ('\\boxed{{34}}', '{34}', True),
    ('\\boxed{034}', '34', False),
    ('\\boxed{ 34}', '34', False),
    ('\\boxed{34', '34', False),
    ('Answer: 34', '34', False),
    # The box begins 100 and 101 characters before the end.
    ('\\boxed{34}' + 90 * '.', '34', True),
    ('\\boxed{34}' + 91 * '.', '34', False),
    # Neither an empty gold nor one that stands for no answer pays.
    ('\\boxed{}', '', False),
    ('no box', answers.NO_ANSWER, False),
    ('\\boxed{' + answers.NO_ANSWER + '}', answers.NO_ANSWER, False),
  )
  def test_only_the_gold_in_the_last_box_pays(self, response, gold, correct):
    verdict = dapo_math.score(response, gold, strict_box=True)
    self.assertEqual(verdict.correct, correct)
    self.assertEqual(verdict.score, 1.0 if correct else -1.0)


class NormalizeTest(parameterized.TestCase):
  @parameterized.parameters(
    # A line keeps what is between its first two dollar signs.
    ('so $3$ or $4$', '3'),
    ('x\n so $3$ or', 'x\n3'),
    # Dollars on two lines are no formula.
    ('1$\n2$', '1\n2'),
    # A command ends at its first brace, on its own line.
    ('\\text{3}}', '3}'),
    ('\\text{3', '\\text{3'),
    ('\\text{3\n}', '\\text{3\n}'),
    # Unclosed, then closed: the first one takes the brace.
    ('\\text{1\\text{2}', '1\\text{2'),
    # \\textbf takes the inner brace, which leaves \\overline the outer one.
    ('\\textbf{\\overline{5}}', '5'),
    # A box ends at the last brace of its line.
    ('\\boxed{{5}6}', '{5}6'),
    ('\\boxed{1}\\boxed{2}', '1}\\boxed{2'),
    ('}\\boxed{1', '}\\boxed{1'),
    # Shorthand, which takes any character but an opening brace.
    ('\\frac12', '\\frac{1}{2}'),
    ('\\frac1{2}', '\\frac{1}{{}2}'),
    ('\\sqrt23', '\\sqrt{2}3'),
    # Commas leave digits only.
    ('1,234', '1234'),
    ('1,234.5', '1,234.5'),
    ('(1,2)', '(1,2)'),
    ('a=b=c', 'c'),
    ('\t7\r', '7'),
  )
  def test_hand_worked(self, answer, expected):
    self.assertEqual(dapo_math.normalize(answer), expected)

  @parameterized.parameters(
    'x',
    '$',
    '\\text{',
    '\\textbf{',
    '\\boxed{',
    '\\text{\\boxed{\\overline{',
    '\\text{}',
    'frac',
    '\\text{1}',
    '\n',
    '1,',
    '=',
    'a ',
  )
  def test_time_is_linear(self, piece):
    # 16 times the text must take about 16 times as long; a pattern that looks
    # ahead from every place takes 256 times.
    short = (piece * 5_000)[:5_000]
    long = (piece * 80_000)[:80_000]

    def best_s(text):
      times_s = []
      for _ in range(3):
        start_s = time.perf_counter()
        dapo_math.normalize(text)
        times_s.append(time.perf_counter() - start_s)
      return min(times_s)

    # A floor of 1 ms keeps timer noise out of the quotient.
    self.assertLess(best_s(long) / max(best_s(short), 1e-3), 80)


class SpeedTest(absltest.TestCase):
  def test_long_responses_cost_no_more_than_their_end(self):
    seen = []

    def normalize(answer):
      seen.append(len(answer))
      return answer

    with absltest.mock.patch.object(dapo_math, 'normalize', normalize):
      dapo_math.score('z' * 200_000 + '\nAnswer: 1', '1')
      dapo_math.score('Answer: ' + '\\text{' * 20_000, '1')
      dapo_math.score('Answer:' * 30_000, '1')
    self.assertLen(seen, 6)
    self.assertLess(max(seen), answers.WINDOW_CHARACTERS)

  def test_scores_in_milliseconds(self):
    responses = (
      'z' * 200_000 + '\nAnswer: 1',
      'Answer: ' + 'z' * 20_000,
      'z' * 200_000,
      ' ' * 200_000,
      'Answer:' + '\n' * 200_000,
    )
    for response in responses:
      times_s = []
      for _ in range(5):
        start_s = time.perf_counter()
        dapo_math.score(response, '1')
        times_s.append(time.perf_counter() - start_s)
      self.assertLess(min(times_s), 0.05)


if __name__ == '__main__':
  absltest.main()

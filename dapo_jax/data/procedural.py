"""Problems made by rule, so that a run needs no download: sums.

Host only.
"""

import collections
import itertools
import random
from collections.abc import Iterable, Sequence

from dapo_jax.data import held_out, records

# Enumerating more than this takes longer than it teaches.
MAX_PROBLEMS_COUNT = 200_000


def arithmetic(
  *,
  min_terms: int,
  terms: int,
  digits: int,
  max_per_terms: int | None,
  in_words: bool,
  held_out_frac: float,
  worked_frac: float,
) -> tuple[list[records.Prompt], list[records.Prompt]]:
  """Returns the sums to train on and those held out, in a fixed order.

  A problem reads `47+38=?`, or `What is 47 + 38?` in words, its answer `85`;
  its solution ends in the line `Answer: 85`, with or without the working
  before it. All sums of terms with so many digits are made; where there would
  be more than 200,000, a fixed pseudo-random choice of 200,000 distinct ones.
  The same arguments give the same lists, always.

  Both lists are ordered by the hash of the problem's text, so that the first
  few are a fair sample; the smallest hashes are held out. So no text is in
  both lists, and a problem that is held out stays so when `held_out_frac`
  grows. `47+38=?` and `38+47=?` are two problems.

  Args:
    min_terms: fewest terms of a sum, at least 2.
    terms: most terms of a sum.
    digits: digits of every term, at least 1.
    max_per_terms: most problems with one number of terms, a fixed
      pseudo-random choice of them; None = all. Of sums of one-digit numbers
      there are 100 with two terms, but 1,000 with three.
    in_words: whether the problems are asked as a person would.
    held_out_frac: share of the problems to hold out, 0 <= frac < 1; met up to
      chance.
    worked_frac: share of the solutions that show their working, 0 to 1; met
      up to chance.

  Raises:
    ValueError: an argument is out of its range.
  """
  _check(min_terms, terms, digits, held_out_frac, worked_frac)
  prompts = [
    _sum(numbers, in_words=in_words, worked_frac=worked_frac)
    for numbers in _problems(range(min_terms, terms + 1), digits)
  ]
  if max_per_terms is not None:
    prompts = _chosen(prompts, max_per_terms)
  return held_out.split(prompts, held_out_frac)


def _check(
  min_terms: int,
  terms: int,
  digits: int,
  held_out_frac: float,
  worked_frac: float,
) -> None:
  """Raises for arguments out of range."""
  if min_terms < 2:
    raise ValueError(
      f'a sum must have at least 2 terms, got {min_terms}; change'
      ' --config.data.arithmetic.min_terms'
    )
  if terms < min_terms:
    raise ValueError(
      f'the most terms must be at least the fewest ({min_terms}), got {terms};'
      ' change --config.data.arithmetic.terms'
    )
  if digits < 1:
    raise ValueError(
      f'a term must have at least 1 digit, got {digits}; change'
      ' --config.data.arithmetic.digits'
    )
  if not 0 <= held_out_frac < 1:
    raise ValueError(
      'the share held out must be at least 0 and less than 1, got'
      f' {held_out_frac}; change --config.data.arithmetic.held_out_frac'
    )
  if not 0 <= worked_frac <= 1:
    raise ValueError(
      'the share of worked solutions must be from 0 to 1, got'
      f' {worked_frac}; change --config.data.arithmetic.worked_frac'
    )


def _problems(terms: Sequence[int], digits: int) -> Iterable[tuple[int, ...]]:
  """Returns the terms of every problem, in no order."""
  limit = 10**digits
  first = limit // 10 if digits > 1 else 0
  if sum((limit - first) ** n for n in terms) <= MAX_PROBLEMS_COUNT:
    every = [itertools.product(range(first, limit), repeat=n) for n in terms]
    return itertools.chain(*every)
  source = random.Random(0)
  drawn = set()
  while len(drawn) < MAX_PROBLEMS_COUNT:
    count = source.choice(terms)
    drawn.add(tuple(source.randrange(first, limit) for _ in range(count)))
  return drawn


def _chosen(
  prompts: Iterable[records.Prompt], max_per_terms: int
) -> list[records.Prompt]:
  """Returns so many problems of each number of terms.

  The hash that chooses is not the one that holds out, or all that are chosen
  would be held out.
  """
  counts = collections.Counter()
  chosen = []
  for prompt in sorted(
    prompts, key=lambda p: held_out.hash_frac('choice of ' + p.id)
  ):
    terms_count = prompt.messages[0].content.count('+') + 1
    counts[terms_count] += 1
    if counts[terms_count] <= max_per_terms:
      chosen.append(prompt)
  return chosen


def _sum(
  numbers: tuple[int, ...], *, in_words: bool, worked_frac: float
) -> records.Prompt:
  """Returns the problem of adding the numbers."""
  terms = [str(n) for n in numbers]
  problem = (
    f'What is {" + ".join(terms)}?' if in_words else '+'.join(terms) + '=?'
  )
  gold = str(sum(numbers))
  is_worked = held_out.hash_frac('working of ' + problem) < worked_frac
  working = _working(numbers) if is_worked else ''
  return records.make_prompt(
    'arithmetic',
    [records.Message('user', problem)],
    gold,
    solution=f'{working}Answer: {gold}',
  )


def _working(numbers: tuple[int, ...]) -> str:
  """Returns the sum worked column by column, units first, a line each.

  47+38 gives `7+8=15` and `4+3+1=8`: the digits of the column, then the
  carry where there is one.
  """
  columns = len(str(max(numbers)))
  carry, lines = 0, []
  for column in range(columns):
    digits = [n // 10**column % 10 for n in numbers]
    parts = digits + [carry] * (carry > 0)
    lines.append('+'.join(map(str, parts)) + f'={sum(parts)}\n')
    carry = sum(parts) // 10
  return ''.join(lines)

"""Measures how many verdicts a second the graders give, and their import.

    python bench/verdicts.py [--problems=FILE] [--pairs=8192] [--reps=5]

Three numbers, each the median of the repetitions: the import of all of
`dapo_jax.rewards` in a new interpreter; integers, as AIME's answers are; and a
mix of answers. All are graded as in a run, by the grader `equivalence` in four
threads, which hand what plain Python leaves undecided to worker processes. One
half of the mix, or as many as there are, are a problem's own answer in one of
several spellings, the others another problem's. No pair is there twice. Every
repetition has new workers, which have imported SymPy before the clock starts.
"""

import argparse
import contextlib
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time
from concurrent import futures
from typing import NamedTuple

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from dapo_jax.data import records  # noqa: E402
from dapo_jax.rewards import (  # noqa: E402
  final_answer,
  graders,
  verifier_pools,
)

# Those of `rollout.grading`.
_THREADS = 4

# What stands before an answer; a model's response is longer, and the search
# for its answer takes its part of the time.
_WORK = 'We add what is left, and see that 3 + 4 = 7 holds. ' * 10
_FORMS = ('{}\nAnswer: {}', '{}\n\nSo it is $\\boxed{{{}}}$.')
_SPELLINGS = (
  *(
    '{}',
    '{} ',
    ' {}',
    '{}.',
    '${}$',
    '\\({}\\)',
    '{{{}}}',
    '\\left.{}\\right.',
  ),
  *('\\displaystyle {}', '\\boxed{{{}}}', '= {}', '{}\\,', '{}\\quad', '{},'),
  *('({})\\cdot 1', '\\frac{{2({})}}{{2}}', '({})+0', '1\\cdot({})', '0+({})'),
)
_FRACTIONS = ('\\frac', '\\dfrac', '\\tfrac')
_IMPORT = """
import importlib, pathlib, sys, time
start_s = time.perf_counter()
for path in sorted(pathlib.Path('dapo_jax/rewards').glob('*.py')):
  if path.stem == 'tasks':  # loads reasoning-gym, for worker processes
    continue
  name = path.stem.replace('__init__', '')
  importlib.import_module(f'dapo_jax.rewards.{name}'.rstrip('.'))
print(time.perf_counter() - start_s, 'sympy' in sys.modules)
"""


class Pair(NamedTuple):
  """A response and the gold answer it is judged by."""

  response: str
  gold: str


class Batch(NamedTuple):
  """What the verdicts on a batch took."""

  seconds: float
  right: int
  without: int  # a verdict


def answers(path: pathlib.Path) -> list[str]:
  """Returns the answers of a file: JSON lines with `answer`, or JSON lists."""
  text = path.read_text(encoding='utf-8')
  if path.suffix == '.json':
    found = itertools.chain.from_iterable(json.loads(text).values())
  else:
    found = (json.loads(line)['answer'] for line in text.splitlines())
  return sorted(set(found))


def integers(count: int) -> list[Pair]:
  """Returns pairs of integers of up to four digits, half of them right."""
  return [
    Pair(_FORMS[i % 2].format(_WORK, i), str(i + i // 2 % 2))
    for i in range(count)
  ]


def mixture(golds: list[str], count: int, rng: random.Random) -> list[Pair]:
  """Returns pairs of a gold answer and itself respelled, or another one.

  No two have the same answer and gold once they are found in the response.
  """
  pairs: dict[tuple[str, str], Pair] = {}
  for i in itertools.count():
    if len(pairs) == count:
      return list(pairs.values())
    if i == 100 * count:
      sys.exit(f'{len(golds)} answers are too few for --pairs={count}')
    gold, other = rng.sample(golds, 2)
    written = gold if i % 2 else other
    written = written.replace('\\frac', rng.choice(_FRACTIONS))
    answer = rng.choice(_SPELLINGS).format(written)
    response = rng.choice(_FORMS).format(_WORK, answer)
    pair = Pair(response, gold)
    pairs.setdefault((final_answer.find(response), gold), pair)


def import_s() -> float:
  """Returns how long a new interpreter takes for the import, [s]."""
  done = subprocess.run(
    [sys.executable, '-c', _IMPORT], cwd=_ROOT, capture_output=True, text=True
  )
  seconds, sympy = done.stdout.split()
  if sympy != 'False':
    sys.exit('the import brings SymPy')
  return float(seconds)


def graded(pairs: list[Pair], *, processes: int) -> Batch:
  """Returns what the verdicts on a batch take."""
  limits = verifier_pools.Limits(processes, limit_s=5.0, memory_gib=1.0)
  grader = graders.make('equivalence', limits)
  grade = lambda pair: grader.grade(pair.response, _prompt(pair.gold)).correct
  with (
    contextlib.closing(grader),
    futures.ThreadPoolExecutor(_THREADS) as threads,
  ):
    # So many that no process is left out.
    roots = [f'\\boxed{{\\sqrt{{{i}}}}}' for i in range(99 * processes)]
    list(threads.map(grade, [Pair(root, 'x') for root in roots]))
    start_s = time.perf_counter()
    right = sum(threads.map(grade, pairs))
    return Batch(time.perf_counter() - start_s, right, sum(grader.counts()))


def _prompt(gold: str) -> records.Prompt:
  message = records.Message('user', 'What is the value that is asked for?')
  return records.Prompt('', '', (message,), gold, '')


def main() -> None:
  """Prints a line for each number."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument(
    '--problems',
    type=pathlib.Path,
    default=_ROOT / 'tests' / 'data' / 'golds.json',
    help='JSON lines with `answer` (tests/data/golds.json)',
  )
  parser.add_argument('--pairs', type=int, default=8192, help='(8192)')
  parser.add_argument('--reps', type=int, default=5, help='(5)')
  parser.add_argument('--processes', type=int, default=2, help='workers (2)')
  args = parser.parse_args()
  golds, reps = answers(args.problems), range(args.reps)
  print(f'import    {statistics.median(import_s() for _ in reps):10.3f} s')
  for name, batches in (
    ('integers', [integers(args.pairs) for _ in reps]),
    ('mix', [mixture(golds, args.pairs, random.Random(rep)) for rep in reps]),
  ):
    found = sorted(graded(b, processes=args.processes) for b in batches)
    batch = found[len(found) // 2]
    print(
      f'{name:9} {args.pairs / batch.seconds:10,.0f} verdicts/s; of '
      f'{args.pairs:,} pairs {batch.right:,} are right, {batch.without:,} have '
      'no verdict'
    )


if __name__ == '__main__':
  main()

"""Makes a data set of the papers from files that the user names.

Host only. Behind `dapo-jax data build`: every problem once, its text alone.
"""

import collections
import difflib
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dapo_jax.data import (
  output_files,
  problem_sets,
  records,
  row_files,
  schemas,
  tfds_folder,
)

# Of a list in an error message.
_LISTED = 5


class Merged(NamedTuple):
  """What is kept of the rows, and how many are not.

  read_count = duplicates_count + conflicting_count + those dropped by reason
  + problems kept.
  """

  problems: list[schemas.Problem]
  read_count: int
  duplicates_count: int
  # Rows of problems whose rows disagree on the answer, and those problems:
  # each answer with the first row that has it.
  conflicting_count: int
  conflicts: list[str]
  dropped_counts: dict[str, int]


def run(
  name: str,
  sources: Sequence[str],
  out: str,
  *,
  conflicts: str = 'error',
) -> None:
  """Writes a data set to OUT/NAME and prints what became of the rows.

  Args:
    name: one of `problem_sets.SETS`.
    sources: files or TFDS folders; of two rows with a problem, the one of the
      earlier file is kept.
    out: a folder, which is made if need be.
    conflicts: what to do with a problem whose rows have different answers:
      'error', or 'drop' all of them.

  Raises:
    ValueError: a file or a row cannot be read, answers conflict, nothing is
      left, or the data set is there already.
  """
  problem_set = _problem_set(name)
  folder = pathlib.Path(out)
  target = tfds_folder.path(folder, name)
  output_files.check_free(target)
  merged = merge(_rows(sources), problem_set)
  if merged.conflicts and conflicts == 'error':
    raise ValueError(_conflict_error(merged.conflicts))
  if not merged.problems:
    raise ValueError(
      f'no problem of {name} is left of {merged.read_count} rows '
      f'({_reasons(merged)}); change --from'
    )
  rows = [_stored(problem, name) for problem in merged.problems]
  try:
    tfds_folder.write(
      rows, folder, name=name, description=problem_set.description
    )
  except OSError as error:
    raise ValueError(
      f'{target} cannot be written: {error}; change --out'
    ) from error
  print(report(merged, name, problem_set, files_count=len(sources)))
  print(f'wrote {target}, for --config.data.source or --config.eval.source')


def merge(
  rows: Iterable[tuple[str, schemas.Problem]],
  problem_set: problem_sets.ProblemSet,
) -> Merged:
  """Returns each problem once, the first of its rows, in their order.

  Problems are the same if their conversations are, spaces aside. Where all
  answers are integers, they are written without zeros in front.

  Args:
    rows: places and problems.
    problem_set: which of them belong.
  """
  # By problem, the rows by answer: place and problem of the first.
  firsts: dict[Any, dict[str, tuple[str, schemas.Problem]]] = {}
  counts, dropped = collections.Counter(), collections.Counter()
  for where, problem in rows:
    reason = problem_sets.refusal(problem, problem_set, where)
    if reason:
      dropped[reason] += 1
      continue
    key = tuple((m.role, ' '.join(m.content.split())) for m in problem.messages)
    counts[key] += 1
    answer = problem_sets.comparable(problem.answer)
    if problem_set.integer_answers:
      # The papers' scorer compares texts: to it 25 is no 025.
      problem = problem._replace(answer=answer)
    firsts.setdefault(key, {}).setdefault(answer, (where, problem))
  clear = [key for key, answers in firsts.items() if len(answers) == 1]
  conflicting = [key for key, answers in firsts.items() if len(answers) > 1]
  return Merged(
    problems=[p for key in clear for _, p in firsts[key].values()],
    read_count=counts.total() + dropped.total(),
    duplicates_count=sum(counts[key] - 1 for key in clear),
    conflicting_count=sum(counts[key] for key in conflicting),
    conflicts=[_conflict(firsts[key]) for key in conflicting],
    dropped_counts=dict(sorted(dropped.items())),
  )


def report(
  merged: Merged,
  name: str,
  problem_set: problem_sets.ProblemSet,
  *,
  files_count: int,
) -> str:
  """Returns what became of the rows, one count a line."""
  kept_count = len(merged.problems)
  lines = [
    f'{name}: {problem_set.description}',
    f'{merged.read_count:>9} rows read from {files_count} file'
    + ('s' if files_count > 1 else ''),
    f'{merged.duplicates_count:>9} dropped: duplicates',
    f'{merged.conflicting_count:>9} dropped: conflicting answers',
    *(f'{n:>9} dropped: {r}' for r, n in merged.dropped_counts.items()),
    f'{kept_count:>9} problems kept',
  ]
  published = problem_set.published_count
  if published is not None and published != kept_count:
    lines.append(f'{published:>9} problems are in it as published')
  return '\n'.join([*lines, *(f'conflict: {c}' for c in merged.conflicts)])


def _problem_set(name: str) -> problem_sets.ProblemSet:
  if name not in problem_sets.SETS:
    near = difflib.get_close_matches(name, problem_sets.SETS, n=1)
    raise ValueError(
      f'there is no data set {name!r}'
      + (f', did you mean {near[0]}?' if near else '')
      + f'; there are {", ".join(problem_sets.SETS)}'
    )
  return problem_sets.SETS[name]


def _rows(sources: Sequence[str]) -> Iterable[tuple[str, schemas.Problem]]:
  """Yields place and problem of every row."""
  for source in sources:
    path = pathlib.Path(source)
    default = row_files.dataset_name(path, flags='--from')
    for where, row in row_files.rows(path, flags='--from'):
      problem = schemas.read(row, where)
      yield where, problem._replace(source=problem.source or default)


def _stored(problem: schemas.Problem, name: str) -> dict[str, Any]:
  """Returns a problem as it is written; `load` gives it the same id."""
  asked = [m.content for m in problem.messages if m.role == 'user']
  is_plain = len(problem.messages) == len(asked) == 1
  return {
    'id': records.prompt_id(name, problem.messages, problem.answer),
    'problem': asked[-1] if asked else '',
    'messages': [] if is_plain else [m._asdict() for m in problem.messages],
    'answer': problem.answer,
    'solution': problem.solution,
    'source': problem.source,
  }


def _conflict(answers: dict[str, tuple[str, schemas.Problem]]) -> str:
  return ', '.join(f'{p.answer} ({where})' for where, p in answers.values())


def _conflict_error(conflicts: Sequence[str]) -> str:
  rest = len(conflicts) - _LISTED
  return (
    f'a problem must have one answer, {len(conflicts)} have several: '
    + '; '.join(conflicts[:_LISTED])
    + (f'; and {rest} more' if rest > 0 else '')
    + '; correct --from, or drop them with --conflicts=drop'
  )


def _reasons(merged: Merged) -> str:
  reasons = dict(merged.dropped_counts)
  if merged.conflicting_count:
    reasons['conflicting answers'] = merged.conflicting_count
  return ', '.join(f'{n} {r}' for r, n in reasons.items()) or 'it is empty'

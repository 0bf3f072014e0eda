"""A file of problems made one of problems with integer answers.

Host only. The file is any that `row_files` reads; JSON Lines are written. What
is refused goes into a file of its own, with the same fields and a reason, so
that it can be given to another model.
"""

import collections
import functools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging

from dapo_jax.data import (
  integer_answers,
  integer_rewriting,
  openai_client,
  output_files,
  records,
  refusals,
  row_files,
  sources,
)

# Problems that a model is given at a time: if it fails, the others are kept.
_CHUNK_PROBLEMS = 64
# Where the schemas other than ours have what our fields say.
_REPLACED = frozenset(['prompt', 'question', 'reward_model'])


class _Row(NamedTuple):
  """A row of the file, and the problem that it is."""

  fields: Mapping[str, Any]
  prompt: records.Prompt

  @property
  def is_question(self) -> bool:
    """Whether the last message is the user's."""
    return self.prompt.messages[-1].role == 'user'

  @property
  def statement(self) -> str:
    """The last message, to which a sentence can be appended."""
    return self.prompt.messages[-1].content

  @property
  def answer(self) -> str:
    """The answer as the data has it."""
    return self.prompt.gold


class _Result(NamedTuple):
  """What became of a row, and by what: 'rule' or 'model'."""

  outcome: integer_rewriting.Outcome
  by: str

  @property
  def is_kept(self) -> bool:
    """Whether there is a problem with an integer answer."""
    return self.outcome.rewritten is not None


def endpoint_model(
  url: str, name: str, *, key_env: str, temperature: float, max_tokens: int
) -> integer_rewriting.Complete | None:
  """Returns the model behind an endpoint; None where neither is given.

  Raises:
    ValueError: only one of the address and the name is given.
  """
  if not url and not name:
    return None
  if not url or not name:
    raise ValueError('give both --endpoint=URL and --model=NAME, or neither')
  endpoint = openai_client.Endpoint(
    url, name, key_env, temperature=temperature, max_tokens=max_tokens
  )
  return functools.partial(openai_client.complete, endpoint)


def run(
  source: str | os.PathLike[str],
  out: str | os.PathLike[str],
  *,
  model: integer_rewriting.Complete | None = None,
  votes_count: int = 5,
  ask: str = 'refused',
) -> None:
  """Writes OUT and OUT.refused.jsonl, and prints how many rows are in them.

  A row of OUT has the statement that asks for an integer, the integer as
  `answer`, and besides `original_answer`, `integer_form` and `integer_by`
  ('rule' or 'model'). A `solution` that leads to another answer is renamed
  `original_solution`. The other fields stay, those of other schemas aside. A
  refused row says in `refused_for` why. Each file is complete or absent.

  Args:
    source: the problems, a file or a data set's folder.
    out: the file to write; must not exist yet.
    model: a language model for what the rule refuses; None = without one.
    votes_count: solutions of each problem that it rewrote.
    ask: what the model is asked: 'refused', or 'all' for what the rule can do
      as well, which then checks the model.

  Raises:
    ValueError: a file is not there, exists already or holds no problem, or the
      model fails before it has answered once.
  """
  source, out = pathlib.Path(source), pathlib.Path(out)
  refused_out = out.with_name(f'{out.name}.refused.jsonl')
  for path in (out, refused_out):
    output_files.check_free(path)
  rows = [
    _Row(fields, sources.to_prompt(fields, where, dataset=''))
    for where, fields in row_files.rows(source, flags='--from')
  ]
  if not rows:
    raise ValueError(f'{source} holds no problem; change --from')
  results = _by_rule(rows)
  if model is not None:
    asked = _asked(rows, results, ask)
    results = _by_model(rows, results, asked, model, votes_count)
  out.parent.mkdir(parents=True, exist_ok=True)
  pairs = list(zip(rows, results, strict=True))
  _write(refused_out, [_refused(*p) for p in pairs if not p[1].is_kept])
  _write(out, [_kept(*p) for p in pairs if p[1].is_kept])
  print(_report(results))
  print(f'wrote {out} and {refused_out.name}')


def _by_rule(rows: Sequence[_Row]) -> list[_Result]:
  """Returns what the rule makes of each row."""
  no_question = integer_rewriting.Outcome(None, 'no_question')
  return [
    _Result(
      integer_rewriting.by_rule(row.statement, row.answer)
      if row.is_question
      else no_question,
      'rule',
    )
    for row in rows
  ]


def _asked(
  rows: Sequence[_Row], ruled: Sequence[_Result], ask: str
) -> list[int]:
  """Returns the places of the rows that are put to the model."""
  return [
    index
    for index, (row, result) in enumerate(zip(rows, ruled, strict=True))
    if row.is_question
    and (not result.is_kept or ask == 'all')
    and not integer_rewriting.is_unchanged(result.outcome)
  ]


def _by_model(
  rows: Sequence[_Row],
  ruled: Sequence[_Result],
  asked: Sequence[int],
  complete: integer_rewriting.Complete,
  votes_count: int,
) -> list[_Result]:
  """Returns the results with those of a model where it is asked."""
  results = list(ruled)
  for start in range(0, len(asked), _CHUNK_PROBLEMS):
    chunk = asked[start : start + _CHUNK_PROBLEMS]
    problems = [(rows[index].statement, rows[index].answer) for index in chunk]
    try:
      outcomes = integer_rewriting.transform(
        problems, complete, votes_count=votes_count
      )
    except (openai_client.EndpointError, KeyboardInterrupt) as error:
      if not start:
        raise
      logging.error(
        '%s; the model is not asked for the rows that are left',
        str(error) or 'interrupted',
      )
      return _without_model(results, asked[start:])
    for index, outcome in zip(chunk, outcomes, strict=True):
      results[index] = _Result(outcome, 'model')
  return results


def _without_model(
  results: Sequence[_Result], unasked: Sequence[int]
) -> list[_Result]:
  """Returns the results where some rows were not put to the model."""
  failed = _Result(
    integer_rewriting.Outcome(None, 'endpoint_failed'), by='model'
  )
  left = set(unasked)
  return [
    failed if index in left and not result.is_kept else result
    for index, result in enumerate(results)
  ]


def _refused(row: _Row, result: _Result) -> dict[str, Any]:
  """Returns the line of a refused row."""
  return {**row.fields, 'refused_for': result.outcome.reason}


def _kept(row: _Row, result: _Result) -> dict[str, Any]:
  """Returns the line of a row with an integer answer."""
  found = result.outcome.rewritten
  fields = {
    name: value
    for name, value in row.fields.items()
    if name not in _REPLACED and value is not None
  }
  *before, last = row.prompt.messages
  if 'messages' in fields:  # whose turns may have more than role and content
    turn = {**fields['messages'][-1], 'content': found.statement}
    fields['messages'] = [*fields['messages'][:-1], turn]
  elif before:
    turns = [*before, last._replace(content=found.statement)]
    fields['messages'] = [turn._asdict() for turn in turns]
  else:
    fields['problem'] = found.statement
  fields['answer'] = found.integer
  fields.pop('solution', None)
  if row.prompt.solution:
    is_changed = found.form != integer_answers.UNCHANGED
    name = 'original_solution' if is_changed else 'solution'
    fields[name] = row.prompt.solution
  fields.pop('refused_for', None)  # of an earlier refusal
  fields.setdefault('original_answer', row.answer)
  fields.setdefault('integer_form', found.form)
  fields.setdefault('integer_by', result.by)
  return fields


def _write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> None:
  """Writes JSON Lines; the file is complete or absent."""
  half = path.with_name(f'{path.name}.half')
  with half.open('w', encoding='utf-8', newline='\n') as stream:
    for row in rows:
      # A parquet file may have dates.
      stream.write(json.dumps(row, ensure_ascii=False, default=str) + '\n')
  half.replace(path)


def _report(results: Sequence[_Result]) -> str:
  """Returns how many rows were kept, by what, and refused, for what."""
  kept, refused = collections.Counter(), collections.Counter()
  for result in results:
    if not result.is_kept:
      refused[result.outcome.reason] += 1
    elif integer_rewriting.is_unchanged(result.outcome):
      kept['unchanged'] += 1
    else:
      kept[result.by] += 1
  lines = [
    f'{len(results)} rows: {kept.total()} kept ({kept["unchanged"]} unchanged,'
    f' {kept["rule"]} by the rule, {kept["model"]} by the model),'
    f' {refused.total()} refused'
  ]
  lines += [
    f'{count:6} {reason}: {refusals.REASONS[reason]}'
    for reason, count in sorted(refused.items(), key=lambda i: (-i[1], i[0]))
  ]
  return '\n'.join(lines)

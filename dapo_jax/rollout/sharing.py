"""The groups of a round, known to every process.

Each process samples and grades its share of the draws. Then all exchange
lengths and verdicts, in arrays of one size, and go on with the same groups:
those of another process have everything that decisions and weights are made
of, but neither tokens nor texts.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dapo_jax.data import records
from dapo_jax.parallel import job as job_lib
from dapo_jax.rewards import answers
from dapo_jax.rollout import grading
from dapo_jax.rollout import shares as shares_lib

# What every process is told of a response.
_TOLD = np.dtype(
  [
    ('length_tokens', '<i4'),
    ('finish', 'u1'),
    ('correct', '?'),
    ('answered', '?'),
    ('correctness', '<f8'),
    ('format', '<f8'),
    ('overlong', '<f8'),
  ]
)
# Those of them that are fields of a group, too.
_ALSO_OF_GROUPS = ('correct', 'correctness', 'format', 'overlong')
_FINISHES = ('eos', 'stop', 'length')
# How a process comes to the exchange, the gravest last.
_WHOLE, _STOPPED, _FAILED = range(3)

# Gives the judged groups of draws.
Collect = Callable[[Sequence[records.Draw]], list[records.Group]]


class StoppedError(Exception):
  """The run was asked to stop while it sampled."""


class OtherFailedError(ValueError):
  """Another process could not judge its groups; it says why."""


# What ends a run between two steps by no fault of its state.
ERRORS = (OtherFailedError, *grading.ERRORS)


def everywhere(
  draws: Sequence[records.Draw],
  collect: Collect,
  *,
  shares: shares_lib.Shares,
  samples_per_prompt: int,
  encode: Callable[[records.Prompt], np.ndarray],
  what: str,
) -> list[records.Group]:
  """Returns the groups of all draws, in their order.

  Every process comes to the exchange, however its share went, so that none
  waits for one that will not come.

  Args:
    draws: those of the round, the same in every process.
    collect: samples the draws it is given, and gives the judged groups of
      those that this process owns.
    shares: whose draws are whose.
    samples_per_prompt: G.
    encode: gives a prompt's token ids.
    what: names the round for those that wait.

  Raises:
    OtherFailedError: judging failed in another process.
    StoppedError: the run was asked to stop, here or elsewhere.
    JudgeError, MissingVerdictsError: see `grading`.
  """
  job = shares.job
  if job.count == 1:
    return collect(draws)
  job.doing(f'its share of {what}')
  groups, failure, status = [], None, _WHOLE
  try:
    groups = collect([d for d in draws if shares.is_sampled_here(d.ordinal)])
  except StoppedError as error:
    failure, status = error, _STOPPED
  except grading.ERRORS as error:
    failure, status = error, _FAILED
  _raise_if_any(job, failure, status, what=what)
  told = np.zeros((-(-len(draws) // job.count), samples_per_prompt), _TOLD)
  for row, group in zip(told, groups, strict=False):
    row[:] = _told(group)
  return _joined(
    draws,
    groups,
    job.gather(told, what=what),
    owner=shares.owner,
    encode=encode,
  )


def whole_rows(
  rows: Sequence[dict[str, Any]], shares: shares_lib.Shares
) -> list[dict[str, Any]]:
  """Returns rows about responses, each as its owner has it; [] if not first.

  Args:
    rows: of the same responses in every process, with the `ordinal` of the
      draw; they are whole where the process owns it.
    shares: whose draws are whose.
  """
  job = shares.job
  if job.count == 1:
    return list(rows)
  own = {i: r for i, r in enumerate(rows) if shares.is_own(r['ordinal'])}
  told = job.to_first(json.dumps(own).encode(), what='the samples of the step')
  whole = {int(i): row for t in told for i, row in json.loads(t).items()}
  return [whole[i] for i in sorted(whole)]


def _raise_if_any(
  job: job_lib.Job, failure: Exception | None, status: int, *, what: str
) -> None:
  """Raises in every process where some process could not go on."""
  statuses = job.gather(np.array([status], np.uint8), what=what)[:, 0]
  if statuses.max() == _WHOLE:
    return
  if statuses.max() == _FAILED:
    text = '' if failure is None else f'{type(failure).__name__}: {failure}'
    texts = job.to_first(text.encode(), what=what)
    index = int(np.argmax(statuses))
    if status != _FAILED:
      said = texts[index].decode() if job.is_first else 'see its message'
      raise OtherFailedError(f'process {index} failed in {what}: {said}')
  raise failure or StoppedError


def _told(group: records.Group) -> Any:
  """Returns what the others are told of a group, [G]."""
  found = np.zeros(len(group.responses), _TOLD)
  found['length_tokens'] = records.lengths_tokens(group)
  found['finish'] = [_FINISHES.index(r.finish) for r in group.responses]
  found['answered'] = [a != answers.NO_ANSWER for a in group.extracted]
  for field in _ALSO_OF_GROUPS:
    found[field] = getattr(group, field)
  return found


def _joined(
  draws: Sequence[records.Draw],
  own: Sequence[records.Group],
  told: Any,
  *,
  owner: Callable[[int], int],
  encode: Callable[[records.Prompt], np.ndarray],
) -> list[records.Group]:
  """Returns our own groups and what is told of the others', by draw."""
  whole = {group.draw.ordinal: group for group in own}
  rows = [iter(of_process) for of_process in told]
  found = []
  for draw in draws:
    # A process tells of its draws in their order.
    row = next(rows[owner(draw.ordinal)])
    found.append(
      whole.get(draw.ordinal) or _of_another(draw, encode(draw.prompt), row)
    )
  return found


def _of_another(
  draw: records.Draw, prompt_tokens: np.ndarray, told: Any
) -> records.Group:
  """Returns the group that another process has, as far as we are told."""
  return records.Group(
    draw=draw,
    prompt_tokens=prompt_tokens,
    responses=tuple(
      records.elsewhere(int(t['length_tokens']), _FINISHES[t['finish']])
      for t in told
    ),
    extracted=tuple('' if t['answered'] else answers.NO_ANSWER for t in told),
    **{field: told[field].copy() for field in _ALSO_OF_GROUPS},
  )

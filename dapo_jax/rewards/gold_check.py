"""Grades every gold answer against itself, before a run depends on it.

Host only. A prompt whose own answer is refused pays nobody: it can only be
drawn in vain, and its group is always all wrong.
"""

import json
import pathlib
from collections.abc import Sequence

from absl import logging

from dapo_jax.data import records
from dapo_jax.rewards import graders

# Prompts that a message names.
_NAMED_COUNT = 5


def refused_forms(
  prompt: records.Prompt, grader: graders.Grader
) -> tuple[str, ...]:
  """Returns the forms in which the gold answer itself is not right."""
  return tuple(
    form
    for form in grader.forms
    if not grader.grade(form.format(prompt.gold), prompt).correct
  )


def winnable(
  prompts: Sequence[records.Prompt],
  grader: graders.Grader,
  *,
  keep: bool,
  listing: pathlib.Path,
) -> list[records.Prompt]:
  """Returns the prompts whose gold answer is right in one form at least.

  The others are logged, and listed in a file; so are those whose gold is
  refused in one of two forms. A grader of the user's is not asked: what it
  pays need not be the gold answer.

  Args:
    prompts: at least one.
    grader: how responses will be graded.
    keep: return the others too.
    listing: file for them, JSON Lines; removed where there is none.

  Raises:
    ValueError: no prompt is left.
  """
  refused = [(p, refused_forms(p, grader)) for p in prompts]
  refused = [(p, forms) for p, forms in refused if forms]
  lost = {p.id for p, forms in refused if forms == grader.forms}
  if not refused:
    listing.unlink(missing_ok=True)  # of data that have been mended since
    return list(prompts)
  listing.parent.mkdir(parents=True, exist_ok=True)
  with listing.open('w', encoding='utf-8', newline='\n') as stream:
    for prompt, forms in refused:
      row = {
        'prompt_id': prompt.id,
        'dataset': prompt.dataset,
        'problem': prompt.messages[-1].content,
        'gold': prompt.gold,
        'refused_as': [form.format('...') for form in forms],
        'can_be_won': prompt.id not in lost,
      }
      stream.write(json.dumps(row, ensure_ascii=False) + '\n')
  kept = [p for p in prompts if keep or p.id not in lost]
  _log(prompts, refused, lost, keep, listing)
  if not kept:
    raise ValueError(
      f'none of the {len(prompts)} prompts can be won: reward.grader refuses '
      f'every gold answer (see {listing}); change --config.reward.grader or '
      '--config.data.source or --config.data.mixture'
    )
  return kept


def _log(prompts, refused, lost, keep: bool, listing: pathlib.Path) -> None:
  if lost:
    golds = [repr(p.gold[:40]) for p, _ in refused if p.id in lost]
    logging.warning(
      'data: %s %d of %d prompts that cannot be won, their gold answers are '
      'refused by the grader: %s%s; all are in %s',
      'kept' if keep else 'dropped',
      len(lost),
      len(prompts),
      ', '.join(golds[:_NAMED_COUNT]),
      ', ...' if len(golds) > _NAMED_COUNT else '',
      listing,
    )
  if len(refused) > len(lost):
    logging.warning(
      'data: the gold answers of %d of %d prompts are right in one form and '
      'refused in another; they are in %s',
      len(refused) - len(lost),
      len(prompts),
      listing,
    )

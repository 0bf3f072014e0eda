"""Problems rewritten by a language model so that the answer is an integer.

Host only. The model is a function from prompts to replies, so it may be a
sampler of ours or an endpoint. What it proposes is kept only if something else
has the same integer: the rule of `integer_answers` where that applies, and
elsewhere the majority of independent solutions of the rewritten problem.
"""

import collections
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dapo_jax.data import integer_answers, integer_prompts, refusals

Complete = Callable[[list[str]], list[str]]
# Shorter answers, such as `x` or `12`, may stand in a statement by chance, and
# so may an integer of one digit.
_MIN_TELLING_CHARACTERS = 3
_MIN_TELLING_INTEGER = 10
# What may stand in a formula or not, and it means the same.
_DRESS = re.compile(
  r'\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;:! ]|[{}$\s]'
)


class Outcome(NamedTuple):
  """What became of a problem: the rewritten one, or a reason why not."""

  rewritten: integer_answers.Rewritten | None
  reason: str  # '' or a key of `refusals.REASONS`


def transform(
  problems: Sequence[tuple[str, str]],
  complete: Complete,
  *,
  votes_count: int,
) -> list[Outcome]:
  """Returns what a model makes of the problems, in their order.

  The model answers one prompt for each problem, and `votes_count` for each
  proposal that no rule can judge. A proposal is kept

  1. where `integer_answers.by_rule` applies: if the rule's integer is the same;
  2. elsewhere: if more than half of all solutions end with that integer. One
     without an integer counts as a vote for nothing.

  A problem whose answer is an integer already stays as it is, and the model is
  not asked.

  Args:
    problems: (statement, answer) of each.
    complete: returns a reply to each prompt. It must sample: the same prompt
      is asked several times, for solutions that are independent.
    votes_count: solutions of each rewritten problem.

  Raises:
    ValueError: `votes_count` is below 1, or `complete` returns more or fewer
      replies than it had prompts.
  """
  if votes_count < 1:
    raise ValueError(f'--k ({votes_count}) must be at least 1')
  ruled = [by_rule(*problem) for problem in problems]
  asked = [index for index, o in enumerate(ruled) if not is_unchanged(o)]
  prompts = [integer_prompts.rewriting(*problems[index]) for index in asked]
  outcomes, unjudged = dict(enumerate(ruled)), {}
  for index, reply in zip(asked, _replies(complete, prompts), strict=True):
    found = _proposed(reply, *problems[index])
    judged = _judged(found, ruled[index])
    if judged is None:
      unjudged[index] = found
    else:
      outcomes[index] = judged
  voted = _voted(list(unjudged.values()), complete, votes_count)
  outcomes.update(zip(unjudged, voted, strict=True))
  return [outcomes[index] for index in range(len(problems))]


def is_unchanged(outcome: Outcome) -> bool:
  """Says whether the answer was an integer already."""
  found = outcome.rewritten
  return found is not None and found.form == integer_answers.UNCHANGED


def by_rule(statement: str, answer: str) -> Outcome:
  """Returns what `integer_answers.by_rule` makes of a problem."""
  try:
    return Outcome(integer_answers.by_rule(statement, answer), '')
  except refusals.Refusal as refusal:
    return Outcome(None, refusal.reason)


def _proposed(
  reply: str, statement: str, answer: str
) -> integer_prompts.Proposal | str:
  """Returns the proposal of a reply, or why there is none to be used."""
  found = integer_prompts.proposal(reply)
  if isinstance(found, str):
    return found
  if _bare(found.statement) == _bare(statement):
    return 'not_rewritten'
  told = []
  if len(_bare(answer)) >= _MIN_TELLING_CHARACTERS:
    told.append(answer)
  if abs(found.integer) >= _MIN_TELLING_INTEGER:
    told.append(str(found.integer))
  for telling in told:
    if _holds(found.statement, telling) and not _holds(statement, telling):
      return 'gives_away'
  return found


def _bare(text: str) -> str:
  """Returns a text without what doesn't change its meaning."""
  return _DRESS.sub('', re.sub(r'\\[dt]frac', r'\\frac', text))


def _holds(statement: str, telling: str) -> bool:
  """Says whether a statement holds a formula, and not in a longer number."""
  formula = re.escape(_bare(telling))
  return bool(re.search(rf'(?<![0-9.]){formula}(?!\.?[0-9])', _bare(statement)))


def _judged(
  found: integer_prompts.Proposal | str, ruled: Outcome
) -> Outcome | None:
  """Returns the outcome of a proposal, None if a vote must tell."""
  if isinstance(found, str):
    return Outcome(None, found)
  if ruled.rewritten is None:
    return None
  if found.integer != ruled.rewritten.integer:
    return Outcome(None, 'disagrees_with_rule')
  return _kept(found)


def _kept(found: integer_prompts.Proposal) -> Outcome:
  return Outcome(
    integer_answers.Rewritten(found.statement, found.integer, found.form), ''
  )


def _voted(
  proposals: Sequence[integer_prompts.Proposal],
  complete: Complete,
  votes_count: int,
) -> list[Outcome]:
  """Returns the outcome of each proposal by the majority of its solutions."""
  prompts = [
    integer_prompts.solving(found.statement)
    for found in proposals
    for _ in range(votes_count)
  ]
  votes = [integer_prompts.vote(r) for r in _replies(complete, prompts)]
  outcomes = []
  for index, found in enumerate(proposals):
    of_this = votes[index * votes_count : (index + 1) * votes_count]
    integer, count = collections.Counter(of_this).most_common(1)[0]
    if integer is None or 2 * count <= votes_count:
      outcomes.append(Outcome(None, 'no_majority'))
    elif integer != found.integer:
      outcomes.append(Outcome(None, 'disagrees_with_majority'))
    else:
      outcomes.append(_kept(found))
  return outcomes


def _replies(complete: Complete, prompts: list[str]) -> list[str]:
  """Returns a reply to each prompt."""
  replies = complete(prompts) if prompts else []
  if len(replies) != len(prompts):
    raise ValueError(
      f'the model must reply once to each of {len(prompts)} prompts, not'
      f' {len(replies)} times'
    )
  return replies

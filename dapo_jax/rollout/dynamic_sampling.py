"""Dynamic sampling: draw prompts until enough groups carry a signal.

DAPO's constraint (eq. 8, 11): a group is kept iff 0 < correct < G. A group
that is all right or all wrong has advantage 0 everywhere. The filter counts
correct answers, integers; shaped rewards differ by length among wrong answers
too, and must not let such a group pass.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dapo_jax.data import records

Draw = Callable[[int, int], list[records.Group]]


class Rule(NamedTuple):
  """How a step's groups are gathered."""

  enabled: bool  # False: every group is kept
  want: int  # groups a step trains
  batch: int  # prompts drawn in a round
  max_rounds: int
  on_limit: str  # 'error', 'train_partial' or 'accept_uniform'


class Tally(NamedTuple):
  """What became of the prompts that were drawn."""

  rounds: int
  drawn: int
  kept: int
  all_right: int
  all_wrong: int
  trained: int

  @property
  def surplus(self) -> int:
    """Kept groups beyond what the step wanted; they are dropped."""
    return max(0, self.kept - self.trained)


NO_ROUNDS = Tally(
  rounds=0, drawn=0, kept=0, all_right=0, all_wrong=0, trained=0
)


class Filled(NamedTuple):
  """A step's groups, by draw ordinal."""

  groups: list[records.Group]
  tally: Tally
  first_round: list[records.Group]  # before the filter
  next_ordinal: int


class SamplingLimitError(ValueError):
  """The rounds are used up and the action at the limit is 'error'."""


def has_signal(group: records.Group) -> bool:
  """Returns whether some answers are right and some are wrong."""
  return 0 < records.correct_count(group) < len(group.responses)


def fill(
  draw: Draw,
  rule: Rule,
  *,
  first_ordinal: int,
  on_round: Callable[[Tally], None],
) -> Filled:
  """Returns `rule.want` groups that pass the filter, by draw ordinal.

  Every round draws `rule.batch` prompts with the same policy, so nothing is
  stale. Kept groups are cut by draw ordinal, never by who finished first;
  the surplus is dropped, since it would be one update old in the next step.

  Args:
    draw: gives the judged groups of (first ordinal, number of prompts).
    rule: what to keep, how many, and what to do at the limit.
    first_ordinal: ordinal of the first draw of this step.
    on_round: called with the tally so far after each round.

  Raises:
    SamplingLimitError: at the limit, when the rule says 'error'.
  """
  drawn: list[records.Group] = []
  kept: list[records.Group] = []
  for round_number in range(1, rule.max_rounds + 1):
    fresh = draw(first_ordinal + len(drawn), rule.batch)
    if round_number == 1:
      first_round = fresh
    drawn += fresh
    kept += [g for g in fresh if not rule.enabled or has_signal(g)]
    on_round(_tally(round_number, drawn, kept, trained=0))
    if len(kept) >= rule.want:
      break
  groups = kept[: rule.want]
  if len(groups) < rule.want:
    tally = _tally(round_number, drawn, kept, trained=len(groups))
    groups = _at_limit(rule, tally, drawn, kept)
  return Filled(
    groups,
    _tally(round_number, drawn, kept, trained=len(groups)),
    first_round,
    first_ordinal + len(drawn),
  )


def limit_text(tally: Tally, rule: Rule) -> str:
  """Returns one line that says how the limit was reached, in counts."""
  return (
    f'{tally.rounds} rounds drew {tally.drawn} prompts: {tally.kept} have '
    f'both right and wrong answers ({rule.want} wanted), '
    f'{tally.all_right} are all right, {tally.all_wrong} all wrong'
  )


def _at_limit(
  rule: Rule,
  tally: Tally,
  drawn: Sequence[records.Group],
  kept: Sequence[records.Group],
) -> list[records.Group]:
  if rule.on_limit == 'train_partial':
    return list(kept)
  if rule.on_limit == 'accept_uniform':
    uniform = [g for g in drawn if not has_signal(g)]
    chosen = [*kept, *uniform[: rule.want - len(kept)]]
    return sorted(chosen, key=lambda g: g.draw.ordinal)
  if rule.on_limit != 'error':
    raise ValueError(f'unknown action at the limit: {rule.on_limit!r}')
  raise SamplingLimitError(
    f'dynamic sampling reached its limit: {limit_text(tally, rule)}; '
    'change --config.filter.max_rounds, --config.rollout.oversample or '
    '--config.filter.on_limit (train_partial, accept_uniform), or take '
    'easier or harder prompts'
  )


def _tally(rounds, drawn, kept, *, trained: int) -> Tally:
  counts = [(records.correct_count(g), len(g.responses)) for g in drawn]
  return Tally(
    rounds=rounds,
    drawn=len(drawn),
    kept=len(kept),
    all_right=sum(k == g for k, g in counts),
    all_wrong=sum(k == 0 for k, _ in counts),
    trained=trained,
  )

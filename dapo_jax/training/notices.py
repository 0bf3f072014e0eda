"""What a run tells its user about a step, beside the step's line."""

from collections.abc import Callable, Iterator, Sequence

from ml_collections import FrozenConfigDict

from dapo_jax.rollout import dynamic_sampling, summary
from dapo_jax.training import gather

# Leaves that a message names.
_NAMED_COUNT = 3


def of_step(
  config: FrozenConfigDict,
  filled: dynamic_sampling.Filled,
  metrics: summary.Metrics,
  said: set[str],
  *,
  faults: Sequence[Sequence[str]],
  unjudged: Callable[[], str],
) -> Iterator[str]:
  """Yields what is to be said, a line each.

  Args:
    config: the run's.
    filled: the groups of the step.
    metrics: of the step.
    said: of what it has been warned already, where once is enough; added to.
    faults: what was not finite in each of the updates that were skipped.
    unjudged: gives why an answer could not be compared.
  """
  rule = gather.rule(config)
  if filled.tally.kept < rule.want:
    yield _limit(filled, rule)
  if faults:
    yield _skipped(faults)
  if metrics['reward/no_answer_frac'] == 1.0:
    yield _no_answer(config, filled)
  if 'gap' not in said and _is_gap(config, metrics):
    said.add('gap')
    yield _gap(config, metrics)
  counts = (
    metrics['reward/verify_timeout_count'],
    metrics['reward/verify_error_count'],
  )
  if 'unjudged' not in said and any(counts):
    said.add('unjudged')
    yield _unjudged(*counts, unjudged())


def _limit(filled: dynamic_sampling.Filled, rule: dynamic_sampling.Rule) -> str:
  did = (
    f'trained on {filled.tally.trained} groups'
    if filled.groups
    else 'skipped the update'
  )
  text = dynamic_sampling.limit_text(filled.tally, rule)
  return f'limit of rounds reached, {did}: {text}'


def fault_text(names: Sequence[str]) -> str:
  """Returns the first few of the names of what was not finite."""
  more = len(names) - _NAMED_COUNT
  return ', '.join(names[:_NAMED_COUNT]) + (f' and {more} more' * (more > 0))


def _skipped(faults: Sequence[Sequence[str]]) -> str:
  return (
    f'warning: skipped {len(faults)} updates that were not finite: '
    f'{fault_text(faults[-1])}; after optim.max_skipped_updates in a row the '
    'run stops'
  )


def _no_answer(
  config: FrozenConfigDict, filled: dynamic_sampling.Filled
) -> str:
  responses = [r for group in filled.first_round for r in group.responses]
  cut = sum(r.is_truncated for r in responses) / len(responses)
  return (
    f'warning: no answer was found in any of the {len(responses)} responses of '
    f'the first round. Either data.template ({config.data.template}) asks for '
    f'another form than reward.grader ({config.reward.grader}) reads, or the '
    f'responses end before it: {cut:.0%} were cut off at '
    f'rollout.max_response_tokens ({config.rollout.max_response_tokens}); '
    'samples.jsonl shows some'
  )


def _is_gap(config: FrozenConfigDict, metrics: summary.Metrics) -> bool:
  gap = metrics.get('policy/sampler_gap_mean_nats', 0.0)
  return gap > config.sampler.max_gap_nats


def _gap(config: FrozenConfigDict, metrics: summary.Metrics) -> str:
  """Says that sampler and trainer disagree by more than arithmetic."""
  return (
    "warning: the sampler's log-probs differ from the trainer's by "
    f'{metrics["policy/sampler_gap_mean_nats"]:.3g} nats a token, more than '
    f'sampler.max_gap_nats ({config.sampler.max_gap_nats:.3g}): other weights '
    'or another temperature in the engine, or a type too coarse; '
    'objective.sampler_correction=token_truncate bounds what it does'
  )


def _unjudged(timeouts: int, errors: int, fault: str) -> str:
  return (
    f'warning: {timeouts + errors} answers could not be compared with the gold '
    f'ones and count as wrong ({timeouts} within reward.verify_s, {errors} by '
    f'an error), the latest: {fault}; reward/verify_timeout_count and '
    'reward/verify_error_count tell how many there are from now on'
  )

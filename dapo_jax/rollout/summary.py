"""The metrics of a rollout: rewards, lengths, and what the filter did."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dapo_jax.data import records, templates
from dapo_jax.rewards import answers
from dapo_jax.rollout import dynamic_sampling

Metrics = dict[str, int | float]


def filter_metrics(filled: dynamic_sampling.Filled) -> Metrics:
  """Returns `filter/` metrics, and accuracy before the filter."""
  tally = filled.tally
  first = np.concatenate([g.correct for g in filled.first_round])
  return {
    'filter/rounds_count': tally.rounds,
    'filter/drawn_prompts_count': tally.drawn,
    'filter/kept_prompts_count': tally.kept,
    'filter/trained_prompts_count': tally.trained,
    'filter/surplus_prompts_count': tally.surplus,
    'filter/all_right_prompts_count': tally.all_right,
    'filter/all_wrong_prompts_count': tally.all_wrong,
    'filter/kept_frac': tally.kept / tally.drawn,
    'filter/skipped_update_count': int(tally.trained == 0),
    'reward/first_round_correct_frac': float(first.mean()),
    'reward/no_answer_frac': _no_answer_frac(filled.first_round),
  }


def group_metrics(groups: Sequence[records.Group]) -> Metrics:
  """Returns `reward/` and `response/` metrics of trained groups."""
  if not groups:
    return {}
  join = lambda field: np.concatenate([getattr(g, field) for g in groups])
  rewards = np.concatenate([records.group_rewards(g) for g in groups])
  lengths = np.concatenate([records.lengths_tokens(g) for g in groups])
  ended = np.array([not r.is_truncated for g in groups for r in g.responses])
  metrics = {
    'reward/mean': float(rewards.mean()),
    'reward/correctness_mean': float(join('correctness').mean()),
    'reward/format_mean': float(join('format').mean()),
    'reward/overlong_mean': float(join('overlong').mean()),
    'reward/correct_frac': float(join('correct').mean()),
    'response/length_mean_tokens': float(lengths.mean()),
    'response/length_max_tokens': int(lengths.max()),
    'response/length_min_tokens': int(lengths.min()),
    'response/truncated_frac': float(1.0 - ended.mean()),
  }
  if ended.any():
    metrics['response/eos_length_mean_tokens'] = float(lengths[ended].mean())
  return metrics


def sample_rows(
  filled: dynamic_sampling.Filled,
  *,
  count: int,
  template: str,
  chat_text: templates.ChatText | None = None,
) -> list[dict[str, Any]]:
  """Returns `count` responses as rows to read, spread over the groups.

  They are of the trained groups, or, when there are none, of the first round.
  """
  groups = filled.groups or filled.first_round
  places = [(i % len(groups), i // len(groups)) for i in range(count)]
  rows = []
  for number, g in places:
    group = groups[number]
    if g == len(group.responses):
      break
    response, prompt = group.responses[g], group.draw.prompt
    rows.append(
      {
        'ordinal': group.draw.ordinal,
        'prompt_id': prompt.id,
        'sample': g,
        'prompt': templates.render(
          prompt.messages, template, chat_text=chat_text
        ),
        'response': response.text,
        'gold': prompt.gold,
        'extracted': group.extracted[g],
        'correct': bool(group.correct[g]),
        'correctness': float(group.correctness[g]),
        'format': float(group.format[g]),
        'overlong': float(group.overlong[g]),
        'length_tokens': len(response.tokens),
        'finish': response.finish,
      }
    )
  return rows


def _no_answer_frac(groups: Sequence[records.Group]) -> float:
  found = [answer for g in groups for answer in g.extracted]
  return found.count(answers.NO_ANSWER) / len(found)

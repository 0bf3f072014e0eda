"""How much a rollout step has to do, from a distribution of lengths.

Lengths are log-normal and cut at the longest response; their mean is that of
what is left, as a run measures it. They are drawn with a fixed seed, so a plan
of the same numbers is the same plan. Host only.
"""

import functools
import heapq
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from ml_collections import FrozenConfigDict

from dapo_jax.training import row_plan

# A mean that nobody gives, as a share of the longest: DAPO's responses grow
# to about 3,000 tokens of 20,480 (arXiv 2503.14476, figure 7).
_MEAN_FRAC = 1 / 7
# Minibatches that are planned for the mean of their rows.
_PLANNED = 4


class Lengths(NamedTuple):
  """What is known of prompts and responses."""

  prompt_tokens: int  # mean
  response_tokens: float  # mean, those that are cut off included
  sigma: float  # of the logarithm of a response's tokens
  longest_tokens: int  # where responses are cut off
  kept_frac: float  # of drawn prompts, that pass the filter


class Sampling(NamedTuple):
  """What one engine does in a rollout step, means over the step."""

  prompts: float
  responses: int
  rounds: int  # of drawing, one after the other
  steps: int  # decode steps until the last response of every round ends
  live_slots: float  # mean over the steps
  response_tokens: int
  # Sum over all tokens of how many tokens each attends to.
  attended_tokens: float


class Learning(NamedTuple):
  """What the updates of a rollout step go through."""

  minibatches: float
  # Of each width of rows, micro-batches of a minibatch, a mean.
  micro_batches: tuple[float, ...]
  real_tokens: float  # of a minibatch
  row_tokens: float  # computed for it
  # Sum over its tokens of how many tokens each attends to.
  attended_tokens: float


def of_config(config: FrozenConfigDict) -> Lengths:
  """Returns the lengths that the section `plan` describes.

  Raises:
    ValueError: a mean is more than the longest.
  """
  longest = config.rollout.max_response_tokens
  c = config.plan
  mean = c.response_tokens_mean or _MEAN_FRAC * longest
  prompt = c.prompt_tokens_mean or _MEAN_FRAC * config.data.max_prompt_tokens
  for name, value, limit, most in (
    ('prompt', prompt, 'data.max_prompt_tokens', config.data.max_prompt_tokens),
    ('response', mean, 'rollout.max_response_tokens', longest),
  ):
    if value > most:
      raise ValueError(
        f'plan.{name}_tokens_mean ({value}) must be at most {limit} ({most}); '
        f'change --config.plan.{name}_tokens_mean'
      )
  return Lengths(
    prompt_tokens=max(1, round(prompt)),
    response_tokens=mean,
    sigma=c.response_tokens_sigma,
    longest_tokens=longest,
    kept_frac=c.kept_frac if config.filter.enabled else 1.0,
  )


def draw(lengths: Lengths, count: int) -> Int[np.ndarray, ' n']:
  """Returns the tokens of so many responses."""
  mu = _log_median(
    lengths.response_tokens, lengths.sigma, lengths.longest_tokens
  )
  drawn = np.random.default_rng(0).lognormal(mu, lengths.sigma, count)
  return drawn.round().clip(1, lengths.longest_tokens).astype(np.int64)


@functools.lru_cache
def _log_median(mean: float, sigma: float, longest: int) -> float:
  """Returns mu where min(X, longest) has the mean, log X being N(mu, sigma^2).

  E[min(X, L)] = exp(mu + sigma^2 / 2) Phi((ln L - mu) / sigma - sigma)
    + L (1 - Phi((ln L - mu) / sigma)) rises with mu, so it is bisected.
  """
  if sigma == 0:
    return math.log(mean)
  phi = lambda z: (1 + math.erf(z / math.sqrt(2))) / 2

  def cut_mean(mu):
    z = (math.log(longest) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * phi(z - sigma) + longest * phi(-z)

  low = math.log(mean) - sigma**2 / 2  # right where nothing is cut
  high = math.log(longest) + 8 * sigma  # where everything is
  for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if cut_mean(middle) < mean else (low, middle)
  return high


def sampling(
  config: FrozenConfigDict,
  lengths: Lengths,
  *,
  engines: int,
  slots: int,
  window_tokens: int | None = None,
) -> Sampling:
  """Returns the work of one engine.

  Args:
    config: the run's.
    lengths: of prompts and responses.
    engines: that share a step's prompts.
    slots: rows that an engine decodes at a time.
    window_tokens: how many tokens one attends to; None = all before it.
  """
  c = config.rollout
  round_prompts = c.prompts_per_step
  rounds = 1
  if config.filter.enabled:
    round_prompts = math.ceil(c.oversample * c.prompts_per_step)
    # Rounds are whole; a little less than all is all of it.
    kept = round_prompts * lengths.kept_frac
    rounds = max(1, math.ceil(c.prompts_per_step / kept - 1e-6))
    rounds = min(rounds, config.filter.max_rounds)
  # A round ends with its last response: only then is it known whether there
  # is another one.
  round_count = math.ceil(round_prompts / engines * c.responses_per_prompt)
  tokens = draw(lengths, rounds * round_count)
  steps = sum(
    _last_end(part.tolist(), max(1, slots)) for part in np.split(tokens, rounds)
  )
  return Sampling(
    prompts=rounds * round_prompts / engines,
    responses=len(tokens),
    rounds=rounds,
    steps=steps,
    live_slots=float(tokens.sum()) / steps,
    response_tokens=int(tokens.sum()),
    attended_tokens=_attended(tokens, lengths.prompt_tokens, window_tokens),
  )


def learning(
  config: FrozenConfigDict,
  lengths: Lengths,
  *,
  row_tokens: int,
  micro_batch_rows: int,
  share_prompts: bool,
  window_tokens: int | None = None,
) -> Learning:
  """Returns the work of a step's updates: the plans that a run would make.

  Args:
    config: the run's.
    lengths: of prompts and responses.
    row_tokens: of a packed row.
    micro_batch_rows: rows that are computed at a time.
    share_prompts: whether a prompt's responses have one copy of it in a row.
    window_tokens: how many tokens one attends to; None = all before it.

  Raises:
    ValueError: a response is longer than a row.
  """
  size, group = (
    config.learner.minibatch_prompts,
    config.rollout.responses_per_prompt,
  )
  tokens = draw(lengths, _PLANNED * size * group).reshape(_PLANNED, -1)
  widths = row_plan.widths(row_tokens)
  plans = [
    row_plan.plan(
      [
        row_plan.Length(number // group, lengths.prompt_tokens, int(n))
        for number, n in enumerate(part)
      ],
      row_tokens=row_tokens,
      micro_batch_rows=micro_batch_rows,
      share_prompts=share_prompts,
    )
    for part in tokens
  ]
  return Learning(
    minibatches=config.rollout.prompts_per_step / size,
    micro_batches=tuple(
      statistics.fmean(plan.widths.count(width) for plan in plans)
      for width in widths
    ),
    real_tokens=statistics.fmean(plan.real_tokens for plan in plans),
    row_tokens=statistics.fmean(plan.row_tokens for plan in plans),
    attended_tokens=_attended(tokens, lengths.prompt_tokens, window_tokens)
    / _PLANNED
    + size * group * _attended(lengths.prompt_tokens, 0, window_tokens),
  )


def live_context_tokens(lengths: Lengths) -> float:
  """Returns the tokens that a live row holds, a mean over time.

  A row of n tokens is there for n steps and has half of them on average, so
  long rows weigh more: E[n^2] / (2 E[n]), and the prompt.
  """
  tokens = draw(lengths, 10_000).astype(float)
  return lengths.prompt_tokens + float((tokens**2).mean() / (2 * tokens.mean()))


def _last_end(tokens: Sequence[int], slots: int) -> int:
  """Returns the step at which the last row ends; a free slot takes the next."""
  ends: list[int] = []
  for n in tokens:
    begin = heapq.heappop(ends) if len(ends) == slots else 0
    heapq.heappush(ends, begin + n)
  return max(ends)


def _attended(
  tokens: Int[np.ndarray, '*_'] | int,
  begin_tokens: int,
  window_tokens: int | None,
) -> float:
  """Returns the sum over tokens of the tokens each attends to, itself included.

  Args:
    tokens: how many there are, of each row.
    begin_tokens: that are before them.
    window_tokens: the most that one attends to; None = all.
  """
  n = np.asarray(tokens, float)
  # Of each row, tokens that attend to all before them.
  whole = n
  if window_tokens is not None:
    whole = np.clip(window_tokens - begin_tokens, 0, n)
  found = whole * begin_tokens + whole * (whole + 1) / 2
  return float((found + (n - whole) * (window_tokens or 0)).sum())

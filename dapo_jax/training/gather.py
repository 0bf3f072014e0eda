"""Gathers the groups of a step: stream, engine and filter joined."""

from collections.abc import Callable, Sequence

from ml_collections import FrozenConfigDict

from dapo_jax.data import records
from dapo_jax.model import decoder
from dapo_jax.rollout import (
  collect,
  dynamic_sampling,
  grading,
  meter,
  sharing,
)
from dapo_jax.sampling import scheduler, stop_strings, token_choice
from dapo_jax.training import prompts as prompts_lib
from dapo_jax.training import trainer as trainer_lib

# Called after every decode chunk with the totals and the last tally.
OnChunk = Callable[
  [meter.Totals, scheduler.ChunkReport, dynamic_sampling.Tally], None
]


def rule(config: FrozenConfigDict) -> dynamic_sampling.Rule:
  """Returns the rule of dynamic sampling that a configuration asks for."""
  return dynamic_sampling.Rule(
    enabled=config.filter.enabled,
    want=config.rollout.prompts_per_step,
    batch=prompts_lib.round_prompts(config),
    max_rounds=config.filter.max_rounds if config.filter.enabled else 1,
    on_limit=config.filter.on_limit,
  )


def gather(
  trainer: trainer_lib.Trainer,
  engine_params: decoder.Params,
  *,
  first_ordinal: int,
  metered: meter.Meter,
  on_chunk: OnChunk,
  check: Callable[[], None],
) -> dynamic_sampling.Filled:
  """Returns a step's groups; adds what it took here to `metered`.

  Of groups that another process sampled all but the tokens is known. `check`
  is called often during the wait for verdicts, when no chunk is decoded any
  more; what it raises ends the wait.
  """
  config, parts = trainer.config, trainer.parts
  sampling = scheduler.Sampling(
    purpose=token_choice.Purpose.TRAIN,
    seed=config.seed,
    choice=token_choice.Choice(config.rollout.temperature),
    limit_tokens=config.rollout.max_response_tokens,
    chunk_tokens=config.sampler.chunk_tokens,
    find_stop=stop_strings.finder(
      parts.tokenizer.decode, config.rollout.stop_strings
    ),
  )
  decode = stop_strings.decoder(
    parts.tokenizer.decode, config.rollout.stop_strings
  )
  tallies = [dynamic_sampling.NO_ROUNDS]

  def report(chunk: scheduler.ChunkReport) -> None:
    metered.add(chunk)
    if parts.shares.hosts == 1:
      on_chunk(metered.totals(), chunk, tallies[-1])

  def on_wait(seconds: float) -> None:
    metered.add_wait(seconds)
    check()

  def own_groups(draws: Sequence[records.Draw]) -> list[records.Group]:
    return collect.collect(
      draws,
      encode=parts.encode,
      sample=lambda requests: scheduler.generate(
        parts.engine, engine_params, requests, sampling, report=report
      ),
      decode=decode,
      grading=grading.Grading(
        metered.timed(parts.judge), config.reward.wait_s, on_wait
      ),
      samples_per_prompt=config.rollout.responses_per_prompt,
      shares=parts.shares,
    )

  def draw(first_ordinal: int, count: int) -> list[records.Group]:
    groups = sharing.everywhere(
      trainer.stream.take(first_ordinal, count),
      own_groups,
      shares=parts.shares,
      samples_per_prompt=config.rollout.responses_per_prompt,
      encode=parts.encode,
      what=f'the round that begins with draw {first_ordinal}',
    )
    if config.overlong.truncated == 'wrong':
      wrong = config.reward.wrong
      groups = [collect.truncated_as_wrong(g, wrong=wrong) for g in groups]
    return groups

  return dynamic_sampling.fill(
    draw, rule(config), first_ordinal=first_ordinal, on_round=tallies.append
  )

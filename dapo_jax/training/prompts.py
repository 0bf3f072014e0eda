"""The prompts of a run, from where its configuration says.

None is ever cut: one that does not fit is left out or an error.
"""

from collections.abc import Callable, Sequence

import numpy as np
from absl import logging
from ml_collections import FrozenConfigDict

from dapo_jax.data import procedural, records, sources

# Gives a prompt's token ids.
Encode = Callable[[records.Prompt], np.ndarray]


def load(
  config: FrozenConfigDict,
) -> tuple[list[records.Prompt], list[records.Prompt]]:
  """Returns the prompts to train on and those to evaluate on.

  Raises:
    ValueError: there are too few, or a file of them cannot be read.
  """
  if config.data.source == 'arithmetic':
    train, held_out = procedural.arithmetic(
      min_terms=config.data.arithmetic.min_terms,
      terms=config.data.arithmetic.terms,
      digits=config.data.arithmetic.digits,
      max_per_terms=config.data.arithmetic.max_per_terms,
      in_words=config.data.arithmetic.in_words,
      held_out_frac=config.data.arithmetic.held_out_frac,
      worked_frac=config.data.arithmetic.worked_frac,
    )
  else:
    train, held_out = sources.load(config.data.source), []
  if config.eval.source:
    held_out = sources.load(config.eval.source)
  if len(held_out) < config.eval.prompts:
    raise ValueError(
      f'evaluation wants {config.eval.prompts} problems, there are '
      f'{len(held_out)}; change --config.eval.prompts or '
      '--config.eval.source'
    )
  if len(train) <= config.data.shots:
    raise ValueError(
      f'data.shots ({config.data.shots}) leaves none of the {len(train)} '
      'training problems to train on; change --config.data.shots'
    )
  shots, train = train[: config.data.shots], train[config.data.shots :]
  return (
    sources.with_shots(train, shots),
    sources.with_shots(held_out[: config.eval.prompts], shots),
  )


def without_long(
  prompts: Sequence[records.Prompt], encode: Encode, max_tokens: int
) -> list[records.Prompt]:
  """Returns the prompts that fit; logs how many do not.

  Raises:
    ValueError: none fits.
  """
  kept = [p for p in prompts if len(encode(p)) <= max_tokens]
  if not kept:
    raise ValueError(
      f'all {len(prompts)} training prompts are longer than {max_tokens} '
      'tokens; change --config.data.max_prompt_tokens'
    )
  if len(kept) < len(prompts):
    logging.warning(
      'data: dropped %d of %d training prompts, longer than %d tokens',
      len(prompts) - len(kept),
      len(prompts),
      max_tokens,
    )
  return kept


def check_lengths(
  prompts: Sequence[records.Prompt], encode: Encode, max_tokens: int
) -> None:
  """Raises ValueError for prompts that do not fit."""
  lengths = [len(encode(p)) for p in prompts]
  long = [p.id for p, n in zip(prompts, lengths, strict=True) if n > max_tokens]
  if long:
    raise ValueError(
      f'{len(long)} of {len(prompts)} prompts are longer than '
      f'{max_tokens} tokens (the longest has {max(lengths)}; the first is '
      f'{long[0]}); change --config.data.max_prompt_tokens, the data or, for '
      'training prompts, --config.data.overlong'
    )

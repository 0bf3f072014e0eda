"""The prompts of a run, from where its configuration says.

None is ever cut: one that does not fit is left out or an error.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from ml_collections import FrozenConfigDict

from dapo_jax.data import (
  mixture,
  procedural,
  records,
  sources,
  stream,
  tasks,
)

# Gives a prompt's token ids.
Encode = Callable[[records.Prompt], np.ndarray]
# A prompt and its length, [tokens].
_Sized = tuple[records.Prompt, int]


class _Source(NamedTuple):
  """What a source gives."""

  train: list[records.Prompt]
  # Empty for a file: it is all to train on, or all to evaluate on.
  held_out: list[records.Prompt]


def load(
  config: FrozenConfigDict,
) -> tuple[list[records.Prompt], list[records.Prompt]]:
  """Returns the prompts to train on and those to evaluate on.

  Those of a mixture are in its order, component by component; the problems
  that it holds out are in proportion to the weights.

  Raises:
    ValueError: there are too few, or a source cannot be read.
  """
  # A source may be trained and evaluated on; it is read once.
  read = functools.cache(functools.partial(_read, config))
  if config.data.mixture:
    train, held_out = _mixed(config.data.mixture, read)
  else:
    train, held_out = read(config.data.source)
  if config.eval.source:
    found = read(config.eval.source)
    is_made = _is_generated(config.eval.source)
    held_out = found.held_out if is_made else found.train
  if len(held_out) < config.eval.prompts:
    raise ValueError(
      f'evaluation wants {config.eval.prompts} problems, there are '
      f'{len(held_out)}; change --config.eval.prompts or '
      '--config.eval.source, or have more held out of what is generated '
      '(--config.data.task.problems, say)'
    )
  # The first component's, for its problems come first.
  first_count = sum(p.source == train[0].source for p in train) if train else 0
  if first_count <= config.data.shots:
    raise ValueError(
      f'data.shots ({config.data.shots}) leaves none of the {first_count} '
      'training problems to train on; change --config.data.shots or the data'
    )
  shots, train = train[: config.data.shots], train[config.data.shots :]
  return (
    sources.with_shots(train, shots),
    sources.with_shots(held_out[: config.eval.prompts], shots),
  )


def round_prompts(config: FrozenConfigDict) -> int:
  """Returns how many prompts a round of a rollout draws."""
  # Without the filter nothing is lost, so nothing is drawn in excess.
  factor = config.rollout.oversample if config.filter.enabled else 1.0
  return math.ceil(config.rollout.prompts_per_step * factor)


def stream_of(
  prompts: Sequence[records.Prompt],
  config: FrozenConfigDict,
  *,
  round_prompts: int,
) -> stream.Stream | mixture.Mixture:
  """Returns the order in which training prompts are drawn.

  Args:
    prompts: as `load` gave them, or some of these.
    config: the run's.
    round_prompts: how many are drawn at a time, for `data.tail`.

  Raises:
    ValueError: there are too few.
  """
  make = functools.partial(
    stream.Stream, seed=config.seed, shuffle=config.data.shuffle
  )
  if not config.data.mixture:
    drops = config.data.tail == 'drop'
    return make(prompts, multiple_of=round_prompts if drops else 1)
  components = []
  for i, (source, _) in enumerate(config.data.mixture):
    own = [p for p in prompts if p.source == source]
    if not own:
      raise ValueError(
        f'no prompt of {source!r} is left to train on; change '
        '--config.data.mixture, --config.data.max_prompt_tokens, '
        '--config.data.shots or --config.data.unwinnable'
      )
    components.append(make(own, component=i))
  return mixture.Mixture(components, [w for _, w in config.data.mixture])


def _mixed(
  weighted: Sequence[tuple[str, int | float]], read: Callable[[str], _Source]
) -> _Source:
  """Returns the prompts of a mixture, each with the source it is from.

  Of prompts with one id the first is kept, as in a file.
  """
  train, held_out = {}, []
  for source, _ in weighted:
    found = read(source)
    fresh = [p for p in found.train if p.id not in train]
    if len(fresh) < len(found.train):
      logging.warning(
        'data.mixture: dropped %d of %d problems of %s that sources before it '
        'have as well',
        len(found.train) - len(fresh),
        len(found.train),
        source,
      )
    train |= {p.id: p._replace(source=source) for p in fresh}
    held_out.append([p._replace(source=source) for p in found.held_out])
  weights = [weight for _, weight in weighted]
  merged = {p.id: p for p in mixture.interleaved(held_out, weights)}
  return _Source(list(train.values()), list(merged.values()))


def _is_generated(source: str) -> bool:
  """Returns whether a source is made by rule, and holds problems out."""
  return source == 'arithmetic' or source.startswith(tasks.PREFIX)


def _read(config: FrozenConfigDict, source: str) -> _Source:
  """Returns the prompts of one source."""
  if source.startswith(tasks.PREFIX):
    return _Source(
      *tasks.load(
        source,
        problems=config.data.task.problems,
        seed=config.data.task.seed,
        held_out_frac=config.data.task.held_out_frac,
      )
    )
  if source != 'arithmetic':
    return _Source(sources.load(source), [])
  return _Source(
    *procedural.arithmetic(
      min_terms=config.data.arithmetic.min_terms,
      terms=config.data.arithmetic.terms,
      digits=config.data.arithmetic.digits,
      max_per_terms=config.data.arithmetic.max_per_terms,
      in_words=config.data.arithmetic.in_words,
      held_out_frac=config.data.arithmetic.held_out_frac,
      worked_frac=config.data.arithmetic.worked_frac,
    )
  )


def fitting(
  train: Sequence[records.Prompt],
  evaluated: Sequence[records.Prompt],
  encode: Encode,
  *,
  max_tokens: int,
  drop: bool,
) -> list[records.Prompt]:
  """Returns the training prompts that fit; logs how many do not.

  Args:
    train: the prompts to train on.
    evaluated: those to evaluate on, which must all fit.
    encode: gives the tokens of one; each is encoded once, for thousands take
      seconds.
    max_tokens: of the longest that fits.
    drop: whether training prompts need not fit.

  Raises:
    ValueError: one does not fit and must, or none does.
  """
  sized = [(p, len(encode(p))) for p in train]
  if drop:
    sized = _short(sized, max_tokens)
  _check_lengths(
    [*sized, *((p, len(encode(p))) for p in evaluated)], max_tokens
  )
  return [p for p, _ in sized]


def _short(sized: Sequence[_Sized], max_tokens: int) -> list[_Sized]:
  """Returns the training prompts that fit, of which there must be one."""
  kept = [(p, n) for p, n in sized if n <= max_tokens]
  if not kept:
    raise ValueError(
      f'all {len(sized)} training prompts are longer than {max_tokens} '
      'tokens; change --config.data.max_prompt_tokens'
    )
  if len(kept) < len(sized):
    logging.warning(
      'data: dropped %d of %d training prompts, longer than %d tokens',
      len(sized) - len(kept),
      len(sized),
      max_tokens,
    )
  return kept


def _check_lengths(sized: Sequence[_Sized], max_tokens: int) -> None:
  """Raises ValueError for prompts that do not fit."""
  long = [p.id for p, n in sized if n > max_tokens]
  if long:
    raise ValueError(
      f'{len(long)} of {len(sized)} prompts are longer than '
      f'{max_tokens} tokens (the longest has {max(n for _, n in sized)}; the '
      f'first is {long[0]}); change --config.data.max_prompt_tokens, the data '
      'or, for training prompts, --config.data.overlong'
    )

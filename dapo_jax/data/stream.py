"""The one endless order in which prompts are drawn.

Host only. There is nothing to save but a number: draw `n` is the same prompt
in every run with the same prompts and seed, whenever and wherever it's asked
for.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from dapo_jax.data import records


class Stream:
  """Prompts by the ordinal of the draw, epoch after epoch.

  Each epoch draws every prompt once, or all but a rest. The caller keeps the
  only state, the ordinal of the next draw.
  """

  def __init__(
    self,
    prompts: Sequence[records.Prompt],
    *,
    seed: int,
    shuffle: bool,
    component: int = 0,
    multiple_of: int = 1,
  ):
    """Makes the stream of these prompts.

    Args:
      prompts: at least one, of distinct ids.
      seed: root of the order, 0 <= seed < 2**64.
      shuffle: whether each epoch has an order of its own; if not, all have
        that of `prompts`.
      component: its number in a mixture, from 0; each has orders of its own.
      multiple_of: an epoch draws the largest multiple of this and leaves out
        the rest, which is another one in each epoch where it is shuffled.

    Raises:
      ValueError: a rule above is broken, or there are fewer prompts than
        `multiple_of`.
    """
    _check(prompts, seed, multiple_of)
    self._prompts = tuple(prompts)
    self._seed = seed
    self._shuffle = shuffle
    self._component = component
    self._epoch_draws = len(prompts) // multiple_of * multiple_of

  def __len__(self) -> int:
    """Returns the number of draws in an epoch."""
    return self._epoch_draws

  def take(self, first_ordinal: int, count: int) -> list[records.Draw]:
    """Returns the draws `first_ordinal`, ..., `first_ordinal + count - 1`.

    They may reach over the end of an epoch, or of several.
    """
    assert first_ordinal >= 0 and count >= 0, (first_ordinal, count)
    draws = []
    end = first_ordinal + count
    while first_ordinal < end:
      epoch, start = divmod(first_ordinal, len(self))
      rows = self._order(epoch)[start : start + end - first_ordinal]
      draws.extend(
        records.Draw(ordinal, epoch, self._prompts[row])
        for ordinal, row in enumerate(rows, start=first_ordinal)
      )
      first_ordinal += len(rows)
    return draws

  def _order(self, epoch: int) -> Int64[np.ndarray, 'P']:
    """Returns the indices of the prompts that an epoch draws, in its order."""
    if not self._shuffle:
      return np.arange(len(self))
    # Sorting raw Philox output rather than `Generator.permutation`: NumPy
    # promises the former's stream for all versions, not the latter's.
    key = np.array([self._seed, epoch], np.uint64)
    # No two components come near each other's part of the counter.
    counter = np.array([0, 0, 0, self._component], np.uint64)
    generator = np.random.Philox(key=key, counter=counter)
    noise = generator.random_raw(len(self._prompts))
    return np.argsort(noise, kind='stable')[: len(self)]


def _check(
  prompts: Sequence[records.Prompt], seed: int, multiple_of: int
) -> None:
  """Raises for what no stream can be made of."""
  if not prompts:
    raise ValueError(
      'a stream needs at least 1 prompt, got 0; change --config.data.source'
    )
  distinct_count = len({prompt.id for prompt in prompts})
  if distinct_count < len(prompts):
    raise ValueError(
      f'prompt ids must be distinct, got {distinct_count} ids for'
      f' {len(prompts)} prompts; drop the duplicates of --config.data.source'
    )
  if len(prompts) < multiple_of:
    raise ValueError(
      f'data.tail drop leaves nothing of an epoch of {len(prompts)} prompts: a'
      f' round draws {multiple_of}; change --config.data.tail,'
      ' --config.rollout.prompts_per_step, --config.rollout.oversample or, for'
      ' sft, --config.sft.examples_per_step'
    )
  if not 0 <= seed < 2**64:
    raise ValueError(
      f'the seed must be at least 0 and less than 2**64, got {seed}; change'
      ' --config.seed'
    )

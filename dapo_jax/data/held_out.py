"""Which problems are held out: those whose texts have the smallest hashes.

Host only.
"""

import bisect
import hashlib
from collections.abc import Iterable

from dapo_jax.data import records


def split(
  prompts: Iterable[records.Prompt], held_out_frac: float
) -> tuple[list[records.Prompt], list[records.Prompt]]:
  """Returns the prompts to train on and those held out.

  Both lists are ordered by the hash of the prompt's first message, so that the
  first few are a fair sample. No text is in both lists, and a problem that is
  held out stays so when `held_out_frac` grows.

  Args:
    prompts: in any order.
    held_out_frac: share to hold out, 0 <= frac < 1; met up to chance.
  """
  ordered = sorted(prompts, key=_place)
  count = bisect.bisect_left(ordered, held_out_frac, key=_place)
  return ordered[count:], ordered[:count]


def hash_frac(text: str) -> float:
  """Returns a number in [0, 1] that depends on the text alone."""
  digest = hashlib.sha256(text.encode('utf-8')).digest()
  return int.from_bytes(digest[:8], 'big') / 2**64


def _place(prompt: records.Prompt) -> float:
  """Returns where a problem stands in the lists, from 0 to 1."""
  return hash_frac(prompt.messages[0].content)

"""Made-up responses of the ragged set, as a peer's trainer is given them.

Prompts have one length and stand in front; responses are padded behind, to a
length of the caller's. A group are 16 responses to one prompt.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import lengths as lengths_lib  # noqa: E402

GROUP, LONGEST = 16, 256


class Batch(NamedTuple):
  """Responses, their padding, and what a loss needs of them."""

  prompts: np.ndarray  # [B, P]
  responses: np.ndarray  # [B, T], 0 = padding
  mask: np.ndarray  # [B, T], true where there is a token
  logp_old: np.ndarray  # [B, T]
  advantages: np.ndarray  # [B]

  @property
  def useful_tokens(self) -> int:
    """Tokens of prompts and responses that are not padding."""
    return self.prompts.size + int(self.mask.sum())


def batches(
  lengths: Sequence[int],
  *,
  prompt_tokens: int,
  vocab: int,
  pad_to: int | None,
  group: int = GROUP,
  rows: int = GROUP,
) -> list[Batch]:
  """Returns the responses in batches of `rows`, in the order of `lengths`.

  They are padded to `pad_to`, or to the longest of the batch.
  """
  rng = np.random.default_rng(0)
  prompts = rng.integers(1, vocab, (-(-len(lengths) // group), prompt_tokens))
  found = []
  for begin in range(0, len(lengths), rows):
    own = np.array(lengths[begin : begin + rows])
    shape = (len(own), pad_to or int(own.max()))
    mask = np.arange(shape[1]) < own[:, None]
    numbers = np.arange(begin, begin + len(own))
    found.append(
      Batch(
        prompts[numbers // group].astype(np.int32),
        np.where(mask, rng.integers(1, vocab, shape), 0).astype(np.int32),
        mask,
        (-8.3 + 0.05 * rng.standard_normal(shape)).astype(np.float32),
        rng.standard_normal(len(own)).astype(np.float32),
      )
    )
  return found


def asked(question: str) -> list[int]:
  """Returns the lengths of 'ragged N', or of 'sorted N', shortest first."""
  what, _, count = question.partition(' ')
  found = lengths_lib.read(int(count))
  return sorted(found) if what == 'sorted' else found

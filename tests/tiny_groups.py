"""Judged groups whose every number a test chooses."""

from collections.abc import Sequence

import numpy as np

from dapo_jax.data import records
from dapo_jax.rewards import answers

PROMPT_TOKENS = 3


def prompt(number: int) -> records.Prompt:
  """Returns problem `number`, which no other number gives."""
  return records.make_prompt(
    'tiny', [records.Message('user', f'{number}+0=?')], str(number)
  )


def group(
  correct: Sequence[bool | int],
  *,
  ordinal: int = 0,
  lengths: Sequence[int] | None = None,
  overlong: Sequence[float] | None = None,
  finish: Sequence[str] | None = None,
  extracted: Sequence[str] | None = None,
) -> records.Group:
  """Returns a group of the draw `ordinal`; right is +1, wrong -1.

  By default responses have 4 tokens, end with an EOS and are not punished,
  and right ones say the gold answer, wrong ones nothing.
  """
  count = len(correct)
  right = np.array(correct, bool)
  gold = prompt(ordinal).gold
  lengths = lengths or [4] * count
  rng = np.random.default_rng(ordinal)
  draw_tokens = lambda n: rng.integers(2, 61, size=n).astype(np.int32)
  responses = [
    records.Response(
      tokens=draw_tokens(n),
      logp_sampler=-rng.random(n).astype(np.float32),
      finish=f,
      text=f'response {g} to {ordinal}',
    )
    for g, (n, f) in enumerate(
      zip(lengths, finish or ['eos'] * count, strict=True)
    )
  ]
  return records.Group(
    draw=records.Draw(ordinal, 0, prompt(ordinal)),
    prompt_tokens=draw_tokens(PROMPT_TOKENS),
    responses=tuple(responses),
    correct=right,
    correctness=np.where(right, 1.0, -1.0),
    format=np.zeros(len(right)),
    overlong=np.array(overlong or [0.0] * count, np.float64),
    extracted=tuple(
      extracted or [gold if r else answers.NO_ANSWER for r in right]
    ),
  )

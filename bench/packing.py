"""Counts how full the rows of an update are on DAPO's lengths.

    python bench/packing.py [--steps=2]

A rollout step is 16 minibatches of 32 prompts with 16 responses each. Responses
are log-normal with a mean of 3,000 tokens and a sigma of 1, cut to 20,480;
prompts have 300 tokens and a row holds 2,048 + 20,480, each of 32 shards
computing one of a micro-batch. Counted are all computed places of rows, empty
rows included; no times.
"""

import argparse
import math
import os
import pathlib
import statistics
import sys

import numpy as np

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from dapo_jax.training import row_plan  # noqa: E402

_PROMPT, _LONGEST, _MEAN, _SIGMA, _GROUP = 300, 20_480, 3_000, 1.0, 16
_MINIBATCHES, _PROMPTS, _SHARDS, _ROW = 16, 32, 32, 2_048 + 20_480


def main() -> None:
  """Prints a line for prompts that are shared and one for those that aren't."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--steps', type=int, default=2, help='rollout steps (2)')
  args = parser.parse_args()
  rng = np.random.default_rng(0)
  minibatches = [_lengths(rng) for _ in range(_MINIBATCHES * args.steps)]
  tokens = [n.response_tokens for part in minibatches for n in part]
  print(
    f'{len(minibatches)} minibatches of {_PROMPTS * _GROUP} responses of '
    f'{statistics.mean(tokens):.0f} tokens on average, {_SHARDS} row shards'
  )
  print('prompts     real  least  computed tokens a response')
  for shared in (False, True):
    plans = [_plan(part, shared=shared) for part in minibatches]
    computed = sum(p.row_tokens for p in plans)
    real = [p.real_tokens / p.row_tokens for p in plans]
    print(
      f'{"shared" if shared else "own":7}'
      f'{sum(p.real_tokens for p in plans) / computed:9.1%}{min(real):7.1%}'
      f'{computed / len(tokens):10.0f}'
    )


def _lengths(rng: np.random.Generator) -> list[row_plan.Length]:
  """Returns the lengths of a minibatch."""
  mu = math.log(_MEAN) - _SIGMA**2 / 2
  count = _PROMPTS * _GROUP
  tokens = rng.lognormal(mu, _SIGMA, count).round().clip(1, _LONGEST)
  return [
    row_plan.Length(number // _GROUP, _PROMPT, int(n))
    for number, n in enumerate(tokens)
  ]


def _plan(lengths: list[row_plan.Length], *, shared: bool) -> row_plan.Plan:
  return row_plan.plan(
    lengths,
    row_tokens=_ROW,
    micro_batch_rows=_SHARDS,
    share_prompts=shared,
  )


if __name__ == '__main__':
  main()

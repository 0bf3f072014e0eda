"""Counts how full the rows of an update are.

    python bench/packing.py [--steps=2]

On DAPO's lengths: a rollout step is 16 minibatches of 32 prompts with 16
responses each. Responses are log-normal with a mean of 3,000 tokens and a sigma
of 1, cut to 20,480; prompts have 300 tokens and a row holds 2,048 + 20,480,
each of 32 shards computing one of a micro-batch. On the demo's: its prompts,
and for responses the solutions to problems by chance, in its minibatches.

Counted are all computed places of rows, empty rows included; no times.
"""

import argparse
import math
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence

import ml_collections
import numpy as np

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from configs import demo  # noqa: E402
from dapo_jax.training import assemble, layout, row_plan  # noqa: E402

_PROMPT, _LONGEST, _MEAN, _SIGMA, _GROUP = 300, 20_480, 3_000, 1.0, 16
_MINIBATCHES, _PROMPTS, _SHARDS, _ROW = 16, 32, 32, 2_048 + 20_480

Minibatches = Sequence[list[row_plan.Length]]


def main() -> None:
  """Prints lines for prompts that are shared and for those that are not."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--steps', type=int, default=2, help='rollout steps (2)')
  args = parser.parse_args()
  rng = np.random.default_rng(0)
  print('lengths  prompts  responses  tokens each  real  least  computed each')
  count = _MINIBATCHES * args.steps
  _report('dapo', [_dapo(rng) for _ in range(count)], _ROW, _SHARDS)
  config = ml_collections.FrozenConfigDict(demo.get_config())
  _report(
    'demo',
    _demo(rng, config, count=count),
    layout.row_tokens(config),
    config.learner.micro_batch_rows,
  )


def _dapo(rng: np.random.Generator) -> list[row_plan.Length]:
  """Returns the lengths of a minibatch."""
  mu = math.log(_MEAN) - _SIGMA**2 / 2
  tokens = rng.lognormal(mu, _SIGMA, _PROMPTS * _GROUP).round()
  return [
    row_plan.Length(number // _GROUP, _PROMPT, int(n))
    for number, n in enumerate(tokens.clip(1, _LONGEST))
  ]


def _demo(
  rng: np.random.Generator, config: ml_collections.FrozenConfigDict, *, count
) -> Minibatches:
  """Returns the lengths of minibatches of the demo."""
  with tempfile.TemporaryDirectory() as folder:
    parts = assemble.build(config, folder)
  prompts = [len(parts.encode(p)) for p in parts.train_prompts]
  # With the token that ends them.
  solutions = [
    len(parts.tokenizer.encode(p.solution)) + 1 for p in parts.train_prompts
  ]
  group = config.rollout.responses_per_prompt
  return [
    [
      row_plan.Length(number, prompts[chosen], int(rng.choice(solutions)))
      for number, chosen in enumerate(
        rng.choice(len(prompts), config.learner.minibatch_prompts)
      )
      for _ in range(group)
    ]
    for _ in range(count)
  ]


def _report(
  name: str, minibatches: Minibatches, row_tokens: int, rows: int
) -> None:
  tokens = [n.response_tokens for part in minibatches for n in part]
  for shared in (False, True):
    plans = [
      row_plan.plan(
        part,
        row_tokens=row_tokens,
        micro_batch_rows=rows,
        share_prompts=shared,
      )
      for part in minibatches
    ]
    computed = sum(p.row_tokens for p in plans)
    real = sum(p.real_tokens for p in plans) / computed
    least = min(p.real_tokens / p.row_tokens for p in plans)
    print(
      f'{name:7}  {"shared" if shared else "own":7}  {len(tokens):9d}  '
      f'{statistics.mean(tokens):11.0f} {real:5.1%} {least:6.1%} '
      f'{computed / len(tokens):14.1f}'
    )


if __name__ == '__main__':
  main()

"""Tunix's vanilla sampler, on the line that `bench/rollout.py` sends."""

from importlib import metadata

import worker

args = worker.flags()

import numpy as np  # noqa: E402
import tunix_model  # noqa: E402
from tunix.generate import sampler as sampler_lib  # noqa: E402

model = tunix_model.made(args)
rng = np.random.default_rng(0)
prompts = [
  ' '.join(map(str, rng.integers(1, args.vocab, args.prompt)))
  for _ in range(args.batch)
]
sampler = sampler_lib.Sampler(
  model,
  tunix_model.Tokenizer(),
  sampler_lib.CacheConfig(
    cache_size=args.prompt + args.tokens,
    num_layers=args.layers,
    num_kv_heads=args.kv_heads,
    head_dim=args.head_dim,
  ),
)


def go() -> int:
  """Samples one batch, with the log-prob of each token."""
  out = sampler(
    prompts,
    max_generation_steps=args.tokens,
    max_prompt_length=args.prompt,
    temperature=1.0,
    top_p=1.0,
    top_k=None,
    seed=int(rng.integers(1 << 30)),
    eos_tokens=[tunix_model.NEVER],
    return_logprobs=True,
  )
  return sum(len(tokens) for tokens in out.tokens)


worker.serve(
  go,
  {
    'tool': 'tunix',
    'version': metadata.version('google-tunix'),
    'jax': metadata.version('jax'),
    'parameters': tunix_model.parameters(model),
  },
)

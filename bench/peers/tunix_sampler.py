"""Tunix's vanilla sampler, on the line that `bench/rollout.py` sends."""

from importlib import metadata

import worker

args = worker.flags()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.generate import sampler as sampler_lib  # noqa: E402
from tunix.models.qwen3 import model as qwen3  # noqa: E402

_NEVER = 1_000_000  # An end id outside the vocabulary.


class Tokenizer:
  """Ids as text: what Tunix's adapter asks for."""

  def encode(self, text, **_):
    """Returns the ids."""
    return [int(word) for word in text.split()]

  def decode(self, ids, **_):
    """Returns the text."""
    return ' '.join(map(str, ids))

  def bos_id(self):
    """Returns none."""
    return 0  # False, so that none is put before a prompt.

  def eos_id(self):
    """Returns one that never comes."""
    return _NEVER

  def pad_id(self):
    """Returns 0."""
    return 0


model = qwen3.Qwen3(
  qwen3.ModelConfig(
    num_layers=args.layers,
    vocab_size=args.vocab,
    embed_dim=args.embed,
    hidden_dim=args.ffw,
    num_heads=args.heads,
    head_dim=args.head_dim,
    num_kv_heads=args.kv_heads,
    rope_theta=1_000_000,
    norm_eps=1e-6,
    use_tied_embedding=True,
  ),
  rngs=nnx.Rngs(0),
)
# Some matrices begin as zeros: give every one numbers.
weights, tree = jax.tree.flatten(nnx.state(model, nnx.Param))
keys = jax.random.split(jax.random.key(0), len(weights))
weights = [
  0.02 * jax.random.normal(key, w.shape, w.dtype) if w.ndim > 1 else w
  for key, w in zip(keys, weights, strict=True)
]
nnx.update(model, jax.tree.unflatten(tree, weights))
rng = np.random.default_rng(0)
prompts = [
  ' '.join(map(str, rng.integers(1, args.vocab, args.prompt)))
  for _ in range(args.batch)
]
sampler = sampler_lib.Sampler(
  model,
  Tokenizer(),
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
    eos_tokens=[_NEVER],
    return_logprobs=True,
  )
  return sum(len(tokens) for tokens in out.tokens)


worker.serve(
  go,
  {
    'tool': 'tunix',
    'version': metadata.version('google-tunix'),
    'jax': metadata.version('jax'),
    'parameters': sum(w.size for w in weights),
  },
)

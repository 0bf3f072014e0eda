"""What Tunix is measured with: a model of random weights, and a tokenizer."""

import argparse

import jax
from flax import nnx
from tunix.models.qwen3 import model as qwen3

NEVER = 1_000_000  # An end id outside the vocabulary.


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
    return NEVER

  def pad_id(self):
    """Returns 0."""
    return 0


def made(args: argparse.Namespace) -> qwen3.Qwen3:
  """Returns a model of this shape."""
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
  return model


def parameters(model: qwen3.Qwen3) -> int:
  """Returns how many numbers the model has."""
  return sum(w.size for w in jax.tree.leaves(nnx.state(model, nnx.Param)))

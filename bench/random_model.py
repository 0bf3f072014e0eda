"""What this package is measured with where no model is given."""

import argparse
from typing import NamedTuple

from dapo_jax.model import decoder
from dapo_jax.model import spec as spec_lib


class NoTokenizer(NamedTuple):
  """An end id that never comes is all that an engine asks for."""

  eos_ids: tuple[int, ...] = (1_000_000,)


def made(args: argparse.Namespace) -> decoder.Abstract:
  """Returns a model of this shape, for random weights."""
  spec = spec_lib.Spec(
    vocab_size=args.vocab,
    vocab_rows=args.vocab,
    layers=args.layers,
    embed_dim=args.embed,
    heads=args.heads,
    kv_heads=args.kv_heads,
    head_dim=args.head_dim,
    ffw_dim=args.ffw,
    qkv_bias=False,
    qk_norm=True,
    tied_head=True,
    rope_theta=1e6,
    norm_eps=1e-6,
    init_std=0.02,
    context_tokens=4096,
  )
  return decoder.abstract(spec, compute_dtype='float32', remat='none')

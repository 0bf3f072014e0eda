"""Decoders small enough for tests, in which no weight is zero or one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dapo_jax.model import decoder, row_layout
from dapo_jax.model import spec as spec_lib

_SPEC = spec_lib.Spec(
  vocab_size=61,
  vocab_rows=61,
  layers=2,
  embed_dim=32,
  heads=4,
  kv_heads=2,
  # Not embed_dim / heads, so that no two axes can be mistaken.
  head_dim=12,
  ffw_dim=40,
  qkv_bias=True,
  tied_head=True,
  rope_theta=5000.0,
  norm_eps=1e-6,
  init_std=0.02,
  context_tokens=8192,
)

# What makes it another family; of Llama's six frequencies, a scaling around
# 64 tokens keeps one, changes one in part and four in full.
FAMILIES = {
  'qwen2': {},
  'qwen3': dict(architecture='Qwen3ForCausalLM', qkv_bias=False, qk_norm=True),
  'llama': dict(
    architecture='LlamaForCausalLM',
    qkv_bias=False,
    tied_head=False,
    rope_scaling=spec_lib.RopeScaling(
      factor=8.0,
      low_freq_factor=1.0,
      high_freq_factor=4.0,
      original_context_tokens=64,
    ),
  ),
  'smollm2': dict(
    architecture='LlamaForCausalLM',
    qkv_bias=False,
    embed_dim=36,
    heads=3,
    kv_heads=1,
    norm_eps=1e-5,
  ),
  'mistral': dict(
    architecture='MistralForCausalLM',
    qkv_bias=False,
    tied_head=False,
    window_tokens=24,
  ),
}


def spec(**changes) -> spec_lib.Spec:
  """Returns the spec of a decoder of 30,000 parameters."""
  return dataclasses.replace(_SPEC, **changes)


def model(
  *,
  compute_dtype: str = 'float32',
  remat: str = 'none',
  rows: row_layout.RowLayout = row_layout.RowLayout(),  # noqa: B008
  **changes,
) -> decoder.Abstract:
  """Returns the decoder of this spec."""
  return decoder.abstract(
    spec(**changes), compute_dtype=compute_dtype, remat=remat, rows=rows
  )


def params(model: decoder.Abstract, *, seed: int = 0) -> decoder.Params:
  """Returns weights that give logits of deviation about 1, biases included."""
  rng = np.random.default_rng(seed)

  def draw(path, shape):
    noise = rng.standard_normal(shape.shape)
    name = path[-1].key
    if name.endswith('norm'):
      return jnp.asarray(1 + 0.2 * noise, jnp.float32)
    std = 0.5 if name.endswith('bias') else 0.15
    return jnp.asarray(std * noise, jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, model.shapes)


def module(model: decoder.Abstract, params: decoder.Params) -> decoder.Decoder:
  """Returns the two made one."""
  return nnx.merge(model.graphdef, params)


def hidden(model, params, tokens, *, positions=None, segment_ids=None):
  """Returns the hidden states of rows; by default each is one sequence."""
  tokens = jnp.asarray(tokens)
  if positions is None:
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
  if segment_ids is None:
    segment_ids = np.ones(tokens.shape, np.int32)
  return _hidden(
    model.graphdef,
    params,
    tokens,
    jnp.asarray(positions, jnp.int32),
    jnp.asarray(segment_ids, jnp.int32),
  )


# Compiled once for all tests of a shape: equal graphdefs are one static value.
@functools.partial(jax.jit, static_argnums=0)
def _hidden(graphdef, params, tokens, positions, segment_ids):
  module = nnx.merge(graphdef, params)
  return module(tokens, positions=positions, segment_ids=segment_ids)

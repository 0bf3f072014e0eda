"""The shape of a decoder: one frozen record, read from a config."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Spec:
  """Everything that decides a decoder's parameters and arithmetic.

  Attributes:
    vocab_size: tokens that exist; only they can be sampled.
    vocab_rows: rows of the embedding, `>= vocab_size` (checkpoints pad them).
    layers: L.
    embed_dim: D, width of the residual stream.
    heads: N, query heads.
    kv_heads: K, key and value heads; divides `heads`.
    head_dim: H.
    ffw_dim: F.
    qkv_bias: whether the query, key and value projections have a bias.
    tied_head: whether the output head is the embedding.
    rope_theta: base of the rotary frequencies.
    norm_eps: epsilon of the RMS norms.
    init_std: standard deviation of random weights.
    context_tokens: longest sequence the model was built for, [tokens].
  """

  vocab_size: int
  vocab_rows: int
  layers: int
  embed_dim: int
  heads: int
  kv_heads: int
  head_dim: int
  ffw_dim: int
  qkv_bias: bool
  tied_head: bool
  rope_theta: float
  norm_eps: float
  init_std: float
  context_tokens: int


def qwen2(config: Mapping[str, Any]) -> Spec:
  """Returns the spec of a Qwen2 or Qwen2.5 `config.json`.

  Raises:
    ValueError: where the config asks for something this decoder lacks.
  """
  if config.get('use_sliding_window', False):
    raise ValueError(
      'sliding-window attention (use_sliding_window) is not supported'
    )
  # Newer configs say rope_parameters, older ones rope_scaling; there the kind
  # is called rope_type or type.
  rope = config.get('rope_parameters') or {}
  for scaling in (rope, config.get('rope_scaling') or {}):
    kind = scaling.get('rope_type') or scaling.get('type') or 'default'
    if kind != 'default':
      raise ValueError(f'rope scaling {kind!r} is not supported')
  activation = config.get('hidden_act', 'silu')
  if activation != 'silu':
    raise ValueError(f'hidden_act {activation!r} is not supported, only silu')
  heads = config['num_attention_heads']
  return Spec(
    vocab_size=config['vocab_size'],
    vocab_rows=config['vocab_size'],
    layers=config['num_hidden_layers'],
    embed_dim=config['hidden_size'],
    heads=heads,
    kv_heads=config.get('num_key_value_heads') or heads,
    head_dim=config.get('head_dim') or config['hidden_size'] // heads,
    ffw_dim=config['intermediate_size'],
    qkv_bias=True,
    tied_head=config.get('tie_word_embeddings', False),
    rope_theta=rope.get('rope_theta') or config.get('rope_theta', 10_000.0),
    norm_eps=config.get('rms_norm_eps', 1e-6),
    init_std=config.get('initializer_range', 0.02),
    context_tokens=config.get('max_position_embeddings', 32_768),
  )


ARCHITECTURES = {'Qwen2ForCausalLM': qwen2}


def from_hf(config: Mapping[str, Any]) -> Spec:
  """Returns the spec of a Hugging Face `config.json`, by its architecture.

  Raises:
    ValueError: for an architecture that is not supported; lists those that
      are.
  """
  names = config.get('architectures') or ['none']
  if names[0] not in ARCHITECTURES:
    raise ValueError(
      f'architecture {names[0]} is not supported; supported: '
      f'{", ".join(sorted(ARCHITECTURES))}'
    )
  return ARCHITECTURES[names[0]](config)


def to_hf(spec: Spec, *, eos_ids: tuple[int, ...]) -> dict[str, Any]:
  """Returns the `config.json` of a spec, as `from_hf` reads it."""
  return {
    'architectures': ['Qwen2ForCausalLM'],
    'model_type': 'qwen2',
    'vocab_size': spec.vocab_rows,
    'hidden_size': spec.embed_dim,
    'intermediate_size': spec.ffw_dim,
    'num_hidden_layers': spec.layers,
    'num_attention_heads': spec.heads,
    'num_key_value_heads': spec.kv_heads,
    'head_dim': spec.head_dim,
    'hidden_act': 'silu',
    'max_position_embeddings': spec.context_tokens,
    'rope_theta': spec.rope_theta,
    'rms_norm_eps': spec.norm_eps,
    'initializer_range': spec.init_std,
    'tie_word_embeddings': spec.tied_head,
    'use_sliding_window': False,
    'eos_token_id': list(eos_ids),
    'torch_dtype': 'float32',
  }

"""The shape of a decoder: one frozen record, read from a config."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How Llama 3 stretches its rotary frequencies; `rope` has the equation.

  Attributes:
    factor: what the low frequencies are divided by.
    low_freq_factor: turns within the original context up to which a frequency
      is low.
    high_freq_factor: turns from which it is high, and kept as it is.
    original_context_tokens: context before the stretching, [tokens].
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_context_tokens: int


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
    qk_norm: whether each head's queries and keys pass an RMS norm.
    rope_scaling: how the rotary frequencies are stretched, if they are.
    window_tokens: how many tokens one attends to, itself included, [tokens];
      None = all before it.
    architecture: what Hugging Face calls it; decides the export's config.
    value_head: whether it also estimates values: a critic, or a policy that
      shares its layers with one.
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
  qk_norm: bool = False
  rope_scaling: RopeScaling | None = None
  window_tokens: int | None = None
  architecture: str = 'Qwen2ForCausalLM'
  value_head: bool = False


def qwen2(config: Mapping[str, Any]) -> Spec:
  """Returns the spec of a Qwen2 or Qwen2.5 `config.json`."""
  return dataclasses.replace(_dense(config), qkv_bias=True)


def qwen3(config: Mapping[str, Any]) -> Spec:
  """Returns the spec of a dense Qwen3 `config.json`."""
  return dataclasses.replace(_dense({'head_dim': 128, **config}), qk_norm=True)


def llama(config: Mapping[str, Any]) -> Spec:
  """Returns the spec of a Llama `config.json`; SmolLM2 is a Llama."""
  return _dense({'max_position_embeddings': 2048, **config})


def mistral(config: Mapping[str, Any]) -> Spec:
  """Returns the spec of a Mistral `config.json`.

  A config without `sliding_window` has a window; one where it is null has
  none.
  """
  defaults = {'sliding_window': 4096, 'max_position_embeddings': 131_072}
  config = {**defaults, **config}
  return dataclasses.replace(
    _dense(config), window_tokens=config['sliding_window']
  )


ARCHITECTURES = {
  'LlamaForCausalLM': llama,
  'MistralForCausalLM': mistral,
  'Qwen2ForCausalLM': qwen2,
  'Qwen3ForCausalLM': qwen3,
}

# What a config of each says beside the shape; another value is refused.
_ALL_SAY = {'hidden_act': 'silu'}
_SAYS = {
  'LlamaForCausalLM': {
    'model_type': 'llama',
    'attention_bias': False,
    'mlp_bias': False,
  },
  'MistralForCausalLM': {'model_type': 'mistral'},
  'Qwen2ForCausalLM': {'model_type': 'qwen2', 'use_sliding_window': False},
  'Qwen3ForCausalLM': {
    'model_type': 'qwen3',
    'attention_bias': False,
    'use_sliding_window': False,
  },
}

_NEEDED = (
  'vocab_size',
  'num_hidden_layers',
  'hidden_size',
  'num_attention_heads',
  'intermediate_size',
)
_SCALING_KEYS = {
  'factor': 'factor',
  'low_freq_factor': 'low_freq_factor',
  'high_freq_factor': 'high_freq_factor',
  'original_max_position_embeddings': 'original_context_tokens',
}


def from_hf(config: Mapping[str, Any]) -> Spec:
  """Returns the spec of a Hugging Face `config.json`, by its architecture.

  Raises:
    ValueError: for an architecture that is not supported; lists those that
      are. Where the config asks for something this decoder lacks, or does not
      say what is needed.
  """
  name = (config.get('architectures') or ['none'])[0]
  if name not in ARCHITECTURES:
    raise ValueError(
      f'architecture {name} is not supported; supported: '
      f'{", ".join(sorted(ARCHITECTURES))}'
    )
  for key, only in (_ALL_SAY | _SAYS[name]).items():
    if config.get(key, only) != only:
      raise ValueError(
        f'{key} {config[key]!r} is not supported in {name}, only {only!r}'
      )
  kinds = {*(config.get('layer_types') or ())} - {'full_attention'}
  if kinds:
    raise ValueError(f'layer_types {sorted(kinds)} are not supported')
  return ARCHITECTURES[name](config)


def to_hf(spec: Spec, *, eos_ids: tuple[int, ...]) -> dict[str, Any]:
  """Returns the `config.json` of a spec, as `from_hf` reads it.

  All rows of the vocabulary are its `vocab_size`.

  Raises:
    ValueError: where a config of this architecture can't say what the spec
      does.
  """
  scaling = None
  if spec.rope_scaling is not None:
    ours = dataclasses.asdict(spec.rope_scaling)
    theirs = {key: ours[name] for key, name in _SCALING_KEYS.items()}
    scaling = {'rope_type': 'llama3'} | theirs
  config = {
    'architectures': [spec.architecture],
    'vocab_size': spec.vocab_rows,
    'hidden_size': spec.embed_dim,
    'intermediate_size': spec.ffw_dim,
    'num_hidden_layers': spec.layers,
    'num_attention_heads': spec.heads,
    'num_key_value_heads': spec.kv_heads,
    'head_dim': spec.head_dim,
    'max_position_embeddings': spec.context_tokens,
    'rope_theta': spec.rope_theta,
    'rope_scaling': scaling,
    'rms_norm_eps': spec.norm_eps,
    'initializer_range': spec.init_std,
    'tie_word_embeddings': spec.tied_head,
    'eos_token_id': list(eos_ids),
    'torch_dtype': 'float32',
  }
  config |= _ALL_SAY | _SAYS.get(spec.architecture, {})
  if spec.architecture == 'MistralForCausalLM':
    config['sliding_window'] = spec.window_tokens
  read = dataclasses.replace(from_hf(config), vocab_size=spec.vocab_size)
  lost = [
    f'{field.name}={getattr(spec, field.name)}'
    for field in dataclasses.fields(Spec)
    if getattr(spec, field.name) != getattr(read, field.name)
  ]
  if lost:
    raise ValueError(
      f"a config of {spec.architecture} can't say {', '.join(lost)}"
    )
  return config


def _dense(config: Mapping[str, Any]) -> Spec:
  """Returns what all families say alike: no biases, no norms, no window."""
  lacking = [key for key in _NEEDED if key not in config]
  if lacking:
    raise ValueError(f'the config lacks {", ".join(lacking)}')
  heads = config['num_attention_heads']
  theta, scaling = _rope(config)
  return Spec(
    vocab_size=config['vocab_size'],
    vocab_rows=config['vocab_size'],
    layers=config['num_hidden_layers'],
    embed_dim=config['hidden_size'],
    heads=heads,
    kv_heads=config.get('num_key_value_heads') or heads,
    head_dim=config.get('head_dim') or config['hidden_size'] // heads,
    ffw_dim=config['intermediate_size'],
    qkv_bias=False,
    tied_head=bool(config.get('tie_word_embeddings', False)),
    rope_theta=theta,
    norm_eps=float(config.get('rms_norm_eps', 1e-6)),
    init_std=float(config.get('initializer_range', 0.02)),
    context_tokens=config.get('max_position_embeddings', 32_768),
    rope_scaling=scaling,
    architecture=config['architectures'][0],
  )


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
  """Returns the base of the rotary frequencies and how they are stretched."""
  # Newer configs say rope_parameters and have the base in there, older ones
  # rope_scaling; the kind is called rope_type or type.
  rope = config.get('rope_scaling') or config.get('rope_parameters') or {}
  theta = rope.get('rope_theta') or config.get('rope_theta') or 10_000.0
  turned = rope.get('partial_rotary_factor') or config.get(
    'partial_rotary_factor'
  )
  if turned not in (None, 1.0):
    raise ValueError(f'partial_rotary_factor {turned} is not supported, only 1')
  kind = rope.get('rope_type') or rope.get('type') or 'default'
  if kind == 'default':
    return float(theta), None
  if kind != 'llama3':
    raise ValueError(
      f'rope scaling {kind!r} is not supported; supported: default, llama3'
    )
  lacking = [key for key in _SCALING_KEYS if key not in rope]
  if lacking:
    raise ValueError(f'rope scaling {kind!r} lacks {", ".join(lacking)}')
  scaling = RopeScaling(
    factor=float(rope['factor']),
    low_freq_factor=float(rope['low_freq_factor']),
    high_freq_factor=float(rope['high_freq_factor']),
    original_context_tokens=rope['original_max_position_embeddings'],
  )
  if scaling.low_freq_factor >= scaling.high_freq_factor:
    raise ValueError(
      f'low_freq_factor ({scaling.low_freq_factor}) must be below '
      f'high_freq_factor ({scaling.high_freq_factor})'
    )
  return float(theta), scaling

"""A Llama-like model in a GGUF file, made a Hugging Face folder.

GGUF is the format of llama.cpp: weights in blocks of a few bits, each with a
scale, and metadata. The folder is what `hf_weights` loads.
"""

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
from jaxtyping import Float

from dapo_jax.data import gguf_tokenizer

# What the tensors outside of the blocks, and those of a block, are called in
# the one and in the other.
_OUTER = {
  'token_embd': 'model.embed_tokens',
  'output_norm': 'model.norm',
  'output': 'lm_head',
}
_INNER = {
  'attn_norm': 'input_layernorm',
  'attn_q': 'self_attn.q_proj',
  'attn_k': 'self_attn.k_proj',
  'attn_v': 'self_attn.v_proj',
  'attn_output': 'self_attn.o_proj',
  'ffn_norm': 'post_attention_layernorm',
  'ffn_gate': 'mlp.gate_proj',
  'ffn_up': 'mlp.up_proj',
  'ffn_down': 'mlp.down_proj',
}
Tensors = Iterable[tuple[str, Float[np.ndarray, '...']]]


def read(path: str | os.PathLike) -> tuple[dict[str, Any], Tensors]:
  """Returns the metadata of a GGUF file and its tensors, one at a time.

  Raises:
    ValueError: where the library that reads it is not installed.
  """
  try:
    import gguf
  except ImportError as error:
    raise ValueError(
      'a GGUF file is read with the package gguf, which is not installed; '
      "pip install 'dapo-jax[smollm2]'"
    ) from error
  reader = gguf.GGUFReader(path)
  fields = {name: field.contents() for name, field in reader.fields.items()}
  tensors = (
    (
      tensor.name,
      gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32),
    )
    for tensor in reader.tensors
  )
  return fields, tensors


def write_folder(
  fields: Mapping[str, Any], tensors: Tensors, folder: str | os.PathLike
) -> None:
  """Writes a Hugging Face folder with bfloat16 weights and the tokenizer.

  Args:
    fields: the metadata, as `read` gives it.
    tensors: names and float32 values, as `read` gives them.
    folder: made where it does not exist.

  Raises:
    ValueError: for another architecture, another tokenizer, or a tensor that
      such a model does not have.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  if fields['general.architecture'] != 'llama':
    raise ValueError(
      f'the GGUF architecture {fields["general.architecture"]!r} is not '
      "supported, only 'llama'"
    )
  heads = {
    'attn_q': fields['llama.attention.head_count'],
    'attn_k': fields['llama.attention.head_count_kv'],
  }
  weights = {}
  for name, values in tensors:
    ours, kind = _hf_name(name), name.split('.')[-2]
    if kind in heads:
      values = halves_from_pairs(values, heads=heads[kind])
    weights[ours] = np.ascontiguousarray(values.astype(ml_dtypes.bfloat16))
  safetensors.numpy.save_file(
    weights, folder / 'model.safetensors', metadata={'format': 'pt'}
  )
  # save_file lets only the owner read.
  (folder / 'model.safetensors').chmod(0o644)
  config = _config(fields, tied_head='lm_head.weight' not in weights)
  ends = {key: config[key] for key in _TOKEN_IDS}
  for name, content in (
    ('config.json', config),
    ('generation_config.json', ends),
  ):
    (folder / name).write_text(json.dumps(content, indent=2) + '\n')
  gguf_tokenizer.write(fields, folder)


def halves_from_pairs(
  weight: Float[np.ndarray, 'NH D'], *, heads: int
) -> Float[np.ndarray, 'NH D']:
  """Returns a query or key projection with its rows in Hugging Face's order.

  A rotary embedding turns pairs of a head's outputs. llama.cpp stores the two
  of a pair side by side, Hugging Face half a head apart: row 2i + j of a head
  of size H becomes row i + j H/2.
  """
  rows, columns = weight.shape
  pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
  return pairs.swapaxes(1, 2).reshape(weight.shape)


_TOKEN_IDS = {
  'bos_token_id': 'tokenizer.ggml.bos_token_id',
  'eos_token_id': 'tokenizer.ggml.eos_token_id',
  'pad_token_id': 'tokenizer.ggml.padding_token_id',
}


def _hf_name(name: str) -> str:
  """Returns what Hugging Face calls a tensor of GGUF."""
  match name.split('.'):
    case [outer, 'weight'] if outer in _OUTER:
      return f'{_OUTER[outer]}.weight'
    case ['blk', layer, inner, 'weight'] if inner in _INNER:
      return f'model.layers.{layer}.{_INNER[inner]}.weight'
  raise ValueError(f'the GGUF file has {name}, which is no weight of a Llama')


def _config(fields: Mapping[str, Any], *, tied_head: bool) -> dict[str, Any]:
  """Returns config.json."""
  f = {name.removeprefix('llama.'): value for name, value in fields.items()}
  embed_dim, heads = f['embedding_length'], f['attention.head_count']
  return {
    'architectures': ['LlamaForCausalLM'],
    'model_type': 'llama',
    'vocab_size': f['vocab_size'],
    'hidden_size': embed_dim,
    'intermediate_size': f['feed_forward_length'],
    'num_hidden_layers': f['block_count'],
    'num_attention_heads': heads,
    'num_key_value_heads': f['attention.head_count_kv'],
    'head_dim': embed_dim // heads,
    'hidden_act': 'silu',
    'max_position_embeddings': f['context_length'],
    'rope_theta': f['rope.freq_base'],
    'rms_norm_eps': _decimal(f['attention.layer_norm_rms_epsilon']),
    'attention_bias': False,
    'mlp_bias': False,
    'tie_word_embeddings': tied_head,
    'torch_dtype': 'bfloat16',
    **{ours: fields[theirs] for ours, theirs in _TOKEN_IDS.items()},
  }


def _decimal(value: float) -> float:
  """Returns the number that was written when a float32 was stored: 1e-5."""
  return float(str(np.float32(value)))

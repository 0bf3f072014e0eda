"""The shape of the model that a configuration names, without its weights."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging
from ml_collections import FrozenConfigDict

from dapo_jax.data import tokenizers
from dapo_jax.model import hf_weights
from dapo_jax.model import spec as spec_lib
from dapo_jax.training import layout

# What the `config.json` of the papers' models says, so that a plan of them
# needs no download: published with the models on the Hugging Face hub.
_QWEN = {
  'architectures': ['Qwen2ForCausalLM'],
  'vocab_size': 151_936,
  'rope_theta': 1_000_000.0,
  'rms_norm_eps': 1e-6,
}
_TIED = {'tie_word_embeddings': True}
_MATH = {'rope_theta': 10_000.0, 'max_position_embeddings': 4096}


def _qwen(
  layers: int, embed: int, heads: int, kv_heads: int, ffw: int
) -> dict[str, Any]:
  return _QWEN | {
    'num_hidden_layers': layers,
    'hidden_size': embed,
    'num_attention_heads': heads,
    'num_key_value_heads': kv_heads,
    'intermediate_size': ffw,
  }


_1P5B = _qwen(28, 1536, 12, 2, 8960) | _TIED
_7B = _qwen(28, 3584, 28, 4, 18_944) | {'vocab_size': 152_064}
_LARGE = {
  'vocab_size': 152_064,
  'max_position_embeddings': 131_072,
  'rms_norm_eps': 1e-5,
}
KNOWN: Mapping[str, Mapping[str, Any]] = {
  'Qwen/Qwen2.5-Math-1.5B': _1P5B | _MATH,
  'Qwen/Qwen2.5-Math-1.5B-Instruct': _1P5B | _MATH,
  'Qwen/Qwen2.5-1.5B': _1P5B | {'max_position_embeddings': 131_072},
  'Qwen/Qwen2.5-3B': _qwen(36, 2048, 16, 2, 11_008) | _TIED,
  'Qwen/Qwen2.5-Math-7B': _7B | _MATH,
  'Qwen/Qwen2.5-7B': _7B | {'max_position_embeddings': 131_072},
  'Qwen/Qwen2.5-14B': _qwen(48, 5120, 40, 8, 13_824) | _LARGE,
  'Qwen/Qwen2.5-32B': _qwen(64, 5120, 40, 8, 27_648) | _LARGE,
}


def spec(config: FrozenConfigDict) -> spec_lib.Spec:
  """Returns the spec of the model that `model.path` names.

  Its vocabulary has as many tokens as rows: what is compiled does not depend
  on which of them exist. Of a folder only `config.json` is read; of random
  weights the vocabulary is the tokenizer's, or as large as one may be that is
  trained on the spot.

  A folder that is not here is known by its name, which is told.

  Raises:
    ValueError: the model is neither a folder here nor one that is known.
  """
  path = config.model.path
  if not path:
    return layout.random_spec(config, _vocab_size(config))
  if pathlib.Path(path, 'config.json').is_file():
    return spec_lib.from_hf(hf_weights.read_config(path))
  # A folder that is only on the machines has the name of its model.
  is_absent = not os.path.exists(path)
  last = pathlib.PurePath(path).name
  for name, known in KNOWN.items():
    if path == name or (is_absent and last == name.partition('/')[2]):
      if path != name:
        logging.warning('%s is not here; it is taken for %s', path, name)
      return spec_lib.from_hf(known)
  raise ValueError(
    f'model.path ({path}) must be a folder with a config.json or one of '
    f'{", ".join(KNOWN)}; nothing is downloaded for a plan; change '
    '--config.model.path'
  )


def _vocab_size(config: FrozenConfigDict) -> int:
  path = config.tokenizer.path
  if path and os.path.exists(path):
    return tokenizers.load(path).vocab_size
  return config.tokenizer.vocab_size

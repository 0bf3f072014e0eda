"""The tokenizer that a GGUF file holds, as the files of a Hugging Face folder.

Host only. The file's `tokenizer.*` metadata has the pieces and the merges of
a byte-level tokenizer, but only a name for the rules by which a text is first
cut; a name that is not known here is refused, for a text cut otherwise has
other ids.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tokenizers as hf_tokenizers
from tokenizers import pre_tokenizers

_SPECIAL = 3  # GGUF's type of a control token
# The special tokens by the names that Hugging Face and GGUF have for them.
_KINDS = {'bos': 'bos', 'eos': 'eos', 'unk': 'unknown', 'pad': 'padding'}


def write(fields: Mapping[str, Any], folder: str | pathlib.Path) -> None:
  """Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json.

  The chat template goes into tokenizer_config.json where there is one.

  Args:
    fields: the metadata of a GGUF file.
    folder: exists.

  Raises:
    ValueError: for a tokenizer of a kind that is not supported.
  """
  folder = pathlib.Path(folder)
  pieces = fields['tokenizer.ggml.tokens']
  _tokenizer(fields).save(str(folder / 'tokenizer.json'))
  special = {
    f'{ours}_token': pieces[fields[f'tokenizer.ggml.{theirs}_token_id']]
    for ours, theirs in _KINDS.items()
    if f'tokenizer.ggml.{theirs}_token_id' in fields
  }
  config = special | {
    'add_prefix_space': False,
    'clean_up_tokenization_spaces': False,
    'model_max_length': fields['llama.context_length'],
    # The class that takes tokenizer.json as it is; those named for a model
    # put its cutting rules in the place of the file's.
    'tokenizer_class': 'PreTrainedTokenizerFast',
  }
  if 'tokenizer.chat_template' in fields:
    config['chat_template'] = fields['tokenizer.chat_template']
  for name, content in (
    ('tokenizer_config.json', config),
    ('special_tokens_map.json', special),
  ):
    (folder / name).write_text(json.dumps(content, indent=2) + '\n', 'utf-8')


def _tokenizer(fields: Mapping[str, Any]) -> hf_tokenizers.Tokenizer:
  model, rules = fields['tokenizer.ggml.model'], fields['tokenizer.ggml.pre']
  if (model, rules) != ('gpt2', 'smollm'):
    raise ValueError(
      f'a GGUF tokenizer of the model {model!r} cut by the rules {rules!r} is '
      "not supported, only of the model 'gpt2' by the rules 'smollm'"
    )
  pieces = fields['tokenizer.ggml.tokens']
  tokenizer = hf_tokenizers.Tokenizer(
    hf_tokenizers.models.BPE(
      vocab={piece: i for i, piece in enumerate(pieces)},
      merges=[tuple(m.split(' ')) for m in fields['tokenizer.ggml.merges']],
    )
  )
  # Digits first, every one by itself: the byte-level rules alone would take
  # a space or a line break into the piece before a number.
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
  )
  tokenizer.decoder = hf_tokenizers.decoders.ByteLevel()
  kinds = fields['tokenizer.ggml.token_type']
  tokenizer.add_special_tokens(
    [
      hf_tokenizers.AddedToken(piece, special=True, normalized=False)
      for piece, kind in zip(pieces, kinds, strict=True)
      if kind == _SPECIAL
    ]
  )
  return tokenizer

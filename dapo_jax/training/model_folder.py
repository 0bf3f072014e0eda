"""A folder that holds a whole model: config, tokenizer and weights.

It is a Hugging Face folder, or the same with an Orbax checkpoint of the
parameters in the place of safetensors: that loads in parallel on many hosts.
"""

import dataclasses
import os
import pathlib
import shutil
from typing import Any

from dapo_jax.data import tokenizers
from dapo_jax.model import decoder, hf_weights, orbax_weights
from dapo_jax.model import spec as spec_lib

FORMATS = ('hf', 'orbax')


def spec(
  folder: str | os.PathLike, tokenizer: tokenizers.Tokenizer
) -> spec_lib.Spec:
  """Returns the spec of the model in a folder for this tokenizer.

  Raises:
    ValueError: when the model is of a kind that is not supported, or the
      tokenizer has more tokens than it has rows.
  """
  config = hf_weights.read_config(folder)
  try:
    found = spec_lib.from_hf(config)
  except ValueError as error:
    raise ValueError(
      f'{folder}: {error}; change --config.model.path'
    ) from error
  if tokenizer.vocab_size > found.vocab_rows:
    raise ValueError(
      f'the tokenizer has {tokenizer.vocab_size} tokens, the embedding of the '
      f'model in {folder} {found.vocab_rows} rows; change '
      '--config.tokenizer.path or --config.model.path'
    )
  return dataclasses.replace(found, vocab_size=tokenizer.vocab_size)


def load(
  folder: str | os.PathLike, model: decoder.Abstract, *, shardings: Any
) -> decoder.Params:
  """Returns the float32 parameters in a folder, placed.

  Raises:
    ValueError: where they are not those of the model.
  """
  weights = orbax_weights if orbax_weights.is_there(folder) else hf_weights
  return weights.load(folder, model, shardings=shardings)


def save(
  folder: str | os.PathLike,
  model: decoder.Abstract,
  params: decoder.Params,
  *,
  tokenizer: tokenizers.Tokenizer,
  layout: str = 'hf',
  dtype: str = 'float32',
  max_file_bytes: int = hf_weights.MAX_FILE_BYTES,
  is_writer: bool = True,
) -> None:
  """Writes a folder in the place of what is there; complete or absent.

  Args:
    folder: the folder.
    model: whose parameters these are.
    params: the parameters; where other processes have parts of them, all of
      them call this.
    tokenizer: of the model; all files that it came with are kept.
    layout: one of `FORMATS`.
    dtype: of the weights, see `hf_weights.save`; Orbax keeps float32.
    max_file_bytes: most bytes of tensors in a safetensors file.
    is_writer: whether this process writes, in the layout 'hf'.
  """
  if not is_writer:
    hf_weights.give(model, params)
    return
  folder = pathlib.Path(folder)
  half = folder.with_name(folder.name + '.half')
  shutil.rmtree(half, ignore_errors=True)
  eos_ids = tuple(tokenizer.eos_ids)
  if layout == 'orbax':
    hf_weights.save_config(half, model.spec, eos_ids=eos_ids)
    orbax_weights.save(half, params)
  else:
    hf_weights.save(
      half,
      model,
      params,
      eos_ids=eos_ids,
      dtype=dtype,
      max_file_bytes=max_file_bytes,
    )
  tokenizers.save(tokenizer, half)
  shutil.rmtree(folder, ignore_errors=True)
  half.rename(folder)

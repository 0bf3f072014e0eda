"""A decoder's weights as a Hugging Face folder: config.json and safetensors.

One table says what each of our leaves is called there and how its axes lie;
loading and saving both read it, so they cannot drift apart.
"""

import contextlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util
from jaxtyping import Array, Float

from dapo_jax.model import decoder
from dapo_jax.model import spec as spec_lib

# Our leaf: the tensor's name there, and its axes, outermost first, in the
# letters below; 'NH' is one axis, the product of two of ours.
_TABLE = {
  'embedding': ('model.embed_tokens.weight', 'V D'),
  'block/attention_norm': ('model.layers.{}.input_layernorm.weight', 'D'),
  'block/q': ('model.layers.{}.self_attn.q_proj.weight', 'NH D'),
  'block/q_bias': ('model.layers.{}.self_attn.q_proj.bias', 'NH'),
  'block/k': ('model.layers.{}.self_attn.k_proj.weight', 'KH D'),
  'block/k_bias': ('model.layers.{}.self_attn.k_proj.bias', 'KH'),
  'block/v': ('model.layers.{}.self_attn.v_proj.weight', 'KH D'),
  'block/v_bias': ('model.layers.{}.self_attn.v_proj.bias', 'KH'),
  'block/q_norm': ('model.layers.{}.self_attn.q_norm.weight', 'H'),
  'block/k_norm': ('model.layers.{}.self_attn.k_norm.weight', 'H'),
  'block/out': ('model.layers.{}.self_attn.o_proj.weight', 'D NH'),
  'block/ffw_norm': ('model.layers.{}.post_attention_layernorm.weight', 'D'),
  'block/gate': ('model.layers.{}.mlp.gate_proj.weight', 'F D'),
  'block/up': ('model.layers.{}.mlp.up_proj.weight', 'F D'),
  'block/down': ('model.layers.{}.mlp.down_proj.weight', 'D F'),
  'final_norm': ('model.norm.weight', 'D'),
  'head': ('lm_head.weight', 'V D'),
}
_AXES = ('layers', 'vocab', 'embed', 'heads', 'kv_heads', 'head_dim', 'ffw')
_LETTER = dict(zip(_AXES, 'LVDNKHF', strict=True))

_CONFIG = 'config.json'
_GENERATION = 'generation_config.json'
_SINGLE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_READABLE = ('F32', 'BF16', 'F16')
_WRITABLE = {'float32': np.float32, 'bfloat16': ml_dtypes.bfloat16}


class _Leaf(NamedTuple):
  """One of our leaves and the tensors it is made of."""

  shape: tuple[int, ...]  # of our leaf
  stacked: bool  # one tensor a layer, on a leading axis of our leaf
  names: tuple[str, ...]  # of the tensors, in order of the layers
  tensor_shape: tuple[int, ...]
  split: tuple[int, ...]  # tensor_shape with joined axes taken apart
  order: tuple[int, ...]  # for each of our axes, which of split it is

  def from_tensor(self, tensor: np.ndarray) -> np.ndarray:
    """Returns one layer of our leaf."""
    return tensor.reshape(self.split).transpose(self.order)

  def to_tensor(self, layer: np.ndarray) -> np.ndarray:
    """Returns the tensor of one layer of our leaf."""
    return layer.transpose(np.argsort(self.order)).reshape(self.tensor_shape)


def read_config(folder: str | os.PathLike) -> dict[str, Any]:
  """Returns the `config.json` of a Hugging Face folder.

  Raises:
    ValueError: where there is none.
  """
  path = pathlib.Path(folder) / _CONFIG
  if not path.is_file():
    raise ValueError(
      f'{path} does not exist; --config.model.path must be a Hugging Face '
      f'folder with {_CONFIG} and {_SINGLE}'
    )
  return json.loads(path.read_text())


def load(
  folder: str | os.PathLike, model: decoder.Abstract, *, shardings: Any
) -> decoder.Params:
  """Returns the float32 parameters in a Hugging Face folder, placed.

  Reads `model.safetensors`, else the files that
  `model.safetensors.index.json` names; float32, bfloat16 and float16 tensors.
  A process holds the part of one leaf that lives on its own devices and one
  tensor at a time. Where the head is tied, `lm_head.weight` may be there as
  well, equal to the embedding.

  Args:
    folder: holds them.
    model: whose parameters they are.
    shardings: one for each, or a prefix of that tree; None = default device.

  Raises:
    ValueError: where a tensor is missing, unknown, in two files, of another
      shape or of another type. Lists all of them.
  """
  folder = pathlib.Path(folder)
  leaves = _leaves(model)
  wanted = traverse_util.flatten_dict(
    jax.tree.broadcast(shardings, model.shapes, is_leaf=lambda x: x is None),
    sep='/',
  )
  with contextlib.ExitStack() as stack:
    files, faults = _open(folder, stack)
    faults += _faults(leaves, files)
    if model.spec.tied_head and not faults:
      faults += _tied_head_faults(files)
    if faults:
      raise ValueError(
        f'{folder} does not hold the weights of its {_CONFIG} '
        '(--config.model.path):\n  ' + '\n  '.join(faults)
      )
    flat = {
      path: _place(leaf, files, sharding=wanted[path])
      for path, leaf in leaves.items()
    }
  return traverse_util.unflatten_dict(flat, sep='/')


def save(
  folder: str | os.PathLike,
  model: decoder.Abstract,
  params: decoder.Params,
  *,
  dtype: str = 'float32',
  eos_ids: Iterable[int],
) -> None:
  """Writes a folder that transformers and `load` read.

  Writes config.json, generation_config.json and one model.safetensors. All
  rows of the vocabulary are kept; a tied head is not written.

  Args:
    folder: made where it does not exist.
    model: whose parameters these are.
    params: host arrays, or arrays whose devices all belong to this process.
    dtype: of the tensors, 'float32' or 'bfloat16' (rounded to nearest even).
    eos_ids: the tokens that end a response.

  Raises:
    ValueError: for another dtype.
  """
  if dtype not in _WRITABLE:
    accepted = ', '.join(_WRITABLE)
    raise ValueError(f'dtype must be one of {accepted}; found {dtype!r}')
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  flat = traverse_util.flatten_dict(params, sep='/')
  tensors = {}
  for path, leaf in _leaves(model).items():
    host = jax.device_get(flat[path]).astype(_WRITABLE[dtype])
    layers = host if leaf.stacked else host[None]
    for name, layer in zip(leaf.names, layers, strict=True):
      tensors[name] = np.ascontiguousarray(leaf.to_tensor(layer))
  eos_ids = tuple(int(i) for i in eos_ids)
  config = spec_lib.to_hf(model.spec, eos_ids=eos_ids) | {'torch_dtype': dtype}
  generation = {'eos_token_id': list(eos_ids)}
  for name, content in ((_CONFIG, config), (_GENERATION, generation)):
    (folder / name).write_text(json.dumps(content, indent=2) + '\n')
  # transformers refuses a file that does not name the framework.
  metadata = {'format': 'pt'}
  safetensors.numpy.save_file(tensors, folder / _SINGLE, metadata=metadata)
  # save_file lets only the owner read.
  shutil.copymode(folder / _CONFIG, folder / _SINGLE)


def _leaves(model: decoder.Abstract) -> dict[str, _Leaf]:
  """Returns every leaf of the model by its path, joined by '/'."""
  shapes = traverse_util.flatten_dict(model.shapes, sep='/')
  axes = traverse_util.flatten_dict(model.logical_axes, sep='/')
  return {
    path: _leaf(path, shape.shape, axes[path]) for path, shape in shapes.items()
  }


def _leaf(path: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> _Leaf:
  name, tensor_axes = _TABLE[path]
  size = dict(zip((_LETTER[a] for a in axes), shape, strict=True))
  layers = size.pop('L', None)
  apart = tensor_axes.replace(' ', '')
  return _Leaf(
    shape=shape,
    stacked=layers is not None,
    names=tuple(name.format(i) for i in range(layers or 1)),
    tensor_shape=tuple(
      math.prod(size[a] for a in joined) for joined in tensor_axes.split()
    ),
    split=tuple(size[a] for a in apart),
    order=tuple(apart.index(a) for a in size),
  )


def _open(
  folder: pathlib.Path, stack: contextlib.ExitStack
) -> tuple[dict[str, Any], list[str]]:
  """Returns the open file of each tensor, and what is wrong with the files."""
  if (folder / _SINGLE).is_file():
    paths = [folder / _SINGLE]
  elif (folder / _INDEX).is_file():
    index = json.loads((folder / _INDEX).read_text())
    paths = [folder / name for name in sorted({*index['weight_map'].values()})]
  else:
    return {}, [f'no {_SINGLE} and no {_INDEX}']
  files, faults = {}, []
  for path in paths:
    if not path.is_file():
      faults.append(f'no {path.name}, which {_INDEX} names')
      continue
    try:
      file = safetensors.safe_open(path, framework='numpy')
    except safetensors.SafetensorError as error:
      faults.append(f'{path.name} is broken: {error}')
      continue
    stack.enter_context(file)
    for name in file.keys():
      if name in files:
        faults.append(f'in two files: {name}')
      files[name] = file
  return files, faults


def _faults(leaves: dict[str, _Leaf], files: dict[str, Any]) -> list[str]:
  """Returns a line for each tensor that is not as the model needs it."""
  faults = []
  unknown = dict.fromkeys(files)
  for leaf in leaves.values():
    for name in leaf.names:
      if name not in files:
        faults.append(f'missing: {name} {list(leaf.tensor_shape)}')
        continue
      del unknown[name]
      entry = files[name].get_slice(name)
      found, kind = tuple(entry.get_shape()), entry.get_dtype()
      if found != leaf.tensor_shape:
        faults.append(
          f'shape of {name}: expected {list(leaf.tensor_shape)}, found '
          f'{list(found)}'
        )
      if kind not in _READABLE:
        faults.append(
          f'type of {name}: expected {" or ".join(_READABLE)}, found {kind}'
        )
  if 'head' not in leaves:
    unknown.pop(_TABLE['head'][0], None)
  return faults + [f'unknown: {name}' for name in unknown]


def _tied_head_faults(files: dict[str, Any]) -> list[str]:
  """Returns a line where a tied model has a head that is not its embedding."""
  (head, _), (embedding, _) = _TABLE['head'], _TABLE['embedding']
  if head not in files or np.array_equal(
    files[head].get_tensor(head), files[embedding].get_tensor(embedding)
  ):
    return []
  return [f'{head} differs from {embedding}, yet tie_word_embeddings is true']


def _place(
  leaf: _Leaf, files: dict[str, Any], *, sharding: jax.sharding.Sharding | None
) -> Float[Array, '...']:
  """Returns one leaf on its devices; reads each of its tensors once."""
  if sharding is None:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  shape = leaf.shape if leaf.stacked else (1, *leaf.shape)

  def bounds(index):
    index = index if leaf.stacked else (slice(None), *index)
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))

  # One buffer for each part: replicas share theirs.
  indices = sharding.addressable_devices_indices_map(leaf.shape).values()
  parts = {
    b: np.empty([stop - start for start, stop in b], np.float32)
    for b in map(bounds, indices)
  }
  for i, name in enumerate(leaf.names):
    layer = leaf.from_tensor(files[name].get_tensor(name))
    for ((first, stop), *rest), part in parts.items():
      if first <= i < stop:
        part[i - first] = layer[tuple(slice(*b) for b in rest)]

  def part_of(index):
    part = parts[bounds(index)]
    return part if leaf.stacked else part[0]

  return jax.make_array_from_callback(leaf.shape, sharding, part_of)

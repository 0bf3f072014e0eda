"""A decoder's weights as a Hugging Face folder: config.json and safetensors.

One table says what each of our leaves is called there and how its axes lie;
loading and saving both read it, so they cannot drift apart.
"""

import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import traverse_util
from jaxtyping import Array, Float, Float32

from dapo_jax.model import decoder, tensor_files
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import placement

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
_READABLE = ('F32', 'BF16', 'F16')
_WRITABLE = {'float32': np.float32, 'bfloat16': ml_dtypes.bfloat16}
# What transformers has as its default too.
MAX_FILE_BYTES = 5 * 10**9


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
    ValueError: where there is none, or it is broken.
  """
  path = pathlib.Path(folder) / _CONFIG
  if not path.is_file():
    raise ValueError(
      f'{path} does not exist; --config.model.path must be a Hugging Face '
      f'folder with {_CONFIG} and {tensor_files.SINGLE}'
    )
  try:
    config = json.loads(path.read_text(encoding='utf-8'))
  except ValueError as error:
    raise ValueError(f'{path} is broken: {error}') from error
  if not isinstance(config, dict):
    raise ValueError(f'{path} is broken: it holds no JSON object')
  return config


def load(
  folder: str | os.PathLike, model: decoder.Abstract, *, shardings: Any
) -> decoder.Params:
  """Returns the float32 parameters in a Hugging Face folder, placed.

  Reads the files that `tensor_files` finds; float32, bfloat16 and float16
  tensors. A process holds one tensor at a time beside what lies on its
  devices, as it is stored: layers are stacked and converted there. Where the
  head is tied, `lm_head.weight` may be there as well, equal to the embedding.

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
  entries, faults = tensor_files.entries(folder)
  faults += _faults(leaves, entries)
  if model.spec.tied_head and not faults:
    faults += _tied_head_faults(entries)
  if faults:
    raise ValueError(
      f'{folder} does not hold the weights of its {_CONFIG} '
      '(--config.model.path):\n  ' + '\n  '.join(faults)
    )
  flat = {
    path: _place(leaf, entries, sharding=wanted[path])
    for path, leaf in leaves.items()
  }
  return traverse_util.unflatten_dict(flat, sep='/')


def save(
  folder: str | os.PathLike,
  model: decoder.Abstract,
  params: decoder.Params,
  *,
  eos_ids: Iterable[int],
  dtype: str = 'float32',
  max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
  """Writes a folder that transformers and `load` read.

  Writes config.json, generation_config.json and the weights, in one file or
  several. All rows of the vocabulary are kept; a tied head is not written.
  The host holds what goes into one file, and one tensor.

  Args:
    folder: made where it does not exist.
    model: whose parameters these are.
    params: host arrays, or arrays on devices; where these are of several
      processes, the others call `give`.
    eos_ids: the tokens that end a response.
    dtype: of the tensors, 'float32' or 'bfloat16' (rounded to nearest even).
    max_file_bytes: most bytes of tensors in a file, unless one is larger.

  Raises:
    ValueError: for another dtype.
  """
  if dtype not in _WRITABLE:
    accepted = ', '.join(_WRITABLE)
    raise ValueError(f'dtype must be one of {accepted}; found {dtype!r}')
  save_config(folder, model.spec, eos_ids=eos_ids, dtype=dtype)
  tensor_files.write(
    pathlib.Path(folder),
    _tensors(model, params, dtype=dtype),
    max_file_bytes=max_file_bytes,
  )


def give(model: decoder.Abstract, params: decoder.Params) -> None:
  """Does the part of `save` of a process that writes nothing.

  Where parameters are spread over processes all of them fetch each tensor.
  """
  for _ in _tensors(model, params, dtype='float32'):
    pass


def save_config(
  folder: str | os.PathLike,
  spec: spec_lib.Spec,
  *,
  eos_ids: Iterable[int],
  dtype: str = 'float32',
) -> None:
  """Writes config.json and generation_config.json; see `save`."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  eos_ids = tuple(int(i) for i in eos_ids)
  config = spec_lib.to_hf(spec, eos_ids=eos_ids) | {'torch_dtype': dtype}
  generation = {'eos_token_id': list(eos_ids)}
  for name, content in ((_CONFIG, config), (_GENERATION, generation)):
    (folder / name).write_text(json.dumps(content, indent=2) + '\n')


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


def _tensors(
  model: decoder.Abstract, params: decoder.Params, *, dtype: str
) -> Iterator[tensor_files.Tensor]:
  """Yields the tensors, each fetched from its devices when it is asked for."""
  flat = traverse_util.flatten_dict(params, sep='/')
  for path, leaf in _leaves(model).items():
    for i, name in enumerate(leaf.names):
      layer = _layer(flat[path], i) if leaf.stacked else flat[path]
      values = placement.on_host(layer).astype(_WRITABLE[dtype])
      yield tensor_files.Tensor(name, leaf.to_tensor(values))


def _layer(leaf: Float[Array | np.ndarray, 'L ...'], i: int):
  """Returns one layer; of an array on devices without fetching the others."""
  return leaf[i] if isinstance(leaf, np.ndarray) else _take(leaf, i)


# The index is an argument: one program serves all layers.
_take = jax.jit(lambda leaf, i: leaf[i])


def _faults(
  leaves: dict[str, _Leaf], entries: dict[str, tensor_files.Entry]
) -> list[str]:
  """Returns a line for each tensor that is not as the model needs it."""
  faults = []
  unknown = dict.fromkeys(entries)
  for leaf in leaves.values():
    for name in leaf.names:
      if name not in entries:
        faults.append(f'missing: {name} {list(leaf.tensor_shape)}')
        continue
      del unknown[name]
      _, _, found, kind = entries[name]
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


def _tied_head_faults(entries: dict[str, tensor_files.Entry]) -> list[str]:
  """Returns a line where a tied model has a head that is not its embedding."""
  (head, _), (embedding, _) = _TABLE['head'], _TABLE['embedding']
  if head not in entries or np.array_equal(
    entries[head].read(), entries[embedding].read()
  ):
    return []
  return [f'{head} differs from {embedding}, yet tie_word_embeddings is true']


def _place(
  leaf: _Leaf,
  entries: dict[str, tensor_files.Entry],
  *,
  sharding: jax.sharding.Sharding | None,
) -> Float32[Array, '...']:
  """Returns one leaf on its devices; reads each of its tensors once."""
  if sharding is None:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  if not leaf.stacked:
    [name] = leaf.names
    values = _put(leaf.from_tensor(entries[name].read()), sharding)
    return values.astype(jnp.float32)
  of_layer = _without_first_axis(sharding)
  set_layer = jax.jit(_set_layer, donate_argnums=0, out_shardings=sharding)
  stacked = jnp.zeros(leaf.shape, jnp.float32, device=sharding)
  for i, name in enumerate(leaf.names):
    layer = _put(leaf.from_tensor(entries[name].read()), of_layer)
    # Waits: what is queued holds a layer each.
    stacked = jax.block_until_ready(set_layer(stacked, layer, i))
  return stacked


def _set_layer(stacked, layer, i):
  return stacked.at[i].set(layer.astype(stacked.dtype))


def _put(values: np.ndarray, sharding: jax.sharding.Sharding) -> Array:
  """Returns host values on devices; each gets its own part alone."""
  return jax.make_array_from_callback(
    values.shape, sharding, lambda index: values[index]
  )


def _without_first_axis(
  sharding: jax.sharding.Sharding,
) -> jax.sharding.Sharding:
  """Returns how one layer of a stacked leaf lies."""
  if isinstance(sharding, jax.sharding.NamedSharding):
    return sharding.update(spec=jax.P(*sharding.spec[1:]))
  return sharding

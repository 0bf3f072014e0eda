"""Measures the host memory that importing a Hugging Face folder takes.

    python bench/import_memory.py [--gib=2] [--files=20]

Writes a synthetic checkpoint in bfloat16, loads it in a process of its own on
one CPU device, and compares the peak of that process with the bound: the
model on its devices (float32; on a CPU these are the host's own memory), twice
the largest tensor of the checkpoint, and 1 GiB for everything else. Ends with
status 1 above the bound.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import ml_dtypes
import numpy as np

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from dapo_jax.model import decoder, hf_weights, tensor_files  # noqa: E402
from dapo_jax.model import spec as spec_lib  # noqa: E402

_GIB = 2**30
_ROWS, _EMBED, _HEADS, _KV_HEADS, _FFW = 65_536, 1024, 16, 4, 4096


def main() -> None:
  """Writes, loads in a child, and prints one JSON object."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--gib', type=float, default=2.0)
  parser.add_argument('--files', type=int, default=20)
  parser.add_argument('--load', help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.load:
    _load(pathlib.Path(options.load))
    return
  with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    checkpoint_bytes, largest_bytes = _write(
      folder, int(options.gib * _GIB), options.files
    )
    files = len([*folder.glob('*.safetensors')])
    child = [sys.executable, __file__, f'--load={folder}']
    done = subprocess.run(child, check=True, capture_output=True, text=True)
  found = json.loads(done.stdout.splitlines()[-1])
  bound = found['model_bytes'] + 2 * largest_bytes + _GIB
  report = {
    'files': files,
    'checkpoint_gib': checkpoint_bytes / _GIB,
    'largest_tensor_gib': largest_bytes / _GIB,
    'model_gib': found['model_bytes'] / _GIB,
    'before_gib': found['before_bytes'] / _GIB,
    'peak_gib': found['peak_bytes'] / _GIB,
    'bound_gib': bound / _GIB,
    'load_s': found['load_s'],
  }
  print(json.dumps({k: round(v, 3) for k, v in report.items()}, indent=2))
  sys.exit(found['peak_bytes'] > bound)


def _spec(layers: int) -> spec_lib.Spec:
  config = {
    'architectures': ['Qwen2ForCausalLM'],
    'vocab_size': _ROWS,
    'num_hidden_layers': layers,
    'hidden_size': _EMBED,
    'num_attention_heads': _HEADS,
    'num_key_value_heads': _KV_HEADS,
    'intermediate_size': _FFW,
    'tie_word_embeddings': True,
  }
  return spec_lib.from_hf(config)


def _write(
  folder: pathlib.Path, size_bytes: int, files: int
) -> tuple[int, int]:
  """Returns the bytes of the checkpoint written, and of its largest tensor."""
  kv_dim = _EMBED // _HEADS * _KV_HEADS
  layer = 2 * _EMBED * (_EMBED + kv_dim) + 3 * _EMBED * _FFW
  layers = max(1, (size_bytes // 2 - _ROWS * _EMBED) // layer)
  shapes = {
    'self_attn.q_proj.weight': (_EMBED, _EMBED),
    'self_attn.q_proj.bias': (_EMBED,),
    'self_attn.k_proj.weight': (kv_dim, _EMBED),
    'self_attn.k_proj.bias': (kv_dim,),
    'self_attn.v_proj.weight': (kv_dim, _EMBED),
    'self_attn.v_proj.bias': (kv_dim,),
    'self_attn.o_proj.weight': (_EMBED, _EMBED),
    'mlp.gate_proj.weight': (_FFW, _EMBED),
    'mlp.up_proj.weight': (_FFW, _EMBED),
    'mlp.down_proj.weight': (_EMBED, _FFW),
    'input_layernorm.weight': (_EMBED,),
    'post_attention_layernorm.weight': (_EMBED,),
  }
  every = {
    'model.embed_tokens.weight': (_ROWS, _EMBED),
    'model.norm.weight': (_EMBED,),
  } | {
    f'model.layers.{i}.{name}': shape
    for i in range(layers)
    for name, shape in shapes.items()
  }
  sizes = [2 * int(np.prod(shape)) for shape in every.values()]
  rng = np.random.default_rng(0)
  tensors = (
    tensor_files.Tensor(
      name, rng.random(shape, np.float32).astype(ml_dtypes.bfloat16)
    )
    for name, shape in every.items()
  )
  # A little more than an even share: a file ends before the tensor that would
  # be too much.
  share = sum(sizes) // files + max(sizes[1:]) // 2
  tensor_files.write(folder, tensors, max_file_bytes=share)
  config = spec_lib.to_hf(_spec(layers), eos_ids=(1,))
  (folder / 'config.json').write_text(json.dumps(config))
  return sum(sizes), max(sizes)


def _load(folder: pathlib.Path) -> None:
  """Loads, and prints what it took."""
  import jax

  spec = spec_lib.from_hf(hf_weights.read_config(folder))
  model = decoder.abstract(spec, compute_dtype='float32', remat='none')
  jax.devices()
  before = _peak_bytes()
  start_s = time.perf_counter()
  params = jax.block_until_ready(hf_weights.load(folder, model, shardings=None))
  found = {
    'load_s': time.perf_counter() - start_s,
    'model_bytes': sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
    'before_bytes': before,
    'peak_bytes': _peak_bytes(),
  }
  print(json.dumps(found))


def _peak_bytes() -> int:
  """Returns the most memory this process had resident so far."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == '__main__':
  main()

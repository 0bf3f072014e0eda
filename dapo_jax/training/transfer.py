"""Models in and out: the commands import-hf and export-hf."""

import contextlib
import math
import pathlib
import re
import tempfile
from typing import Any

import jax

from dapo_jax.model import decoder
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.training import (
  download,
  model_folder,
  policies,
)

_DTYPES = {'f32': 'float32', 'bf16': 'bfloat16'}
_UNITS = {'': 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9}


def import_hf(source: str, out: str, *, allow_download: bool) -> None:
  """Makes an Orbax folder of a Hugging Face folder.

  The result serves wherever a model's folder does, such as
  `--config.model.path`.

  Args:
    source: the folder; a hub's or a bucket's where that is allowed.
    out: the folder to write; must not exist yet. Complete or absent.
    allow_download: whether `source` may be fetched.

  Raises:
    ValueError: for a model that is not supported, or a wrong folder.
  """
  out = _new_folder(out)
  with tempfile.TemporaryDirectory(dir=out.parent, prefix=out.name) as scratch:
    folder = download.local_folder(
      source,
      copies=scratch,
      allowed=allow_download,
      flag='--allow_download',
    )
    found = policies.of_folder(pathlib.Path(folder))
    model_folder.save(
      out,
      found.model,
      found.load(_shardings(found.model)),
      tokenizer=found.tokenizer,
      layout='orbax',
    )
  print(f'the model is in {out}; use it as --config.model.path={out}')


def export_hf(
  source: str,
  out: str,
  *,
  layout: str,
  dtype: str,
  max_shard_size: str,
  model_path: str | None,
) -> None:
  """Writes the policy of a checkpoint as a folder of its own.

  Args:
    source: a work directory or a folder of checkpoints, a bucket's too (the
      newest is meant), one of its checkpoints (WORKDIR/checkpoints/STEP), or a
      model's folder.
    out: the folder to write; must not exist yet. Complete or absent.
    layout: 'hf' or 'orbax', see `model_folder`.
    dtype: of Hugging Face weights, 'f32' or 'bf16'.
    max_shard_size: of a weight file, such as '5GB'.
    model_path: the folder that the run started from, if it is no longer where
      its configuration says.

  Raises:
    ValueError: when there is no checkpoint, what belongs to it is missing, or
      for a wrong size.
  """
  max_file_bytes = size_bytes(max_shard_size)
  out = _new_folder(out)
  if layout == 'orbax' and dtype != 'f32':
    raise ValueError(
      f'--dtype={dtype} goes with --format=hf: an Orbax folder holds float32'
    )
  folder = pathlib.Path(source)
  if '://' not in source and (folder / 'config.json').is_file():
    given = contextlib.nullcontext(policies.of_folder(folder))
  else:
    given = policies.of_run(source, model_path=model_path)
  with given as found:
    model_folder.save(
      out,
      found.model,
      found.load(_shardings(found.model)),
      tokenizer=found.tokenizer,
      layout=layout,
      dtype=_DTYPES[dtype],
      max_file_bytes=max_file_bytes,
    )
  print(f'the model is in {out}')


def size_bytes(text: str) -> int:
  """Returns the bytes of a size like '5GB', '500MB' or '1000'.

  Raises:
    ValueError: it does not read so, or is 0.
  """
  match = re.fullmatch(r'(\d+(?:\.\d+)?) ?([KMG]B|)', text)
  size = float(match[1]) * _UNITS[match[2]] if match else 0
  if size < 1:
    raise ValueError(
      f'--max_shard_size ({text}) must be a number of bytes, KB, MB or GB, '
      'such as 5GB'
    )
  return int(size)


def _new_folder(path: str) -> pathlib.Path:
  """Returns a folder that can be written; found out before the work is done."""
  folder = pathlib.Path(path).absolute()
  if folder.exists():
    raise ValueError(f'{folder} exists already; name another folder')
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder.parent).close()
  except OSError as error:
    raise ValueError(f'{folder} cannot be written: {error}') from error
  return folder


def _shardings(model: decoder.Abstract) -> Any:
  """Returns shardings over as many devices as split the model evenly."""
  count = math.gcd(jax.device_count(), model.spec.embed_dim)
  mesh = mesh_lib.update_mesh(
    jax.devices()[:count], data=1, fsdp=count, tensor=1
  )
  return mesh_lib.shardings(
    model.shapes, model.logical_axes, mesh, mesh_lib.UPDATE_RULES
  )

"""Models in and out: the commands import-hf and export-hf."""

import json
import math
import os
import pathlib
import re
import tempfile
from typing import Any, NamedTuple

import jax
import ml_collections
from etils import epath

from dapo_jax.data import tokenizers
from dapo_jax.model import decoder
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.training import (
  assemble,
  checkpoint,
  checkpoint_folder,
  download,
  model_folder,
  resuming,
)

_DTYPES = {'f32': 'float32', 'bf16': 'bfloat16'}
_UNITS = {'': 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9}


class _Run(NamedTuple):
  """A run whose policy is meant."""

  workdir: epath.Path
  folder: epath.Path  # of its checkpoints
  step: int | None  # None = the newest


class _Model(NamedTuple):
  """A model and its weights."""

  model: decoder.Abstract
  tokenizer: tokenizers.Tokenizer
  params: decoder.Params


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
    found = _from_folder(folder)
    model_folder.save(
      out,
      found.model,
      found.params,
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
  # Holds a tokenizer that only the checkpoint has, until it is copied.
  with tempfile.TemporaryDirectory() as scratch:
    if '://' not in source and (pathlib.Path(source) / 'config.json').is_file():
      found = _from_folder(pathlib.Path(source))
    else:
      found = _from_run(_find_run(source), model_path, scratch)
    model_folder.save(
      out,
      found.model,
      found.params,
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


def _from_folder(folder: pathlib.Path) -> _Model:
  tokenizer = tokenizers.load(folder)
  model = decoder.abstract(
    model_folder.spec(folder, tokenizer), compute_dtype='float32', remat='none'
  )
  params = model_folder.load(folder, model, shardings=_shardings(model))
  return _Model(model, tokenizer, params)


def _find_run(source: str) -> _Run:
  """Returns where the checkpoints are that `source` means.

  Raises:
    ValueError: there is none, or the run's settings are broken.
  """
  folder = checkpoint_folder.locate('', source)
  if folder.name.isdigit():
    return _Run(folder.parent.parent, folder.parent, int(folder.name))
  named = _named_folder(folder / 'run_config.json')
  runs = [_Run(folder, checkpoint_folder.locate(folder, named), None)]
  if not named:
    runs.append(_Run(folder.parent, folder, None))
  for run in runs:
    if checkpoint_folder.look(run.folder).whole:
      return run
  places = ' nor '.join(f'a whole one in {run.folder}' for run in runs)
  raise ValueError(
    f'there is no checkpoint in {folder}: neither config.json nor {places}; '
    'name a work directory, one of its checkpoints '
    '(WORKDIR/checkpoints/STEP), the folder that --config.checkpoint.folder '
    "named, or a model's folder"
  )


def _named_folder(settings: epath.Path) -> str:
  """Returns the checkpoint.folder of a run's settings, '' without them."""
  if not settings.exists():
    return ''
  try:
    return json.loads(settings.read_text())['checkpoint'].get('folder', '')
  except (ValueError, LookupError, TypeError, AttributeError) as error:
    raise ValueError(
      f'{settings} is broken ({error}): remove it, and name the folder of the '
      'checkpoints'
    ) from error


def _from_run(run: _Run, model_path: str | None, scratch: str) -> _Model:
  """Returns the policy of a run; its tokenizer may be in `scratch`."""
  workdir, step = pathlib.Path(run.workdir), run.step
  with checkpoint.open_store(
    workdir, keep=None, folder=os.fspath(run.folder), read_only=True
  ) as store:
    config = ml_collections.ConfigDict(store.saved_config(step))
    # What is downloaded is in the work directory already.
    config.model.allow_download = False
    if model_path:
      config.model.path = model_path
    config = ml_collections.FrozenConfigDict(config)
    saved = store.saved_origin(step)
    if saved and saved.tokenizer_file:
      workdir = pathlib.Path(scratch)
      resuming.bring_tokenizer(config, workdir, saved)
    tokenizer, model = assemble.saved_model(config, workdir)
    store.check_tokenizer(tokenizer, step=step)
    params, _ = store.restore_params(model.shapes, _shardings(model), step=step)
  return _Model(model, tokenizer, params)


def _shardings(model: decoder.Abstract) -> Any:
  """Returns shardings over as many devices as split the model evenly."""
  count = math.gcd(jax.device_count(), model.spec.embed_dim)
  mesh = mesh_lib.update_mesh(
    jax.devices()[:count], data=1, fsdp=count, tensor=1
  )
  return mesh_lib.shardings(
    model.shapes, model.logical_axes, mesh, mesh_lib.UPDATE_RULES
  )

"""The processes of a run have one command, and the same files.

Else they would draw other prompts, or run other programs, and wait for each
other for ever. What is compared goes through the coordinator, not through the
devices, which need not be alike before it is known that they are.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int
from ml_collections import FrozenConfigDict

import dapo_jax
from dapo_jax.data import records, tokenizers
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import job as job_lib
from dapo_jax.rewards import own_grader

# What of jax's settings changes what is computed.
_SETTINGS = (
  'jax_enable_x64',
  'jax_default_matmul_precision',
  'jax_default_prng_impl',
  'jax_threefry_partitionable',
  'jax_numpy_dtype_promotion',
  'jax_disable_jit',
)
_FLAGS = ('XLA_FLAGS', 'LIBTPU_INIT_ARGS')
# Of the weights of a model so much of the end of each file is compared.
_END_BYTES = 64 * 1024


def check_commands(
  job: job_lib.Job, command: str, config: FrozenConfigDict
) -> None:
  """Refuses processes that do not begin alike, before they do anything.

  Args:
    job: the processes.
    command: that of this one, such as 'train'.
    config: its settings.

  Raises:
    ValueError: some differ, in every process; it says which, and in what.
  """
  if job.count == 1:
    return
  devices = jax.local_devices()
  check(
    job,
    {
      'the command': command,
      'the configuration (--config)': config.to_dict(),
      'the code of dapo-jax': _code(),
      'the versions of dapo-jax, jax or Python': [
        dapo_jax.__version__,
        jax.__version__,
        *sys.version_info[:2],
      ],
      'the settings of jax and XLA (JAX_..., XLA_FLAGS)': _settings(),
      'the number or kind of its devices': [
        len(devices),
        devices[0].device_kind,
      ],
    },
  )


def check_data(
  job: job_lib.Job,
  trained: Sequence[records.Prompt],
  evaluated: Sequence[records.Prompt],
  *,
  grader: str,
) -> None:
  """Refuses processes of other problems or graders, see `check_commands`."""
  if job.count == 1:
    return
  check(
    job,
    {
      'the training problems (--config.data)': [p.id for p in trained],
      'the problems of the evaluation (--config.eval)': [
        p.id for p in evaluated
      ],
      'the grader (--config.reward.grader)': own_grader.source(grader),
    },
  )


def check_checkpoint(job: job_lib.Job, step: int | None) -> None:
  """Refuses processes that would go on from other checkpoints."""
  check(job, {'the newest checkpoint (--config.checkpoint.folder)': step})


def check_model(
  job: job_lib.Job,
  tokenizer: tokenizers.ChatTokenizer,
  example: Int[np.ndarray, ' T'],
  model: spec_lib.Spec,
  folder: pathlib.Path | None,
) -> None:
  """Refuses processes of other tokenizers or models.

  Args:
    job: the processes.
    tokenizer: of this one.
    example: a problem as it encodes it, in which its template shows.
    model: its model.
    folder: what has the weights to start from, if they are not random.

  Raises:
    ValueError: see `check_commands`.
  """
  if job.count == 1:
    return
  check(
    job,
    {
      'the tokenizer (--config.tokenizer.path)': [
        tokenizers.fingerprint(tokenizer),
        example.tolist(),
      ],
      'the model (--config.model.path)': [
        dataclasses.asdict(model),
        folder and _weights(folder),
      ],
    },
  )


def check(job: job_lib.Job, about: Mapping[str, Any]) -> None:
  """Refuses processes that differ; says which, and in what.

  Args:
    job: the processes.
    about: what is compared, as JSON can hold it, by its name.

  Raises:
    ValueError: some differ, in every process.
  """
  what = 'the comparison of the processes'
  own = {name: _digest(value) for name, value in about.items()}
  told = job.to_first(json.dumps(own).encode(), what=what)
  text = job.from_first(
    lambda: _difference([json.loads(t) for t in told]).encode(), what=what
  )
  if text:
    raise ValueError(text.decode())


def _difference(told: Sequence[Mapping[str, str]]) -> str:
  """Returns what is said of the first process that differs, '' if none."""
  first = told[0]
  for index, other in enumerate(told):
    names = [name for name in first if other.get(name) != first[name]]
    if names:
      return (
        f'process {index} differs from process 0 in {" and ".join(names)}; '
        'give the same command, files and environment to all processes'
      )
  return ''


def _settings() -> list[str]:
  flags = ' '.join(os.environ.get(name, '') for name in _FLAGS).split()
  # Where XLA writes what it did changes nothing.
  flags = sorted(f for f in flags if not f.startswith('--xla_dump'))
  return [*(str(getattr(jax.config, name)) for name in _SETTINGS), *flags]


def _code() -> list[str]:
  """Returns the digests of the files of this package."""
  folder = pathlib.Path(dapo_jax.__file__).parent
  return [
    f'{file.relative_to(folder)} {_digest_of(file.read_bytes())}'
    for file in sorted(folder.rglob('*.py'))
  ]


def _weights(folder: pathlib.Path) -> list[str]:
  """Returns what tells the files of two models apart, without reading all."""
  found = []
  files = [*folder.glob('*.safetensors'), *folder.glob('params/**/*')]
  for file in sorted(p for p in files if p.is_file()):
    size = file.stat().st_size
    with file.open('rb') as stream:
      stream.seek(max(0, size - _END_BYTES))
      end = _digest_of(stream.read())
    found.append(f'{file.relative_to(folder)} {size} {end}')
  return found


def _digest(value: Any) -> str:
  return _digest_of(json.dumps(value, sort_keys=True, default=str).encode())


def _digest_of(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()

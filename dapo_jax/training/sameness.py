"""The processes of a run have one configuration, data set and tokenizer.

Else they would draw other prompts, or run other programs, and wait for each
other for ever.
"""

import hashlib
import json
import sys

import jax
import numpy as np
from ml_collections import FrozenConfigDict

import dapo_jax
from dapo_jax.training import assemble
from dapo_jax.training import origin as origin_lib

_DIGEST_BYTES = 16


def check(
  config: FrozenConfigDict, parts: assemble.Parts, origin: origin_lib.Origin
) -> None:
  """Refuses processes that differ; says which, and in what.

  Raises:
    ValueError: they do, in every process.
  """
  evaluated = [prompt.id for prompt in parts.eval_prompts]
  version = [dapo_jax.__version__, jax.__version__, *sys.version_info[:2]]
  about = {
    'the configuration (--config)': config.to_dict(),
    'the training problems (--config.data)': origin.prompts,
    'the problems of the evaluation (--config.eval)': evaluated,
    'the tokenizer (--config.tokenizer.path)': origin.tokenizer,
    'the versions of dapo-jax, jax or Python': version,
  }
  own = np.stack([_digest(value) for value in about.values()])
  job = parts.shares.job
  all_of_them = job.gather(own, what='the comparison of the processes')
  differs = (all_of_them != all_of_them[0]).any(axis=2)
  if differs.any():
    index = int(differs.any(axis=1).argmax())
    names = [n for n, d in zip(about, differs[index], strict=True) if d]
    raise ValueError(
      f'process {index} differs from process 0 in {" and ".join(names)}; give '
      'the same command and the same files to all processes'
    )


def _digest(value: object) -> np.ndarray:
  text = json.dumps(value, sort_keys=True, default=str)
  found = hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]
  return np.frombuffer(found, np.uint8)

"""Runs small enough for tests: a policy that adds digits, half of the time."""

import contextlib
import functools
import io
import json
import pathlib
import tempfile
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import ml_collections

from configs import base
from dapo_jax import config_rules
from dapo_jax.training import assemble, supervised

TINY = {
  'model.layers': 2,
  'model.embed_dim': 32,
  'model.heads': 4,
  'model.kv_heads': 2,
  'model.head_dim': 8,
  'model.ffw_dim': 64,
  'model.init_std': 0.1,
  'model.logits_chunk_tokens': 64,
  'tokenizer.vocab_size': 300,
  'data.max_prompt_tokens': 8,
  'data.arithmetic.digits': 1,
  'data.arithmetic.worked_frac': 0.0,
  'eval.prompts': 6,
  'eval.samples_per_prompt': 2,
  'eval.every_steps': 3,
  'rollout.prompts_per_step': 4,
  'rollout.responses_per_prompt': 4,
  'rollout.oversample': 1.5,
  'rollout.max_response_tokens': 8,
  'sampler.slots': 8,
  'sampler.chunk_tokens': 4,
  'filter.max_rounds': 4,
  'filter.on_limit': 'train_partial',
  'overlong.cache_tokens': 4,
  'optim.lr': 1e-3,
  'optim.warmup_steps': 4,
  'learner.minibatch_prompts': 2,
  'learner.pack_tokens': 32,
  'learner.micro_batch_rows': 8,
  'checkpoint.every_steps': 100,
  'train.steps': 6,
  'train.samples_logged': 5,
  'sft.steps': 150,
  'sft.examples_per_step': 32,
  'sft.lr': 1e-2,
  'sft.warmup_steps': 5,
  'sft.eval_every_steps': 150,
}


def config(
  changes: dict[str, Any] | None = None,
) -> ml_collections.FrozenConfigDict:
  """Returns the configuration of a tiny run with changes, keys as in flags."""
  result = base.get_config()
  result.update_from_flattened_dict({**TINY, **(changes or {})})
  config_rules.validate(result)
  return ml_collections.FrozenConfigDict(result)


def flags(changes: dict[str, Any] | None = None) -> list[str]:
  """Returns that configuration as what a command is given."""
  changes = {**TINY, **(changes or {})}
  values = [f'--config.{key}={value}' for key, value in changes.items()]
  return ['--config=configs/base.py', *values]


@contextlib.contextmanager
def devices(count: int) -> Iterator[None]:
  """Makes runs within it use the first `count` devices alone."""
  fewer = types.SimpleNamespace(devices=lambda: jax.devices()[:count])
  with mock.patch.object(assemble, 'jax', fewer):
    yield


@functools.cache
def folder() -> pathlib.Path:
  """Returns a folder that lasts until the tests end."""
  holder = tempfile.TemporaryDirectory(prefix='tiny_run_')
  _HOLDERS.append(holder)
  return pathlib.Path(holder.name)


_HOLDERS: list[tempfile.TemporaryDirectory] = []


@functools.cache
def supervised_output() -> str:
  """Returns what the supervised run printed that made `model_folder`."""
  with devices(1), contextlib.redirect_stdout(io.StringIO()) as printed:
    supervised.run(config(), str(folder() / 'sft'))
  return printed.getvalue()


def model_folder() -> str:
  """Returns the folder of a policy that is right some of the time."""
  supervised_output()
  return str(folder() / 'sft' / 'model')


def policy_config(
  changes: dict[str, Any] | None = None,
) -> ml_collections.FrozenConfigDict:
  """Returns the configuration of a tiny run that starts from that policy."""
  return config({'model.path': model_folder(), **(changes or {})})


def metrics_rows(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns a run's lines of metrics without what a clock measured."""
  return [
    {
      name: value
      for name, value in row.items()
      if not name.startswith('time/') and name != 'sampler/tokens_per_s'
    }
    for row in read_jsonl(folder / 'metrics.jsonl')
  ]


def read_jsonl(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the rows of a file of one JSON object a line."""
  return [json.loads(line) for line in path.read_text().splitlines()]

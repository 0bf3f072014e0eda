"""The one door to google-jetstream 0.2.2, imported quietly on today's JAX.

Its engine API imports TensorFlow, which logs to the process's stderr from
C++ and may touch the root logger: it costs seconds and some 600 MB. Its
orchestrator, which serves requests, is imported by whoever asks for it.
"""

import contextlib
import functools
import importlib.metadata
import logging
import os
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from dapo_jax.data import tokenizers

TESTED_VERSION = '0.2.2'


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps the root logger as it was, and TensorFlow's C++ notes unseen.

  A Python exception still passes: only what is written meanwhile to the file
  descriptor of stderr is lost.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  root = logging.getLogger()
  level, handlers = root.level, list(root.handlers)
  stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, 2)
  try:
    yield
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)
    os.close(null)
    root.setLevel(level)
    for handler in set(root.handlers) - set(handlers):
      root.removeHandler(handler)


def _check_version() -> None:
  found = importlib.metadata.version('google-jetstream')
  if found != TESTED_VERSION:
    raise ImportError(
      f'google-jetstream {found} is installed; dapo_jax is tested with '
      f'{TESTED_VERSION}: pip install google-jetstream=={TESTED_VERSION}'
    )


_check_version()
with _quiet():
  from jetstream.engine import (
    engine_api,
    token_utils,
    tokenizer_api,
    tokenizer_pb2,
  )


class Tokenizer(tokenizer_api.Tokenizer):
  """Our tokenizer as JetStream asks for it, without TensorFlow operations."""

  def __init__(self, tokenizer: tokenizers.Tokenizer):
    self._tokenizer = tokenizer

  def encode(self, s: str, **kwargs) -> tuple[jax.Array | np.ndarray, int]:
    """Returns padded token ids and how many of them are real."""
    tokens = np.asarray(self._tokenizer.encode(s), np.int32)
    # A BOS is no part of our prompts, whatever the driver asks for.
    options = kwargs | {'is_bos': False}
    return token_utils.pad_tokens(tokens, self.bos_id, self.pad_id, **options)

  def decode(self, token_ids: list[int], **kwargs) -> str:
    """Returns the text of token ids."""
    return self._tokenizer.decode(list(token_ids))

  @property
  def pad_id(self) -> int:
    """The padding id."""
    return self._tokenizer.pad_id

  @property
  def eos_id(self) -> int:
    """The first of the ids that end a response."""
    return self._tokenizer.eos_ids[0]

  @property
  def bos_id(self) -> int:
    """The pad: our prompts have no BOS, but JetStream asks for an id."""
    return self._tokenizer.pad_id

  @property
  def stop_tokens(self) -> set[int]:
    """None: the engine ends rows itself, so that the EOS stays in them."""
    return set()


@functools.cache
def load_orchestrator() -> types.ModuleType:
  """Returns JetStream's orchestrator, with its protocol buffers and stubs.

  Three of its names are bound anew: `logging`, for it writes of every step to
  the root logger; and `delete_pytree`, which calls what JAX has no more.
  """
  with _quiet():
    from jetstream.core import orchestrator
  log = logging.getLogger('jetstream')
  log.setLevel(logging.ERROR)
  orchestrator.logging = token_utils.logging = log
  orchestrator.delete_pytree = _delete_arrays
  return orchestrator


def _delete_arrays(tree: Any) -> None:
  for leaf in jax.tree.leaves(tree):
    if isinstance(leaf, jax.Array):
      leaf.delete()


__all__ = [
  'Tokenizer',
  'engine_api',
  'load_orchestrator',
  'tokenizer_api',
  'tokenizer_pb2',
]

"""Engines for tests, built once a process, and what they sample."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import monitoring

import tiny_model
from dapo_jax.model import decoder
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import engine, scheduler, token_choice
from dapo_jax.sampling import limits as limits_lib

# Some responses end by themselves and some at the limit: of 61 ids, 4.
EOS_IDS = (7, 20, 33, 46)
LIMITS = limits_lib.Limits(slots=8, prompt_tokens=12, response_tokens=20)
PROMPTS = tuple(
  np.random.default_rng(n).integers(61, size=n).astype(np.int32)
  for n in (3, 11, 1, 8, 12)
)

_COMPILED = '/jax/core/compile/backend_compile_duration'


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """One id a letter: id 0 is 'a'."""

  eos_ids: tuple[int, ...] = EOS_IDS
  vocab_size: int = 61
  pad_id: int = 0

  def encode(self, text: str) -> list[int]:
    return [ord(letter) - ord('a') for letter in text]

  def decode(self, ids: Iterable[int]) -> str:
    return ''.join(chr(ord('a') + i) for i in ids if i not in self.eos_ids)


@functools.cache
def model() -> decoder.Abstract:
  """Returns the model of all engines here; 3 of its 64 rows are no token."""
  return tiny_model.model(vocab_rows=64)


@functools.cache
def params() -> decoder.Params:
  """Returns weights of that model, on one device."""
  return tiny_model.params(model())


@functools.cache
def build(
  *, devices: int = 1, tensor: int = 1, limits: limits_lib.Limits = LIMITS
) -> engine.Engine:
  """Returns an engine on the first devices; equal arguments share one."""
  return engine.Engine(
    model(),
    Tokenizer(),
    mesh_lib.engine_mesh(jax.devices()[:devices], tensor=tensor),
    limits,
    seed=3,
  )


def requests(
  *, samples: int = 4, prompts: Iterable[np.ndarray] = PROMPTS
) -> list[scheduler.Request]:
  """Returns a request for every prompt, with ordinals 100, 101..."""
  return [
    scheduler.Request(100 + i, prompt, samples)
    for i, prompt in enumerate(prompts)
  ]


def sampling(**changes) -> scheduler.Sampling:
  """Returns how tests sample where they say nothing else.

  Changes may name the numbers of the choice, too.
  """
  plain = scheduler.Sampling(
    purpose=token_choice.Purpose.TRAIN,
    seed=5,
    choice=token_choice.Choice(temperature=1.0),
    limit_tokens=LIMITS.response_tokens,
    chunk_tokens=5,
  )
  own = {k: changes.pop(k) for k in plain.choice._fields if k in changes}
  return plain._replace(choice=plain.choice._replace(**own), **changes)


def chain(
  successors: dict[int, int],
) -> tuple[decoder.Abstract, decoder.Params]:
  """Returns a model whose next token is certain: each id's successor.

  An id that is not named is followed by the next higher one. Blocks add
  nothing to the stream; the embedding is the identity; the head's row of an
  id is 10 times the embedding of those that it follows. RMS norm makes the 1
  of 64 entries an 8, so the successor's logit is 80 and all others are 0.
  """
  model = tiny_model.model(embed_dim=64, tied_head=False)
  params = jax.tree.map(lambda s: jnp.zeros(s.shape), model.shapes)
  follows = np.zeros((61, 64), np.float32)
  for token in range(61):
    follows[successors.get(token, (token + 1) % 61), token] = 10
  params['embedding'] = jnp.eye(61, 64)
  params['head'] = jnp.asarray(follows)
  params['final_norm'] = jnp.ones(64)
  return model, params


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
  """Yields a list that gets the name of every program compiled meanwhile.

  A program read back from the cache on disk counts too.
  """
  names = []

  def listen(event, _, fun_name='', **__):
    if event == _COMPILED:
      names.append(fun_name)

  monitoring.register_event_duration_secs_listener(listen)
  try:
    yield names
  finally:
    monitoring.unregister_event_duration_listener(listen)

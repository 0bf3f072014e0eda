"""Measures what the kind of a cache changes: log-probs, bytes and time.

    python bench/cache_gap.py --model=DIR [--prompts=8] [--tokens=64]

Decodes word problems greedily with keys and values in float32. The kinds are
then given these tokens one by one, as a sampler decodes: how far off are their
log-probs, how often is the token still the likeliest? The first kind is given
its own, which shows how far off two orders of the same arithmetic are. CPU
time of a decode step, all kinds in turns within the run (--reps), medians.
"""

import argparse
import os
import pathlib
import sys
import time
from typing import Any, NamedTuple

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from dapo_jax.data import tokenizers  # noqa: E402
from dapo_jax.model import decoder, decoding  # noqa: E402
from dapo_jax.parallel import mesh as mesh_lib  # noqa: E402
from dapo_jax.sampling import cache_layout, token_choice  # noqa: E402
from dapo_jax.sampling import decode as decode_lib  # noqa: E402
from dapo_jax.sampling import engine as engine_lib  # noqa: E402
from dapo_jax.sampling import limits as limits_lib  # noqa: E402
from dapo_jax.training import model_folder  # noqa: E402

# Name, type of products, layout of keys and values; the first is the measure.
_KINDS = (
  ('float32', 'float32', 'dense'),
  ('float32, int8 cache', 'float32', 'dense_int8'),
  ('bfloat16', 'bfloat16', 'dense'),
  ('bfloat16, int8 cache', 'bfloat16', 'dense_int8'),
)
_QUESTIONS = (
  'Mia has 14 marbles and buys 9 more. How many marbles has she now?',
  'A box holds 12 eggs. How many eggs are in 7 boxes?',
  'Tom reads 23 pages a day. How many pages does he read in 5 days?',
  'A rope of 96 cm is cut into 8 equal pieces. How long is each piece?',
  'Of 60 seats in a bus 37 are taken. How many seats are free?',
  'A pen costs 3 dollars and a book costs 11. What do 4 pens and 2 books cost?',
  'A train goes 180 km in 3 hours. How far does it go in 5 hours?',
  'Lea is 9 and her uncle 4 times as old. How old was he when she was born?',
)


class Kind(NamedTuple):
  """One kind: its sampler, ready to decode."""

  name: str
  graphdef: Any
  layout: cache_layout.Layout
  engine: engine_lib.Engine
  params: decoder.Params


class Decoded(NamedTuple):
  """What a sampler did with the prompts."""

  tokens: np.ndarray  # (slot, token number)
  logp: np.ndarray
  lengths: np.ndarray  # of the responses
  step_s: float  # CPU time of a decode step


def kinds(
  folder: pathlib.Path, tokenizer, limits: limits_lib.Limits
) -> list[Kind]:
  """Returns the kinds for the model in a folder."""
  spec = model_folder.spec(folder, tokenizer)
  mesh = mesh_lib.engine_mesh(jax.devices()[:1], tensor=1)
  found, params = [], None
  for name, compute_dtype, cache in _KINDS:
    model = decoder.abstract(spec, compute_dtype=compute_dtype, remat='none')
    own = limits._replace(cache=cache)
    engine = engine_lib.Engine(model, tokenizer, mesh, own, seed=0)
    if params is None:
      where = engine.params_shardings
      params = model_folder.load(folder, model, shardings=where)
    layout, placed = cache_layout.make(model, own, mesh), engine.place(params)
    found.append(Kind(name, model.graphdef, layout, engine, placed))
  return found


def start(kind: Kind, prompts: list[np.ndarray]) -> decode_lib.DecodeState:
  """Returns the state in which every slot has its prompt."""
  state = kind.engine.init_decode_state()
  for slot, prompt in enumerate(prompts):
    samples = engine_lib.Samples(
      slots=np.array([slot]),
      keys=np.zeros((1, 2), np.uint32),  # Greedy: there is no noise.
      limits_tokens=np.array([kind.engine.limits.response_tokens]),
      choice=token_choice.Choice(temperature=0.0),
    )
    prefix = kind.engine.prefill_prompt(kind.params, prompt)
    state = kind.engine.insert_group(prefix, state, samples)
  return jax.block_until_ready(state)


def greedy(kind: Kind, prompts: list[np.ndarray]) -> Decoded:
  """Returns what the sampler says itself."""
  state = start(kind, prompts)
  begin = time.process_time()
  state, steps = kind.engine.generate_chunk(
    kind.params,
    state,
    max_steps=kind.engine.limits.response_tokens,
    leave_after=len(prompts) + 1,
  )
  steps = int(jax.block_until_ready(steps))
  step_s = (time.process_time() - begin) / steps
  rows = jax.device_get((state.out_tokens, state.out_logp, state.generated))
  return Decoded(*rows, step_s)


def forced(
  kind: Kind, prompts: list[np.ndarray], tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the log-probs of given tokens, and which are the likeliest."""

  @jax.jit
  def run(params, state, tokens):
    model, layers = decoding.bind(kind.graphdef, params)

    def step(state, token):
      hidden, cache = kind.layout.decode(
        model,
        layers,
        state.token,
        state.cache,
        positions=state.position,
        live=state.live,
        attend_blocks=None,
      )
      logits = model.logits(hidden)
      logp = jax.nn.log_softmax(logits)[jnp.arange(len(token)), token]
      state = state._replace(
        cache=cache, token=token, position=state.position + 1
      )
      return state, (logp, logits.argmax(axis=1) == token)

    return jax.lax.scan(step, state, tokens.T)[1]

  logp, likeliest = run(kind.params, start(kind, prompts), tokens)
  return np.asarray(logp).T, np.asarray(likeliest).T


def main() -> None:
  """Prints a line for each kind."""
  args = _flags()
  tokenizer = tokenizers.load(args.model)
  prompts = [
    np.array(tokenizer.encode(f'{question}\nStep by step:'), np.int32)
    for question in _QUESTIONS[: args.prompts]
  ]
  limits = limits_lib.Limits(len(prompts), max(map(len, prompts)), args.tokens)
  found = kinds(args.model, tokenizer, limits)
  first, *_ = [greedy(kind, prompts) for kind in found]  # These compile.
  step_s = np.array(
    [[greedy(kind, prompts).step_s for kind in found] for _ in range(args.reps)]
  )
  time_ratio = np.median(step_s / step_s[:, :1], axis=0)
  counts = np.arange(args.tokens) < first.lengths[:, None]
  print(
    f'{counts.sum()} tokens of {len(prompts)} responses; differences of their '
    f'log-probs in nats; {args.reps} rounds'
  )
  print(f'{"":20}{"mean":>8}{"99 %":>8}{"max":>8}  likeliest  MiB  CPU time')
  for kind, ratio in zip(found, time_ratio, strict=True):
    logp, likeliest = forced(kind, prompts, first.tokens)
    gaps = np.abs(logp - first.logp)[counts]
    arrays = jax.tree.leaves(jax.eval_shape(kind.layout.empty))
    cache_bytes = sum(x.size * x.dtype.itemsize for x in arrays)
    mib = cache_bytes / kind.engine.limits.slots * len(prompts) / 2**20
    print(
      f'{kind.name:20}{gaps.mean():8.4f}{np.quantile(gaps, 0.99):8.4f}'
      f'{gaps.max():8.4f}{likeliest[counts].sum():11d}{mib:5.1f}{ratio:8.2f} x'
    )


def _flags() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--model', required=True, type=pathlib.Path)
  parser.add_argument('--prompts', type=int, default=8, help='1 to 8 (8)')
  parser.add_argument('--tokens', type=int, default=64, help='at most (64)')
  parser.add_argument('--reps', type=int, default=5, help='rounds (5)')
  args = parser.parse_args()
  if not 0 < args.prompts <= len(_QUESTIONS):
    parser.error(f'--prompts must be 1 to {len(_QUESTIONS)}')
  return args


if __name__ == '__main__':
  main()

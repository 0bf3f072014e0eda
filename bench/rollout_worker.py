"""This package's sampler, on the line that `bench/rollout.py` sends.

A line asks for one measurement:

    uniform    a batch of responses of one length
    ragged N   groups of 16 of the first N lengths of the ragged set; all: 0
    prefill    one prefill for 16 samples against 16
    memory N   ragged, and what is on the device meanwhile
    bound      what no decode step on this machine can beat
"""

import collections
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

_HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE.parent), str(_HERE / 'peers')]

import worker  # noqa: E402

args = worker.flags()

import jax  # noqa: E402
import lengths  # noqa: E402
import numpy as np  # noqa: E402
import random_model  # noqa: E402
import step_bound  # noqa: E402
from jax import monitoring  # noqa: E402

from dapo_jax.data import tokenizers  # noqa: E402
from dapo_jax.model import decoder  # noqa: E402
from dapo_jax.parallel import mesh as mesh_lib  # noqa: E402
from dapo_jax.sampling import engine as engine_lib  # noqa: E402
from dapo_jax.sampling import limits as limits_lib  # noqa: E402
from dapo_jax.sampling import programs, scheduler, token_choice  # noqa: E402
from dapo_jax.training import model_folder  # noqa: E402

_LONGEST, _GROUP = 256, 16
# What `prefill` measures, which a user's model is not asked for.
_LONG_PROMPT_TOKENS = 512


class _Sampler(NamedTuple):
  """An engine with a model and its weights."""

  engine: engine_lib.Engine
  model: decoder.Abstract
  params: decoder.Params


def main() -> None:
  """Warms up, then answers."""
  sampler = _from_folder() if args.model else _random()
  questions = ['uniform', f'ragged {2 * args.batch}']
  questions += [] if args.model else ['prefill']
  about = {
    'tool': 'dapo_jax',
    'parameters': sum(x.size for x in jax.tree.leaves(sampler.params)),
  }
  worker.answer_lines(
    lambda question: _measure(sampler, question),
    warm_up=2 * questions,
    about=about,
  )


def _random() -> _Sampler:
  model = random_model.made(args)
  engine = _engine(model, prompt_tokens=_LONG_PROMPT_TOKENS)
  params = decoder.random_params(model, 0, shardings=engine.params_shardings)
  return _Sampler(engine, model, engine.place(params))


def _from_folder() -> _Sampler:
  folder = pathlib.Path(args.model)
  spec = model_folder.spec(folder, tokenizers.load(folder))
  model = decoder.abstract(spec, compute_dtype='float32', remat='none')
  engine = _engine(model, prompt_tokens=args.prompt)
  params = model_folder.load(folder, model, shardings=engine.params_shardings)
  return _Sampler(engine, model, engine.place(params))


def _engine(
  model: decoder.Abstract, *, prompt_tokens: int
) -> engine_lib.Engine:
  limits = limits_lib.Limits(
    slots=args.batch, prompt_tokens=prompt_tokens, response_tokens=_LONGEST
  )
  mesh = mesh_lib.engine_mesh(jax.devices()[:1], tensor=1)
  return engine_lib.Engine(
    model, random_model.NoTokenizer(), mesh, limits, seed=0
  )


def _measure(sampler: _Sampler, question: str) -> dict[str, float]:
  what, _, count = question.partition(' ')
  if what == 'uniform':
    return _generate(sampler, [args.tokens] * args.batch, samples=args.batch)
  if what == 'ragged':
    return _generate(sampler, lengths.read(int(count)), samples=_GROUP)
  if what == 'prefill':
    return _prefill(sampler)
  if what == 'memory':
    return _memory(sampler, lengths.read(int(count)))
  if what == 'bound':
    return step_bound.measure(sampler.model, sampler.params, batch=args.batch)
  raise ValueError(f'unknown question: {question}')


def _generate(
  sampler: _Sampler,
  most_tokens: Sequence[int],
  *,
  samples: int,
  look: Callable[[], None] = lambda: None,
) -> dict[str, float]:
  """Times responses of these lengths, in groups of `samples`."""
  requests = _requests(sampler, most_tokens, samples=samples)
  sampling = scheduler.Sampling(
    purpose=token_choice.Purpose.TRAIN,
    seed=0,
    choice=token_choice.Choice(temperature=1.0),
    limit_tokens=_LONGEST,
    chunk_tokens=32,
  )
  reports, compiled = [], []

  def report(chunk):
    reports.append(chunk)
    look()

  def go() -> int:
    groups = scheduler.generate(
      sampler.engine, sampler.params, requests, sampling, report=report
    )
    return sum(len(c.tokens) for _, group in groups for c in group)

  listen = lambda name, *_, **__: compiled.append(name)
  monitoring.register_event_duration_secs_listener(listen)
  found = worker.timed(go)
  monitoring.unregister_event_duration_listener(listen)
  steps = sum(r.steps for r in reports)
  host_s = sum(r.host_s for r in reports)
  return found | {
    'busy_frac': found['tokens'] / steps / args.batch,
    'host_frac': host_s / (sum(r.seconds for r in reports) - host_s),
    'compiled_count': sum('backend_compile' in name for name in compiled),
  }


def _requests(
  sampler: _Sampler, most_tokens: Sequence[int], *, samples: int
) -> list[scheduler.Request]:
  rng = np.random.default_rng(0)
  vocab = sampler.model.spec.vocab_size
  return [
    scheduler.Request(
      ordinal=begin,
      prompt_tokens=rng.integers(1, vocab, args.prompt).astype(np.int32),
      samples=samples,
      limits_tokens=np.array(most_tokens[begin : begin + samples]),
    )
    for begin in range(0, len(most_tokens), samples)
  ]


def _prefill(sampler: _Sampler) -> dict[str, float]:
  """Times 16 prefills and insertions of one prompt, and one of each."""
  engine = sampler.engine
  prompt = np.arange(1, 1 + _LONG_PROMPT_TOKENS, dtype=np.int32)
  keys = token_choice.sample_keys(
    0, token_choice.Purpose.TRAIN, 0, samples=_GROUP
  )

  def samples(slots):
    limits = np.full(len(slots), _LONGEST)
    choice = token_choice.Choice(temperature=1.0)
    return engine_lib.Samples(slots, keys[: len(slots)], limits, choice)

  def cpu_s(groups):
    state = jax.block_until_ready(engine.init_decode_state())
    begin_s = time.process_time()
    for slots in groups:
      prefix = engine.prefill_prompt(sampler.params, prompt)
      state = engine.insert_group(prefix, state, samples(slots))
    jax.block_until_ready(state)
    return time.process_time() - begin_s

  apart_s = cpu_s([np.array([slot]) for slot in range(_GROUP)])
  return {'apart_s': apart_s, 'shared_s': cpu_s([np.arange(_GROUP)])}


def _memory(sampler: _Sampler, most_tokens: Sequence[int]) -> dict[str, float]:
  """Returns what there is on the device during a ragged run, [bytes].

  `weights` and `cache`, all the slots, are what there has to be. `arrays`: the
  most bytes of all arrays of the process, whoever holds them, seen at a report
  of a chunk: besides those two the prefix of a prompt that has samples without
  a slot, and rows that ended. `scratch PROGRAM`: what a program works in
  besides its arguments and results, by XLA's own plan; of programs of a name,
  one for each size, the most. All that the process has compiled are there.
  """
  arrays = []
  look = lambda: arrays.append(sum(x.nbytes for x in jax.live_arrays()))
  _generate(sampler, most_tokens, samples=_GROUP, look=look)
  scratch = collections.Counter()
  for program in jax.devices()[0].client.live_executables():
    name = f'scratch {program.hlo_modules()[0].name.removeprefix("jit_")}'
    stats = program.get_compiled_memory_stats()
    scratch[name] = max(scratch[name], stats.temp_size_in_bytes)
  engine = sampler.engine
  slots = programs.state_shapes(sampler.model, engine.limits, engine.mesh)
  size = lambda tree: sum(
    x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )
  return {
    'weights': size(sampler.params),
    'cache': size(slots),
    'arrays': max(arrays),
    **scratch,
  }


if __name__ == '__main__':
  main()

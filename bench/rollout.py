"""Measures the sampler, side by side with others in one run.

    python bench/rollout.py [--tunix-python=PY] [--hf-python=PY] [--large]
    python bench/rollout.py --model=DIR      # a model of your own, alone

Every tool is a process that has compiled and warmed up; they are asked in
turns, once a round, so that what else the machine does hits all alike. Rates
are useful tokens a second of CPU time, medians over the rounds (--reps). The
peers decode in lockstep: their rate on ragged lengths is their uniform rate
times the share of useful slots, see bench/peers/README.md, which also says how
to make their environments. Without a peer's Python it is left out.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

_HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent))
_SMALL = dict(layers=4, embed=256, heads=4, kv_heads=2, head_dim=64, ffw=1024)
_LARGE = dict(layers=8, embed=512, heads=8, kv_heads=4, head_dim=64, ffw=2048)
_BATCH, _PROMPT, _UNIFORM, _LONGEST, _GROUP = 32, 32, 128, 256, 16


def main() -> None:
  """Runs the comparison, or, as a worker, this package's part of it."""
  args = _flags()
  if args.worker:
    _work(args)
  elif args.model:
    _report_model(args)
  else:
    _compare(args)


def _flags() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--tunix-python', help='a Python with Tunix')
  parser.add_argument('--hf-python', help='a Python with torch, transformers')
  parser.add_argument('--model', help='folder of a model to measure alone')
  parser.add_argument('--large', action='store_true', help='34.6 M parameters')
  parser.add_argument('--reps', type=int, default=5, help='rounds (5)')
  parser.add_argument('--threads', type=int, default=1, help='cores (1)')
  parser.add_argument('--json', help='file to write all numbers to')
  parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
  return parser.parse_args()


class Tool(NamedTuple):
  """A warmed-up sampler in a process of its own."""

  name: str
  about: dict[str, Any]
  process: subprocess.Popen

  def ask(self, what: str = 'uniform') -> dict[str, float]:
    """Returns what one measurement found."""
    self.process.stdin.write(what + '\n')
    self.process.stdin.flush()
    return json.loads(self.process.stdout.readline())


def _start(name: str, command: list[str]) -> Tool:
  process = subprocess.Popen(
    command,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  )
  line = process.stdout.readline()
  if not line:
    sys.exit(f'{name} did not start: {" ".join(command)}')
  return Tool(name, json.loads(line), process)


def _tools(args: argparse.Namespace) -> list[Tool]:
  shape = _LARGE if args.large else _SMALL
  sizes = {'vocab': 8192 if args.large else 4096, 'threads': args.threads}
  sizes |= {'batch': _BATCH, 'prompt': _PROMPT, 'tokens': _UNIFORM}
  flags = [f'--{k}={v}' for k, v in {**shape, **sizes}.items()]
  ours = [sys.executable, __file__, '--worker', f'--threads={args.threads}']
  tools = [_start('dapo_jax', ours + ['--large'] * args.large)]
  for name, python in (
    ('tunix', args.tunix_python),
    ('hf', args.hf_python),
  ):
    if python:
      script = str(_HERE / 'peers' / f'{name}_sampler.py')
      tools.append(_start(name, [python, script, *flags]))
  return tools


def _compare(args: argparse.Namespace) -> None:
  lengths = _lengths()
  lockstep = _lockstep_use(lengths)
  tools = _tools(args)
  found: dict[str, list[dict[str, float]]] = {}
  for _ in range(args.reps):
    for tool in tools:
      found.setdefault(f'{tool.name} uniform', []).append(tool.ask())
    found.setdefault('dapo_jax ragged', []).append(tools[0].ask('ragged'))
    found.setdefault('dapo_jax prefill', []).append(tools[0].ask('prefill'))
  growth = {n: tools[0].ask(f'growth {n}') for n in (512, 4096)}
  for tool in tools:
    tool.process.stdin.close()
  print(f'{args.reps} rounds, {args.threads} threads, medians')
  ours = _rate(found['dapo_jax uniform'])
  ragged = _rate(found['dapo_jax ragged'])
  print(f'{"":14}{"uniform":>12}{"ragged":>12}   useful tokens / CPU-s')
  print(f'{"dapo_jax":14}{ours:12.0f}{ragged:12.0f}')
  for tool in tools[1:]:
    peer = _rate(found[f'{tool.name} uniform'])
    print(
      f'{tool.name:14}{peer:12.0f}{peer * lockstep:12.0f}   '
      f'{ours / peer:.2f} x, ragged {ragged / peer / lockstep:.2f} x'
    )
  _print_own(found, growth)
  if args.json:
    about = {tool.name: tool.about for tool in tools}
    text = json.dumps({'about': about, 'found': found, 'growth': growth})
    pathlib.Path(args.json).write_text(text)


def _print_own(found, growth) -> None:
  last = found['dapo_jax ragged'][-1]
  prefill = found['dapo_jax prefill']
  shared = statistics.median(p['apart_s'] / p['shared_s'] for p in prefill)
  per_token = {n: g['cpu_s'] / g['tokens'] for n, g in growth.items()}
  compiled = max(g['compiled_count'] for g in found['dapo_jax ragged'])
  print(f'slots used on the ragged set       {last["busy_frac"]:.1%}')
  print(f'host time of a chunk / device time {last["host_frac"]:.1%}')
  print(f'one prefill for 16 against 16      {shared:.1f} x less time')
  print(f'programs compiled after warm-up    {compiled}')
  print(
    'time a token, 4,096 against 512    '
    f'{per_token[4096] / per_token[512]:.2f} x'
  )


def _rate(rows: list[dict[str, float]]) -> float:
  return statistics.median(row['tokens'] / row['cpu_s'] for row in rows)


def _lengths() -> list[int]:
  file = _HERE / 'peers' / 'lengths.json'
  return json.loads(file.read_text())['lengths']


def _lockstep_use(lengths: list[int]) -> float:
  """Returns the useful share of slots of batches decoded in lockstep."""
  batches = [lengths[i : i + _BATCH] for i in range(0, len(lengths), _BATCH)]
  return sum(lengths) / sum(len(b) * max(b) for b in batches)


# What follows runs in this package's own process.


def _limit_cores(threads: int) -> None:
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  if hasattr(os, 'sched_setaffinity'):
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.sched_setaffinity(0, cores)


def _work(args: argparse.Namespace) -> None:
  """Answers the lines of stdin with measurements."""
  _limit_cores(args.threads)
  out = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  sampler = _random_sampler(_LARGE if args.large else _SMALL, large=args.large)
  for what in ('uniform', 'ragged', 'prefill', 'uniform', 'ragged', 'prefill'):
    sampler.measure(what)
  about = {'tool': 'dapo_jax', 'parameters': sampler.parameters_count()}
  print(json.dumps(about), file=out, flush=True)
  for line in sys.stdin:
    print(json.dumps(sampler.measure(line.strip())), file=out, flush=True)


class _Sampler:
  """An engine with weights, and the measurements of it."""

  def __init__(self, engine, params, *, vocab_size: int):
    self._engine = engine
    self._params = params
    self._vocab_size = vocab_size

  def parameters_count(self) -> int:
    import jax

    return sum(x.size for x in jax.tree.leaves(self._params))

  def measure(self, what: str) -> dict[str, float]:
    """Returns one measurement: uniform, ragged, prefill or `growth N`."""
    if what == 'prefill':
      return self._prefill()
    if what == 'uniform':
      return self._generate([_UNIFORM] * _BATCH, samples=_BATCH)
    lengths = _lengths()
    if what.startswith('growth'):
      count = int(what.split()[1])
      lengths = (lengths * (count // len(lengths) + 1))[:count]
    return self._generate(lengths, samples=_GROUP)

  def _generate(self, lengths: list[int], *, samples: int):
    import numpy as np
    from jax import monitoring

    from dapo_jax.sampling import scheduler, token_choice

    rng = np.random.default_rng(0)
    requests = [
      scheduler.Request(
        i,
        rng.integers(1, self._vocab_size, _PROMPT).astype(np.int32),
        samples,
        np.array(lengths[i * samples : (i + 1) * samples]),
      )
      for i in range(len(lengths) // samples)
    ]
    sampling = scheduler.Sampling(
      purpose=token_choice.Purpose.TRAIN,
      seed=0,
      choice=token_choice.Choice(temperature=1.0),
      limit_tokens=_LONGEST,
      chunk_tokens=32,
    )
    reports, compiled = [], []
    listen = lambda name, *_, **__: compiled.append(name)
    monitoring.register_event_duration_secs_listener(listen)
    wall, cpu = time.perf_counter(), time.process_time()
    groups = scheduler.generate(
      self._engine, self._params, requests, sampling, report=reports.append
    )
    tokens = sum(len(c.tokens) for _, group in groups for c in group)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    monitoring.unregister_event_duration_listener(listen)
    steps = sum(r.steps for r in reports)
    host_s = sum(r.host_s for r in reports)
    return {
      'tokens': tokens,
      'wall_s': wall,
      'cpu_s': cpu,
      'busy_frac': tokens / steps / self._engine.limits.slots,
      'host_frac': host_s / (sum(r.seconds for r in reports) - host_s),
      'compiled_count': sum('backend_compile' in name for name in compiled),
    }

  def _prefill(self) -> dict[str, float]:
    """Times 16 prefills and insertions of one prompt, and one of each."""
    import jax
    import numpy as np

    from dapo_jax.sampling import engine as engine_lib
    from dapo_jax.sampling import token_choice

    prompt = np.arange(1, 513, dtype=np.int32)
    keys = token_choice.sample_keys(
      0, token_choice.Purpose.TRAIN, 0, samples=_GROUP
    )

    def samples(slots):
      limits = np.full(len(slots), _LONGEST)
      choice = token_choice.Choice(temperature=1.0)
      return engine_lib.Samples(slots, keys[: len(slots)], limits, choice)

    def timed(groups):
      state = jax.block_until_ready(self._engine.init_decode_state())
      begin = time.process_time()
      for slots in groups:
        prefix = self._engine.prefill_prompt(self._params, prompt)
        state = self._engine.insert_group(prefix, state, samples(slots))
      jax.block_until_ready(state)
      return time.process_time() - begin

    apart = timed([np.array([slot]) for slot in range(_GROUP)])
    return {'apart_s': apart, 'shared_s': timed([np.arange(_GROUP)])}


class _NoTokenizer(NamedTuple):
  """An end id that never comes is all that the engine asks for."""

  eos_ids: tuple[int, ...] = (1_000_000,)


def _random_sampler(shape: dict[str, int], *, large: bool) -> _Sampler:
  import jax

  from dapo_jax.model import decoder
  from dapo_jax.model import spec as spec_lib
  from dapo_jax.parallel import mesh as mesh_lib
  from dapo_jax.sampling import engine
  from dapo_jax.sampling import limits as limits_lib

  vocab = 8192 if large else 4096
  spec = spec_lib.Spec(
    vocab_size=vocab,
    vocab_rows=vocab,
    layers=shape['layers'],
    embed_dim=shape['embed'],
    heads=shape['heads'],
    kv_heads=shape['kv_heads'],
    head_dim=shape['head_dim'],
    ffw_dim=shape['ffw'],
    qkv_bias=False,
    qk_norm=True,
    tied_head=True,
    rope_theta=1e6,
    norm_eps=1e-6,
    init_std=0.02,
    context_tokens=4096,
  )
  model = decoder.abstract(spec, compute_dtype='float32', remat='none')
  made = engine.Engine(
    model,
    _NoTokenizer(),
    mesh_lib.engine_mesh(jax.devices()[:1], tensor=1),
    limits_lib.Limits(_BATCH, 512, _LONGEST),
    seed=0,
  )
  params = made.place(
    decoder.random_params(model, 0, shardings=made.params_shardings)
  )
  return _Sampler(made, params, vocab_size=vocab)


def _report_model(args: argparse.Namespace) -> None:
  """Prints the rates of a user's model, with this machine's own bound."""
  _limit_cores(args.threads)
  import jax

  from dapo_jax.data import tokenizers
  from dapo_jax.model import decoder
  from dapo_jax.parallel import mesh as mesh_lib
  from dapo_jax.sampling import engine
  from dapo_jax.sampling import limits as limits_lib
  from dapo_jax.training import model_folder

  folder = pathlib.Path(args.model)
  tokenizer = tokenizers.load(folder)
  spec = model_folder.spec(folder, tokenizer)
  model = decoder.abstract(spec, compute_dtype='float32', remat='none')
  made = engine.Engine(
    model,
    _NoTokenizer(),
    mesh_lib.engine_mesh(jax.devices()[:1], tensor=1),
    limits_lib.Limits(_BATCH, 64, _LONGEST),
    seed=0,
  )
  params = model_folder.load(folder, model, shardings=made.params_shardings)
  sampler = _Sampler(made, params, vocab_size=spec.vocab_size)
  sampler.measure('uniform')
  rows = [sampler.measure('uniform') for _ in range(args.reps)]
  bound = _bound_tokens_per_s(model, params)
  rate = _rate(rows)
  print(
    f'{rate:.0f} tokens / CPU-s at batch {_BATCH}, medians of {args.reps}; '
    f"this machine's bound is {bound:.0f} ({rate / bound:.0%})"
  )


def _bound_tokens_per_s(model, params) -> float:
  """Returns tokens a CPU-second if only the weights' products took time.

  The larger of reading every weight once a step, at the measured rate of a
  copy, and of the products themselves, timed on the real shapes.
  """
  import jax
  import jax.numpy as jnp

  def timed(call):
    jax.block_until_ready(call())
    best = float('inf')
    for _ in range(5):
      begin = time.process_time()
      jax.block_until_ready(call())
      best = min(best, time.process_time() - begin)
    return best

  block = jnp.zeros(64 * 2**20, jnp.float32)
  copy = jax.jit(lambda x: x + 1.0)
  # A copy reads and writes.
  read_s = timed(lambda: copy(block)) / 2 / block.nbytes
  weights = sum(x.nbytes for x in jax.tree.leaves(params))
  spec = model.spec
  q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
  shapes = [
    (spec.embed_dim, q + 2 * kv),
    (q, spec.embed_dim),
    (spec.embed_dim, 2 * spec.ffw_dim),
    (spec.ffw_dim, spec.embed_dim),
  ]
  product = jax.jit(lambda x, w: x @ w)
  seconds = 0.0
  for times, (rows, columns) in [
    *((spec.layers, s) for s in shapes),
    (1, (spec.embed_dim, spec.vocab_rows)),
  ]:
    x, w = jnp.ones((_BATCH, rows)), jnp.ones((rows, columns))
    seconds += times * timed(lambda x=x, w=w: product(x, w))
  return _BATCH / max(seconds, weights * read_s)


if __name__ == '__main__':
  main()

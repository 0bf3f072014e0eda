"""Measures the sampler, side by side with others in one run.

    python bench/rollout.py [--tunix-python=PY] [--hf-python=PY] [--large]
    python bench/rollout.py --model=DIR [--hf-python=PY]  # a model of your own

Every tool is a process that has compiled and warmed up; they are asked in
turns, once a round, so that what else the machine does hits all alike. Rates
are useful tokens a second of CPU time, medians over the rounds (--reps). The
peers decode in lockstep: their rate on ragged lengths is their uniform rate
times the share of useful slots, see bench/peers/README.md, which also says how
to make their environments. Without a peer's Python it is left out.
"""

import argparse
import json
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import lengths
import tool as tool_lib

_HERE = pathlib.Path(__file__).resolve().parent
_SMALL = dict(
  layers=4, embed=256, heads=4, kv_heads=2, head_dim=64, ffw=1024, vocab=4096
)
_LARGE = dict(
  layers=8, embed=512, heads=8, kv_heads=4, head_dim=64, ffw=2048, vocab=8192
)
_BATCH, _PROMPT_TOKENS, _UNIFORM_TOKENS = 32, 32, 128
# Of a user's model, which may be slow.
_MODEL_RAGGED = 128

_Rows = Sequence[Mapping[str, float]]


def main() -> None:
  """Measures and prints."""
  args = _flags()
  tools = _start(args)
  report = _report_model if args.model else _report
  found = report(args, tools)
  tool_lib.stop(tools)
  if args.json:
    found |= {'about': {tool.name: tool.about for tool in tools}}
    pathlib.Path(args.json).write_text(json.dumps(found))


def _flags() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--tunix-python', help='a Python with Tunix')
  parser.add_argument('--hf-python', help='a Python with torch, transformers')
  parser.add_argument('--model', help='folder of a model to measure instead')
  parser.add_argument('--large', action='store_true', help='34.6 M parameters')
  parser.add_argument('--reps', type=int, default=5, help='rounds (5)')
  parser.add_argument('--threads', type=int, default=1, help='cores (1)')
  parser.add_argument('--json', help='file to write all numbers to')
  args = parser.parse_args()
  if args.model and args.tunix_python:
    parser.error('with --model there is no --tunix-python: it has no import')
  return args


def _start(args: argparse.Namespace) -> list[tool_lib.Tool]:
  """Returns the samplers, ours first."""
  sizes = {'batch': _BATCH, 'prompt': _PROMPT_TOKENS}
  sizes |= {'tokens': _UNIFORM_TOKENS, 'threads': args.threads}
  shape = _LARGE if args.large else _SMALL
  what = {'model': args.model} if args.model else shape
  flags = [f'--{k}={v}' for k, v in {**what, **sizes}.items()]
  tools = []
  for name, python, script in (
    ('dapo_jax', sys.executable, 'rollout_worker.py'),
    ('tunix', args.tunix_python, 'peers/tunix_sampler.py'),
    ('hf', args.hf_python, 'peers/hf_sampler.py'),
  ):
    if python:
      command = [python, str(_HERE / script), *flags]
      tools.append(tool_lib.start(name, command))
  return tools


def _report(
  args: argparse.Namespace, tools: Sequence[tool_lib.Tool]
) -> dict[str, Any]:
  """Compares on random weights; returns all numbers."""
  own = tools[0]
  rounds: dict[str, list[dict[str, float]]] = {}
  for _ in range(args.reps):
    for tool in tools:
      rounds.setdefault(f'{tool.name} uniform', []).append(tool.ask())
    rounds.setdefault('dapo_jax ragged', []).append(own.ask('ragged 0'))
    rounds.setdefault('dapo_jax prefill', []).append(own.ask('prefill'))
  growth = {n: own.ask(f'ragged {n}') for n in (512, 4096)}
  memory = own.ask('memory 0')
  lockstep = lengths.lockstep_use(_BATCH)
  print(f'{args.reps} rounds, {args.threads} threads, medians')
  ours = tool_lib.rate(rounds['dapo_jax uniform'])
  ragged = tool_lib.rate(rounds['dapo_jax ragged'])
  print(f'{"":14}{"uniform":>12}{"ragged":>12}   useful tokens / CPU-s')
  print(f'{"dapo_jax":14}{ours:12.0f}{ragged:12.0f}')
  for tool in tools[1:]:
    peer = tool_lib.rate(rounds[f'{tool.name} uniform'])
    print(
      f'{tool.name:14}{peer:12.0f}{peer * lockstep:12.0f}   '
      f'{ours / peer:.2f} x, ragged {ragged / peer / lockstep:.2f} x'
    )
  _print_own(rounds, growth)
  _print_memory(memory)
  return {'found': rounds, 'growth': growth, 'memory': memory}


def _print_own(rounds: Mapping[str, _Rows], growth: Mapping[int, Any]) -> None:
  last = rounds['dapo_jax ragged'][-1]
  prefill = rounds['dapo_jax prefill']
  shared = statistics.median(p['apart_s'] / p['shared_s'] for p in prefill)
  per_token = {n: g['cpu_s'] / g['tokens'] for n, g in growth.items()}
  compiled = max(g['compiled_count'] for g in rounds['dapo_jax ragged'])
  print(f'slots used on the ragged set       {last["busy_frac"]:.1%}')
  print(f'host time of a chunk / device time {last["host_frac"]:.1%}')
  print(f'one prefill for 16 against 16      {shared:.1f} x less time')
  print(f'programs compiled after warm-up    {compiled}')
  print(
    'time a token, 4,096 against 512    '
    f'{per_token[4096] / per_token[512]:.2f} x'
  )


def _print_memory(memory: Mapping[str, float]) -> None:
  """Prints the most that was on the device, and the largest scratch spaces."""
  needed = memory['weights'] + memory['cache']
  scratch = {
    name.removeprefix('scratch '): size / needed
    for name, size in memory.items()
    if name.startswith('scratch ')
  }
  arrays = memory['arrays'] / needed
  most = arrays + max(scratch.values())
  print(f'device buffers / (weights + cache) {most:.2f}')
  print(f'  arrays                           {arrays:.2f}')
  for name in sorted(scratch, key=scratch.get, reverse=True)[:3]:
    print(f'  scratch of {name:22}  {scratch[name]:.2f}')


def _report_model(
  args: argparse.Namespace, tools: Sequence[tool_lib.Tool]
) -> dict[str, Any]:
  """Compares on a user's model, with this machine's bound; returns all."""
  own = tools[0]
  bounds = [own.ask('bound')]
  rounds: dict[str, list[dict[str, float]]] = {tool.name: [] for tool in tools}
  for _ in range(args.reps):
    for tool in tools:
      rounds[tool.name].append(tool.ask())
  bounds.append(own.ask('bound'))
  memory = own.ask(f'memory {_MODEL_RAGGED}')
  print(
    f'{args.reps} rounds, {args.threads} threads, medians; {_BATCH} prompts of '
    f'{_PROMPT_TOKENS} tokens, {_UNIFORM_TOKENS} more each'
  )
  print(f'{"":24}{"tokens / CPU-s":>14}{"tokens / s":>12}')
  rates = {
    name: (tool_lib.rate(rows), tool_lib.rate(rows, 'wall_s'))
    for name, rows in rounds.items()
  }
  ours = rates['dapo_jax']
  print(f'{"dapo_jax":24}{ours[0]:14.0f}{ours[1]:12.0f}')
  for tool in tools[1:]:
    cpu, wall = rates[tool.name]
    print(
      f'{tool.name:24}{cpu:14.0f}{wall:12.0f}   '
      f'{ours[0] / cpu:.2f} x, wall {ours[1] / wall:.2f} x'
    )
  _print_bound(bounds, ours[0])
  _print_memory(memory)
  return {'found': rounds, 'bounds': bounds, 'memory': memory}


def _print_bound(rows: _Rows, tokens_per_s: float) -> None:
  """Prints the rates of `step_bound`, each the best found; which one bounds."""
  per_s = {name: _BATCH / min(row[name] for row in rows) for name in rows[0]}
  bound = min('weights_s', 'products_s', key=per_s.get)
  for name, label in (
    ('weights_s', 'reading the weights'),
    ('products_s', 'products'),
    ('products_apart_s', 'products, as in a step'),
  ):
    is_bound = ": this machine's bound" if name == bound else ''
    reached = f'{tokens_per_s / per_s[name]:.0%} reached{is_bound}'
    print(f'{label:24}{per_s[name]:14.0f}   {reached}')


if __name__ == '__main__':
  main()

"""Measures the update, side by side with others in one run.

    python bench/update.py [--tunix-python=PY] [--hf-python=PY]

Every tool is a process that has compiled and warmed up; they are asked in
turns, once a round, so that what else the machine does hits all alike. Rates
are useful tokens a second of CPU time, medians over the rounds (--reps): the
tokens of prompts and responses that are no padding, a prompt's once for each
response, whoever computes it how often. An update is one step of the optimizer
over 16 responses of one length ("uniform") or over the first --responses of
the ragged set. A "step" is a rollout, the log-probs before the update if the
tool takes any, and the update: ours as a whole, a peer's as the sum of the
update and of the rollout, which `bench/rollout.py` describes. See
bench/peers/README.md for what the peers are given.
"""

import argparse
import json
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence

import lengths
import tool as tool_lib

_HERE = pathlib.Path(__file__).resolve().parent
_SMALL = dict(
  layers=4, embed=256, heads=4, kv_heads=2, head_dim=64, ffw=1024, vocab=4096
)
_BATCH, _SAMPLER_BATCH = 16, 32
_PROMPT_TOKENS, _UNIFORM_TOKENS = 32, 128

_Rows = Sequence[Mapping[str, float]]


def main() -> None:
  """Measures and prints."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--tunix-python', help='a Python with Tunix')
  parser.add_argument('--hf-python', help='a Python with torch, transformers')
  parser.add_argument('--responses', type=int, default=128, help='(128)')
  parser.add_argument('--grown', type=int, default=1024, help='(1024)')
  parser.add_argument('--reps', type=int, default=5, help='rounds (5)')
  parser.add_argument('--threads', type=int, default=1, help='cores (1)')
  parser.add_argument('--json', help='file to write all numbers to')
  args = parser.parse_args()
  if args.responses % 16 or not 32 <= args.responses <= 512:
    parser.error('--responses must be whole groups of 16, 32 to 512')
  tools = {
    name: tool_lib.start(name, command)
    for name, command in _commands(args).items()
  }
  for question in 2 * [*_questions('dapo_jax', 32), 'growth 32']:
    tools['dapo_jax'].ask(question)  # Compiles.
  rounds, grown = _measured(args, tools)
  tool_lib.stop(list(tools.values()))
  _report(args, rounds, grown)
  if args.json:
    about = {name: tool.about for name, tool in tools.items()}
    found = {'found': rounds, 'growth': grown, 'about': about}
    pathlib.Path(args.json).write_text(json.dumps(found))


def _commands(args: argparse.Namespace) -> dict[str, list[str]]:
  """Returns how each process is started, ours first."""

  def command(python: str, script: str, batch: int) -> list[str]:
    sizes = {'batch': batch, 'prompt': _PROMPT_TOKENS}
    sizes |= {'tokens': _UNIFORM_TOKENS, 'threads': args.threads}
    flags = [f'--{k}={v}' for k, v in {**_SMALL, **sizes}.items()]
    return [python, str(_HERE / script), *flags]

  found = {'dapo_jax': command(sys.executable, 'update_worker.py', _BATCH)}
  for name, python in (('tunix', args.tunix_python), ('hf', args.hf_python)):
    if python:
      sampler, update = f'peers/{name}_sampler.py', f'peers/{name}_update.py'
      found[name] = command(python, update, _BATCH)
      found[f'{name} sampler'] = command(python, sampler, _SAMPLER_BATCH)
  return found


def _questions(tool: str, responses: int) -> list[str]:
  """Returns what a tool is asked in every round."""
  if tool.endswith(' sampler'):
    return ['uniform']
  questions = ['uniform', f'ragged {responses}']
  if tool == 'dapo_jax':
    return [*questions, f'step {responses}', f'old {responses}']
  return questions if tool == 'tunix' else [*questions, f'sorted {responses}']


def _measured(
  args: argparse.Namespace, tools: Mapping[str, tool_lib.Tool]
) -> tuple[dict[str, list[dict[str, float]]], dict[int, list]]:
  """Returns the answers by tool and question, and those of `growth`."""
  rounds: dict[str, list[dict[str, float]]] = {}
  grown: dict[int, list] = {64: [], args.grown: []}
  for number in range(args.reps):
    for name, tool in tools.items():
      for question in _questions(name, args.responses):
        what = question.split()[0]
        rounds.setdefault(f'{name} {what}', []).append(tool.ask(question))
    # Of the large one, which takes long, three are enough.
    for count in grown if number < 3 else ():
      grown[count].append(tools['dapo_jax'].ask(f'growth {count}'))
  return rounds, grown


def _report(
  args: argparse.Namespace,
  rounds: Mapping[str, _Rows],
  grown: Mapping[int, _Rows],
) -> None:
  kinds = ('uniform', 'ragged', 'step')
  print(f'{args.reps} rounds, {args.threads} threads, medians')
  print(f'{"":12}' + ''.join(f'{k:>10}' for k in kinds), end='')
  print('   useful tokens / CPU-s')
  ours = {kind: tool_lib.rate(rounds[f'dapo_jax {kind}']) for kind in kinds}
  print(f'{"dapo_jax":12}' + ''.join(f'{ours[k]:10.0f}' for k in kinds))
  for name in ('tunix', 'hf'):
    if f'{name} uniform' not in rounds:
      continue
    peer = {k: tool_lib.rate(rounds[f'{name} {k}']) for k in kinds[:2]}
    peer['step'] = _peer_step(rounds, name, args.responses)
    line = ', '.join(f'{k} {ours[k] / peer[k]:.2f} x' for k in kinds)
    print(f'{name:12}' + ''.join(f'{peer[k]:10.0f}' for k in kinds), end='')
    print(f'   {line}')
  if rows := rounds.get('hf sorted'):
    rate = tool_lib.rate(rows)
    print(f'{"hf, sorted":12}{"":10}{rate:10.0f}{"":10}', end='')
    print(f'   ragged {ours["ragged"] / rate:.2f} x')
  _print_own(args, rounds, grown)


def _peer_step(rounds: Mapping[str, _Rows], name: str, responses: int) -> float:
  """Returns the useful tokens of a step that a peer makes a CPU-second."""
  use = lengths.lockstep_use(_SAMPLER_BATCH, responses)
  update = rounds[f'{name} ragged']
  tokens = update[0]['tokens']
  sampled = tokens - responses * _PROMPT_TOKENS
  sampler = tool_lib.rate(rounds[f'{name} sampler uniform']) * use
  return tokens / (sampled / sampler + tokens / tool_lib.rate(update))


def _print_own(
  args: argparse.Namespace,
  rounds: Mapping[str, _Rows],
  grown: Mapping[int, _Rows],
) -> None:
  ragged, step = rounds['dapo_jax ragged'], rounds['dapo_jax step']
  share = lambda what: statistics.median(
    part['cpu_s'] / whole['cpu_s']
    for part, whole in zip(rounds[f'dapo_jax {what}'], step, strict=True)
  )
  packing = statistics.median(r['pack_s'] / r['cpu_s'] for r in ragged)
  compiled = max(
    row['compiled_count']
    for name, rows in rounds.items()
    if name.startswith('dapo_jax')
    for row in rows
  )
  per_token = {
    count: statistics.median(row['cpu_s'] / row['tokens'] for row in rows)
    for count, rows in grown.items()
  }
  growth = per_token[args.grown] / per_token[64]
  print(f'of a step: the update                {share("ragged"):.1%}')
  print(f'  the log-probs before it            {share("old"):.1%}')
  print(f'real tokens of all row tokens        {ragged[0]["real_frac"]:.1%}')
  print(f'packing and moving / the update      {packing:.1%}')
  print(f'programs compiled after warm-up      {compiled}')
  print(f'time a token, {args.grown:,} against 64       {growth:.2f} x')


if __name__ == '__main__':
  main()

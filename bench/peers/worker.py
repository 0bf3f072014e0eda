"""What the samplers' processes have in common: flags, clocks, a line an answer.

Nothing but the standard library is imported before the cores are limited.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_SHAPE = ('layers', 'embed', 'heads', 'kv_heads', 'head_dim', 'ffw', 'vocab')
_SIZES = ('batch', 'prompt', 'tokens', 'threads')


def flags() -> argparse.Namespace:
  """Returns what to sample with, and limits this process to its cores.

  That is random weights of a shape, or the model in a folder.
  """
  parser = argparse.ArgumentParser()
  parser.add_argument('--model')
  for name in (*_SHAPE, *_SIZES):
    parser.add_argument(f'--{name}', type=int)
  args = parser.parse_args()
  wanted = _SIZES if args.model else _SHAPE + _SIZES
  missing = [name for name in wanted if getattr(args, name) is None]
  if missing:
    parser.error(f'--{missing[0]} is missing')
  os.environ['OMP_NUM_THREADS'] = str(args.threads)
  os.environ['OMP_WAIT_POLICY'] = 'passive'
  os.environ['HF_HUB_OFFLINE'] = '1'
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  if hasattr(os, 'sched_setaffinity'):
    cores = sorted(os.sched_getaffinity(0))[: args.threads]
    os.sched_setaffinity(0, cores)
  return args


def serve(go: Callable[[], int], about: dict[str, Any]) -> None:
  """Answers every line on stdin with the tokens and times of one `go`."""
  answer_lines(lambda _: timed(go), warm_up=['', ''], about=about)


def answer_lines(
  answer: Callable[[str], dict[str, float]],
  *,
  warm_up: list[str],
  about: dict[str, Any],
) -> None:
  """Answers the questions of the warm-up to no one, those on stdin to stdout.

  Between them `about` says that it is ready.
  """
  out = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)  # What libraries print goes to stderr.
  for question in warm_up:
    answer(question)
  print(json.dumps(about), file=out, flush=True)
  for line in sys.stdin:
    print(json.dumps(answer(line.strip())), file=out, flush=True)


def timed(go: Callable[[], int]) -> dict[str, float]:
  """Returns the tokens that `go` says it made, and its times."""
  wall, cpu = time.perf_counter(), time.process_time()
  tokens = go()
  return {
    'tokens': tokens,
    'wall_s': time.perf_counter() - wall,
    'cpu_s': time.process_time() - cpu,
  }

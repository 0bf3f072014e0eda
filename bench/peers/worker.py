"""What the peers' samplers have in common: flags, clocks, one line a go."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def flags() -> argparse.Namespace:
  """Returns the shape to sample with, and limits this process to its cores."""
  parser = argparse.ArgumentParser()
  for name in ('layers', 'embed', 'heads', 'kv_heads', 'head_dim', 'ffw'):
    parser.add_argument(f'--{name}', type=int, required=True)
  for name in ('vocab', 'batch', 'prompt', 'tokens', 'threads'):
    parser.add_argument(f'--{name}', type=int, required=True)
  args = parser.parse_args()
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
  out = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)  # What libraries print goes to stderr.
  for _ in range(2):
    go()
  print(json.dumps(about), file=out, flush=True)
  for _ in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = go()
    answer = {
      'tokens': tokens,
      'wall_s': time.perf_counter() - wall,
      'cpu_s': time.process_time() - cpu,
    }
    print(json.dumps(answer), file=out, flush=True)

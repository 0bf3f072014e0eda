"""Times checkpoints: digests, a save, and what comes back.

    python bench/checkpoint.py [--millions=135] [--rounds=3] [--folder=DIR]

The state is that of AdamW for so many parameters, random float32 in arrays as
a model has them: parameters and two moments. "save, the run waits" is until
the next step may begin, digests included; "save, until whole" is what goes on
behind it as well; a restore compares its digests. Prints seconds, medians of
the rounds, and bytes of the state a second. Another state is made each round,
so that no round finds its checkpoint written already; what is read may be in
the system's cache of files.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from dapo_jax.training import checkpoint, digests, update  # noqa: E402

# Arrays of a model, and the length of their last axis.
_ARRAYS, _WIDTH = 10, 1024


def main() -> None:
  """Prints a row for each part."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--millions', type=float, default=135, help='parameters')
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--folder', help='where to write; else a temporary one')
  args = parser.parse_args()
  rows = round(1e6 * args.millions / _ARRAYS / _WIDTH)
  if rows < 1 or args.rounds < 1:
    parser.error('--millions must be 0.02 at least, and --rounds 1')
  state_bytes = sum(x.nbytes for x in jax.tree.leaves(state_of(rows, seed=0)))
  with tempfile.TemporaryDirectory(dir=args.folder) as folder:
    found = [times(folder, rows, step) for step in range(args.rounds + 1)]
  print(
    f'{state_bytes / 12e6:.1f} M parameters, {state_bytes / 1e9:.2f} GB, '
    f'{os.cpu_count()} cores, {args.rounds} rounds, medians'
  )
  print(f'{"":22}{"s":>7}{"GB/s":>8}')
  for name in found[0]:
    # The first round compiles.
    seconds = statistics.median(f[name] for f in found[1:])
    print(f'{name:22}{seconds:7.2f}{state_bytes / 1e9 / seconds:8.2f}')


def state_of(rows: int, *, seed: int) -> update.TrainState:
  """Returns a state whose arrays are random, [rows, width] each."""
  keys = jax.random.split(jax.random.key(seed), 3 * _ARRAYS)
  arrays = [jax.random.normal(key, (rows, _WIDTH)) for key in keys]
  parts = [
    {f'array{i}': arrays[part * _ARRAYS + i] for i in range(_ARRAYS)}
    for part in range(3)
  ]
  return update.TrainState(parts[0], {'mu': parts[1], 'nu': parts[2]})


def times(folder: str, rows: int, step: int) -> dict[str, float]:
  """Returns how long each part took, [s], with a state of its own."""
  state = jax.block_until_ready(state_of(rows, seed=step))
  like = jax.tree.map(_shape, state)
  progress = checkpoint.Progress(checkpoint.Counters(rollout_steps=step))
  found = {}
  with checkpoint.open_store(folder, keep=1) as store:
    begin = time.perf_counter()
    digests.leaves(state)
    found['digests'] = time.perf_counter() - begin
    begin = time.perf_counter()
    store.save(state, progress, {})
    found['save, the run waits'] = time.perf_counter() - begin
    store.wait()
    found['save, until whole'] = time.perf_counter() - begin
    del state
    begin = time.perf_counter()
    jax.block_until_ready(store.restore(like)[0])
    found['restore'] = time.perf_counter() - begin
  return found


def _shape(x: jnp.ndarray) -> Any:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


if __name__ == '__main__':
  main()

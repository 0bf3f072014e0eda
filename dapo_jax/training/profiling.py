"""Traces of chosen rollout steps, for a profiler's viewer."""

import contextlib
import pathlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def traced(
  folder: pathlib.Path, step: int, *, first_step: int | None, steps: int
) -> Iterator[None]:
  """Writes a trace of what runs inside, if this step is to be traced.

  Args:
    folder: where traces are put, one a step.
    step: number of this rollout step, from 1.
    first_step: the first that is traced; None = no step is.
    steps: how many are.
  """
  if first_step is None or not first_step <= step < first_step + steps:
    yield
    return
  with jax.profiler.trace(str(folder / f'step_{step}')):
    yield

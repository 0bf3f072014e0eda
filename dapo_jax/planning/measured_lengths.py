"""The lengths of a run's responses, from its metrics. Host only."""

import json
import math
import pathlib
import statistics
from collections.abc import Iterator, Mapping

from dapo_jax.planning import workload


def of_metrics(
  file: str, lengths: workload.Lengths, *, last: int = 20
) -> workload.Lengths:
  """Returns the lengths of a run, as its newest steps have them.

  Args:
    file: its metrics.jsonl.
    lengths: of its configuration; what the metrics do not say is taken from
      here: prompts and the spread.
    last: so many steps are looked at.

  Raises:
    ValueError: there is no such file, it is none of metrics, no step is in
      it, or its numbers are none of this configuration's.
  """
  path = pathlib.Path(file)
  if not path.is_file():
    raise ValueError(
      f'--metrics ({file}) must be the metrics.jsonl of a run: there is none'
    )
  names = ('response/length_mean_tokens', 'filter/kept_frac')
  rows = [row for row in _rows(path) if _number(row, names[0]) > 0][-last:]
  if not rows:
    raise ValueError(f'--metrics ({file}) has no step with {names[0]}')
  found = {}
  for name, least, most, limit in (
    (names[0], 1, lengths.longest_tokens, ', rollout.max_response_tokens'),
    (names[1], 0, 1, ''),
  ):
    numbers = [_number(row, name) for row in rows]
    numbers = [number for number in numbers if math.isfinite(number)]
    if numbers:
      found[name] = statistics.mean(numbers)
      if not least <= found[name] <= most:
        raise ValueError(
          f'--metrics ({file}) has a mean {name} of {found[name]:g}, which '
          f'must be from {least} to {most}{limit}: is it of another run?'
        )
  kept = found.get(names[1], lengths.kept_frac)
  return lengths._replace(
    response_tokens=found[names[0]],
    # Of nothing kept no number of rounds would be enough.
    kept_frac=max(kept, 0.01),
  )


def _rows(path: pathlib.Path) -> Iterator[Mapping]:
  """Yields the lines of a file of metrics; the last may be half written."""
  lines = path.read_bytes().splitlines()
  for number, line in enumerate(lines, 1):
    try:
      row = json.loads(line)
    except ValueError as error:  # of JSON, or of UTF-8
      if number == len(lines) > 1:
        return
      raise ValueError(
        f'--metrics ({path}) must be the metrics.jsonl of a run; line {number} '
        f'is not JSON: {error}'
      ) from error
    if isinstance(row, dict):
      yield row


def _number(row: Mapping, name: str) -> float:
  """Returns a finite number of a row, NaN where it has none."""
  value = row.get(name)
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  return float(value) if is_number and math.isfinite(value) else math.nan

"""A sampler under measurement: a warmed-up process that answers questions."""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple


class Tool(NamedTuple):
  """One sampler."""

  name: str
  about: dict[str, Any]
  process: subprocess.Popen

  def ask(self, what: str = 'uniform') -> dict[str, float]:
    """Returns what one measurement found."""
    self.process.stdin.write(what + '\n')
    self.process.stdin.flush()
    line = self.process.stdout.readline()
    if not line:
      sys.exit(f'{self.name} ended while it measured {what}')
    return json.loads(line)


def start(name: str, command: Sequence[str]) -> Tool:
  """Returns the sampler when it has compiled and warmed up."""
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


def stop(tools: Sequence[Tool]) -> None:
  """Ends the processes."""
  for tool in tools:
    tool.process.stdin.close()
  for tool in tools:
    tool.process.wait()


def rate(rows: Sequence[dict[str, float]], seconds: str = 'cpu_s') -> float:
  """Returns the median of tokens a second."""
  return statistics.median(row['tokens'] / row[seconds] for row in rows)

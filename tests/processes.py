"""What tests want to know of processes that are not theirs."""

import pathlib


def is_dead(pid: int) -> bool:
  """Returns whether a process has ended, if its parent has noticed or not."""
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except FileNotFoundError:
    return True
  return stat.rpartition(')')[2].split()[0] == 'Z'

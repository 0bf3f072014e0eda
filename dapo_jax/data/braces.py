r"""The braces of a LaTeX text; those of `\{` and `\}` count for nothing.

Host only.
"""

import re

_BRACES = re.compile(r'\\.|[{}]', re.DOTALL)


def closing(text: str, start: int) -> int:
  """Returns where the brace is that closes the one before `start`; -1 = none.

  Args:
    text: any text.
    start: the place behind an opening brace.
  """
  depth = 1
  for brace in _BRACES.finditer(text, start):
    depth += {'{': 1, '}': -1}.get(brace[0], 0)
    if not depth:
      return brace.start()
  return -1


def all_closed(text: str) -> bool:
  """Returns whether every brace that is opened is closed, and no other one."""
  depth = 0
  for brace in _BRACES.finditer(text):
    depth += {'{': 1, '}': -1}.get(brace[0], 0)
    if depth < 0:
      return False
  return not depth

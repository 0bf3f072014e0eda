"""The parts of an answer's text that no bracket holds together.

Host only.
"""

import re

_PIECE = re.compile(r'\\begin|\\end|\\[A-Za-z]+|\\.|.', re.DOTALL)
_OPENING = frozenset(['(', '[', '{', '⟨', '\\{', '\\begin', '⌊', '⌈'])
_CLOSING = frozenset([')', ']', '}', '⟩', '\\}', '\\end', '⌋', '⌉'])


def split(text: str, separators: str) -> list[str]:
  """Returns the parts between separators that stand outside all brackets.

  Two brackets of different kinds make a pair, as in [0, 1). A text whose
  brackets do not pair is one part.
  """
  return cut(text, separators)[::2]


def cut(text: str, separators: str) -> list[str]:
  """Returns the parts as `split` does, with the separators between them."""
  if not any(separator in text for separator in separators):
    return [text]
  parts, depth, start = [], 0, 0
  for piece in _PIECE.finditer(text):
    depth += (piece[0] in _OPENING) - (piece[0] in _CLOSING)
    if depth < 0:
      return [text]
    if not depth and piece[0] in separators:
      parts += [text[start : piece.start()], piece[0]]
      start = piece.end()
  return [text] if depth else [*parts, text[start:]]


def enclosed(text: str) -> tuple[str, str] | None:
  """Returns the brackets around the whole text and what they hold.

  The brackets are `()`, `[]`, `[)`, `(]`, `⟨⟩` or `{}` (of a set); None where
  no pair is around the whole.
  """
  depth = 0
  for piece in _PIECE.finditer(text):
    depth += (piece[0] in _OPENING) - (piece[0] in _CLOSING)
    if depth <= 0:
      break
  else:
    return None
  opening = text[:2] if text.startswith('\\{') else text[:1]
  closing = piece[0]
  if piece.end() < len(text) or opening not in ('(', '[', '⟨', '\\{'):
    return None
  brackets = opening[-1] + closing[-1]
  if brackets not in ('()', '[]', '[)', '(]', '⟨⟩', '{}'):
    return None
  return brackets, text[len(opening) : piece.start()]

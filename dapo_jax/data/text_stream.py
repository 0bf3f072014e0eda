"""The text of tokens that come a few at a time.

Host only. A token by itself may have no text: a character can be several
tokens, and some tokenizers drop the space that begins what they decode. So
tokens are decoded together with those before them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

# What stands for bytes that are no character, or not yet one.
_INCOMPLETE = '\ufffd'


class Window(NamedTuple):
  """The last tokens: some whose text was given, then those it waits for."""

  ids: tuple[int, ...] = ()
  given_count: int = 0


def extend(
  window: Window,
  ids: Sequence[int],
  *,
  decode: Callable[[Sequence[int]], str],
  ended: bool,
) -> tuple[Window, str]:
  """Returns the window after more tokens, and the text they complete.

  All texts joined are that of all tokens. The text is '' while the last
  character may still lack bytes; at the end it is given as it is.

  Args:
    window: of the tokens before; `Window()` at the beginning.
    ids: the new tokens.
    decode: a tokenizer's.
    ended: whether these are the last.
  """
  ids = (*window.ids, *ids)
  given = window.given_count
  text = decode(ids)[len(decode(ids[:given])) :]
  if not text or (text.endswith(_INCOMPLETE) and not ended):
    return Window(ids, given), ''
  return Window(ids[given:], len(ids) - given), text

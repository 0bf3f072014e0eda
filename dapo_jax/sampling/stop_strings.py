"""Where a response ends because its text contains a given string.

Host only. A response is its sampled tokens up to and including the one whose
text completes a stop string, whichever string that is and however the tokens
cut it: the loss sees what was sampled. Its text ends before the string.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
# Of a response's tokens so far, of which so many were looked at before:
# returns how many are left by a stop string in the rest, None without one.
FindStop = Callable[[Sequence[int], int], int | None]

# Text before the shortest tail that could hold a stop string: at its begin
# bytes of a cut character and a space that decoding strips may be missing.
_SLACK_CHARACTERS = 8


def finder(decode: Decode, strings: Sequence[str]) -> FindStop | None:
  """Returns what finds the end of a response by its text; None if no string.

  `find(tokens, looked_at)` returns the least n > looked_at for which the text
  of tokens[:n] contains a string. Only the tail of the tokens is decoded, so
  a response that is looked at as it grows costs its length, not the square;
  how often it is looked at changes nothing.

  Args:
    decode: gives the text of token ids, special tokens left out.
    strings: none of them empty.
  """
  if not strings:
    return None
  longest = max(map(len, strings)) + _SLACK_CHARACTERS

  def find(tokens: Sequence[int], looked_at: int) -> int | None:
    begin = _tail_begin(decode, tokens, looked_at, longest)
    has_stop = lambda end: _place(decode(tokens[begin:end]), strings) >= 0
    if not has_stop(len(tokens)):
      return None
    return next(n for n in range(looked_at + 1, len(tokens) + 1) if has_stop(n))

  return find


def decoder(decode: Decode, strings: Sequence[str]) -> Decode:
  """Returns `decode` with texts that end before the first stop string."""

  def before_stop(tokens: Sequence[int]) -> str:
    text = decode(tokens)
    place = _place(text, strings)
    return text if place < 0 else text[:place]

  return before_stop


def _tail_begin(
  decode: Decode, tokens: Sequence[int], end: int, characters: int
) -> int:
  """Returns where the last tokens before `end` begin that have such a text."""
  count = characters
  while count < end and len(decode(tokens[end - count : end])) < characters:
    count *= 2
  return max(0, end - count)


def _place(text: str, strings: Sequence[str]) -> int:
  """Returns where the first stop string begins in a text, -1 without one."""
  return min((i for i in map(text.find, strings) if i >= 0), default=-1)

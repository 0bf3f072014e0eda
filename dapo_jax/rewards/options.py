"""The letter of a multiple-choice option.

Host only.
"""

import re

from dapo_jax.rewards import answer_text

_OPTION = (
  r'(?:(?:[Tt]he )?(?:[Oo]ption|[Cc]hoice) ?)?(?P<open>\(?)(?P<letter>[A-J])'
  r'(?P<close>[).:]*)(?P<rest>.*)'
)
# A second choice.
_OTHER = re.compile(r'\([A-Ja-j]\)|(?:^|[∨∧,;/|])[ (]*[A-J](?![A-Za-z])')
# An option in parentheses, and what stands behind it.
_DRESSED = re.compile(r'(?:\\text\{\(([A-J])\)\}|\(([A-J])\))(.+)', re.DOTALL)


def letter(text: str) -> str | None:
  r"""Returns the letter of a text that is one, as `C`, `(C)` or `\text{C}`."""
  found = _found(text)
  return found['letter'] if found and not found['rest'] else None


def chosen(text: str) -> str | None:
  r"""Returns the letter that an answer chooses.

  The option's own text may follow, as in `C: 12`. A small letter counts in
  parentheses or in `\text` only; bare it is a variable.
  """
  found = _found(text, re.IGNORECASE)
  if not found:
    return None
  rest = found['rest'].strip()
  dressed = '\\text' in text or found['open'] or found['close']
  if found['letter'].islower() and not dressed:
    return None
  if rest and (not found['close'] or _OTHER.search(rest)):
    return None
  return found['letter'].upper()


def without_letter(text: str, gold: str) -> str:
  r"""Returns what stands behind an option's letter, as 12 of `(C) 12`.

  It is the whole text where there is no letter, where it may be a variable of
  the gold answer, and where a second choice follows.
  """
  whole = re.fullmatch(r'\\text\{([^{}]*)\}', text)
  found = _DRESSED.fullmatch(whole[1] if whole else text)
  if not found or _OTHER.search(found[3]):
    return text
  letter = found[1] or found[2]
  variable = re.search(rf'(?<![A-Za-z]){letter}(?![A-Za-z])', gold)
  return text if variable else found[3]


def _found(text: str, flags: int = 0) -> re.Match | None:
  plain = answer_text.without_commands(text)
  found = re.fullmatch(_OPTION, plain, re.DOTALL | flags)
  closed = found and (not found['open'] or ')' in found['close'])
  return found if closed else None

r"""An answer as data sets write it, without what is written around it.

Host only. Dollar signs, `\boxed`, units and thousands separators are taken
off; answers that are words, sets, intervals, equations or matrices are told
from formulas.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from dapo_jax.data import braces, refusals

_MAX_CHARACTERS = 400
# What may stand around the whole of an answer; the first group stays.
_AROUND = tuple(
  re.compile(pattern, re.DOTALL)
  for pattern in (
    r'\$\$([^$]+)\$\$',
    r'\$([^$]*[^$\\])\$',
    r'\\\((.*)\\\)',
    r'\\\[(.*)\\\]',
    r'\\boxed\s*\{(.*)\}',
    r'(.*\S)\s*(?<!\\)[.,;]',
  )
)
_SPACES = re.compile(r'\\[,;:! ]|~')
_TEXT = r'\\(?:text\w*|mbox|mathrm|mathbf|hbox|rm)\s*\{([^{}]*)\}'
# Signs of units at the end, or of money in front.
_UNITS = (
  (
    re.compile(r'(.*?)\s*(?:\^?\s*\{?\s*\\circ\s*\}?|°|\\degree)', re.DOTALL),
    'degrees',
  ),
  (re.compile(r'(.*?)\s*\\?%', re.DOTALL), 'percent'),
  (re.compile(r'\\?\$\s*([^$]*)', re.DOTALL), 'dollars'),
)
_UNIT_WORD = re.compile(
  r'(.*[0-9}])\s*(?:\\ )?(?:\\(?:text\w*|mbox|mathrm)\s*\{)?\s*'
  r'(degree|dollar|percent)s?\s*\}?',
  re.DOTALL,
)
_THOUSANDS = re.compile(r'-?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?')
_MARKED_COMMA = re.compile(r',\\!\s*(?=[0-9]{3})|\{,\}(?=[0-9]{3})')
_SEVERAL_WORDS = re.compile(r'(?<!\\)\b(or|and)\b')
# What shows that an answer is no formula, in the order that is looked in.
_KINDS = (
  ('matrix', re.compile(r'\\begin|\\langle|\\mathbf')),
  ('several', re.compile(r'\\pm|\\mp|±|\\\{|\\emptyset|\\varnothing|;')),
  ('interval', re.compile(r'\\cup|\\cap|\\infty|∞|∪|\\setminus')),
  (
    'equation',
    re.compile(
      r'[=<>≤≥≈]|\\(?:leq?|geq?|neq?|in|lt|gt|approx|equiv|to|mapsto|mid|colon)'
      r'(?![A-Za-z])|:'
    ),
  ),
)


class Answer(NamedTuple):
  """An answer without its dressing.

  Attributes:
    text: a formula; several, where commas stand between them.
    unit: 'degrees', 'dollars', 'percent' or ''.
  """

  text: str
  unit: str


def undressed(answer: str) -> Answer:
  """Returns the formula of an answer and its unit.

  Raises:
    Refusal: the answer is no formula: `text`, `unit` for one that is not
      known, `matrix`, `several`, `interval`, `equation` or `too_large`.
  """
  if len(answer) > _MAX_CHARACTERS:  # The patterns' time is quadratic.
    raise refusals.Refusal('too_large')
  text, unit = _without_unit(_inner(answer))
  text = _SPACES.sub(' ', _MARKED_COMMA.sub('', _inner(text)))
  words = re.findall(_TEXT, text)
  if words:
    rest = re.sub(_TEXT, '', text)
    if _SEVERAL_WORDS.search(' '.join(words)):
      raise refusals.Refusal('several')
    raise refusals.Refusal('unit' if re.search('[0-9]', rest) else 'text')
  if _SEVERAL_WORDS.search(text):
    raise refusals.Refusal('several')
  for reason, pattern in _KINDS:
    if pattern.search(text):
      raise refusals.Refusal(reason)
  return Answer(text.strip(), unit)


def _inner(text: str) -> str:
  """Returns what is left when nothing stands around the whole any more."""
  while True:
    text = text.strip()
    found = [m for m in (p.fullmatch(text) for p in _AROUND) if m]
    if not found or not braces.all_closed(found[0][1]):
      return text
    text = found[0][1]


def _without_unit(text: str) -> tuple[str, str]:
  """Returns a text without its unit, and the unit."""
  for pattern, unit in _UNITS:
    match = pattern.fullmatch(text)
    if match and match[1].strip():
      return match[1], unit
  match = _UNIT_WORD.fullmatch(text)
  if match:
    word = match[2]
    return match[1], word if word == 'percent' else f'{word}s'
  return text, ''


def without_thousands(text: str) -> str | None:
  """Returns a number such as 58,500 without commas; None for other texts."""
  return text.replace(',', '') if _THOUSANDS.fullmatch(text) else None


def entries(text: str) -> Sequence[str]:
  """Returns what commas outside of all brackets separate."""
  found, depth, start = [], 0, 0
  for place, character in enumerate(text):
    depth += (character in '([{') - (character in ')]}')
    if character == ',' and not depth:
      found.append(text[start:place])
      start = place + 1
  return [*found, text[start:]]

"""The relation that a text states: what is equal, smaller or a member.

Host only.
"""

import re
from fractions import Fraction

from dapo_jax.rewards import exact_value, latex_parser, text_parts

_SIGNS = '=<>≤≥≠≈∈'
_GREEK = r'\\(?:alpha|beta|gamma|delta|theta|lambda|mu|omega|phi|rho|sigma|tau)'
_SYMBOL = re.compile(rf"(?:[A-Za-z]|{_GREEK})(?:_(?:\w|\{{\w+\}}))?'*")
# What a value is given to: x, f(x), AB, (x, y), \angle A, \text{area}.
_NAME = re.compile(
  rf'(?:(?:[A-Za-z]|{_GREEK}|[A-Z]{{2,4}}|[A-Za-z ]{{4,40}}'
  r'|\\text\{[^{}]*\}'
  r'|\\(?:overline|vec|hat|mathbf)\{[A-Za-z]{1,4}\}'
  r'|m?\\(?:angle|triangle) ?[A-Z]{1,3})'
  r"(?:_(?:\w|\{\w+\}))?'*(?:\^\{-1\})?(?:\([A-Za-z](?:,[A-Za-z])*\))?"
  r'|\([A-Za-z](?:,[A-Za-z])+\)|\|?[A-Z]{2}\||\\frac\{d[a-z]\}\{d[a-z]\})'
)
# m+n and 100p+10q+r: what contests ask for. Not x+y, which makes a line, and
# not 2a, which asks for a.
# And f(2), [ABC], AB^2, \sin A.
_TOTAL = re.compile(
  r'(?:[-+]?\d*[abcdmnpqrk]){2,}'
  r'|[A-Za-z]\(-?\d+(?:[./]\d+)?\)|\[[A-Z]{3,6}\]|[A-Z]{2}\^(?:2|\{2\})'
  rf'|\\(?:sin|cos|tan|cot|sec|csc) ?(?:[A-Za-z]|{_GREEK}'
  r'|\\angle ?[A-Z]{1,3})'
)
# What has letters and is no variable.
_NO_VARIABLES = frozenset(
  'e i sqrt pi frac binom log ln sin cos tan cot sec csc arcsin arccos '
  'arctan'.split()
)
_LETTERS = re.compile(r'(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|[A-Za-z]{2,}')
_TURNED = {'>': '<', '≥': '≤', '<': '<', '≤': '≤'}

Relation = tuple[str, list[str], str]


def read(text: str) -> Relation | None:
  """Returns the kind of a relation, its sides and a detail; None for no one.

  | kind | sides | detail |
  |---|---|---|
  | same | one text that says all | |
  | named | the values | what they are the value of |
  | equation | two | |
  | interval | its ends | brackets, then the variable |
  | without | the one value that a variable has not | the variable |
  | inequality | the smaller, the larger | `<` or `≤` |
  | opaque | none | |
  """
  pieces = text_parts.cut(text, _SIGNS)
  if len(pieces) == 1:
    return None
  sides, signs = [p.strip(' ') for p in pieces[::2]], pieces[1::2]
  if not sides[0]:
    # `= 5`
    rest = text.lstrip('=≈ ')
    return ('same', [rest], '') if signs[0] in '=≈' else ('opaque', [], '')
  if not all(sides):
    return 'opaque', [], ''
  if signs[0] == '∈':
    known = _SYMBOL.fullmatch(sides[0]) or _NAME.fullmatch(sides[0])
    rest = text[text.index('∈') + 1 :]
    return ('same', [rest], '') if known else ('opaque', [], '')
  if '≈' in signs:
    return _exact_part(sides, signs)
  if set(signs) == {'='}:
    return _equal(sides)
  if set(signs) <= set('<>≤≥'):
    return _ordered(sides, signs)
  if signs == ['≠'] and _SYMBOL.fullmatch(sides[0]):
    return 'without', sides[1:], sides[0]
  return 'opaque', [], ''


def _exact_part(sides: list[str], signs: list[str]) -> Relation:
  """What stands before the ≈; behind it where only a name is before."""
  place = signs.index('≈')
  if place == 0 and _NAME.fullmatch(sides[0]):
    return 'same', [sides[1]], ''
  values = [_constant(side) for side in sides[place : place + 2]]
  if None not in values and abs(values[0] - values[1]) > abs(values[0]) / 10:
    # 1 ≈ 8 is no answer, whatever the gold one.
    return 'opaque', [], ''
  if set(signs[:place]) <= {'='}:
    return 'same', ['='.join(sides[: place + 1])], ''
  return 'opaque', [], ''


def _equal(sides: list[str]) -> Relation:
  names = [side for side in sides if _NAME.fullmatch(side)]
  if any(re.search(r"\bnot\b|n't\b", name) for name in names):
    return 'opaque', [], ''
  values = [side for side in sides if side not in names]
  if names and values:
    letters = set(_LETTERS.findall(names[0]))
    if _SYMBOL.fullmatch(names[0]) and any(
      letters & set(_LETTERS.findall(value)) for value in values
    ):
      return ('equation', sides, '') if len(sides) == 2 else ('opaque', [], '')
    return 'named', values, names[0]
  numbers = [side for side in sides if _has_no_variable(side)]
  rest = [side for side in sides if side not in numbers]
  if len(numbers) == len(sides):
    return 'named', sides, ''
  if numbers and all(_TOTAL.fullmatch(side) for side in rest):
    if numbers[-1] != '0':
      return 'named', numbers, rest[0]
  return ('equation', sides, '') if len(sides) == 2 else ('opaque', [], '')


def _constant(text: str) -> Fraction | None:
  tree = latex_parser.parse(text)
  return tree and exact_value.rational(tree)


def _ordered(sides: list[str], signs: list[str]) -> Relation:
  """An interval of one variable, or an inequality of two expressions."""
  if signs[0] in '>≥':
    sides, signs = sides[::-1], signs[::-1]
  if any(sign in '>≥' for sign in signs) and any(s in '<≤' for s in signs):
    return 'opaque', [], ''
  signs = [_TURNED[sign] for sign in signs]
  place = [i for i, side in enumerate(sides) if _SYMBOL.fullmatch(side)]
  if len(sides) == 3 and place == [1]:
    brackets = '[('[signs[0] == '<'] + '])'[signs[1] == '<']
    return 'interval', [sides[0], sides[2]], brackets + sides[1]
  if len(sides) != 2:
    return 'opaque', [], ''
  if len(place) == 1 and _has_no_variable(sides[1 - place[0]]):
    if place == [0]:
      return (
        'interval',
        ['-∞', sides[1]],
        '(' + '])'[signs[0] == '<'] + sides[0],
      )
    return 'interval', [sides[0], '∞'], '[('[signs[0] == '<'] + ')' + sides[1]
  return 'inequality', sides, signs[0]


def _has_no_variable(text: str) -> bool:
  return set(_LETTERS.findall(text)) <= _NO_VARIABLES


def ascending(points: list[str]) -> list[str] | None:
  """Returns numbers in order; one alone may be any text, else None."""
  if len(points) == 1:
    return points
  values = [_constant(point) for point in points]
  if any(value is None for value in values):
    return None
  return [point for _, point in sorted(zip(values, points, strict=True))]

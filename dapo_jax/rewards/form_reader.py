"""The reading of an answer's text as a set, an interval, a quantity, words...

`read` takes an answer in its one spelling. What it does not know stays one
formula, to be compared as a whole.

Host only.
"""

import re

from dapo_jax.rewards import (
  answer_form,
  answer_text,
  latex_tokens,
  relations,
  text_parts,
  units,
)

Form = answer_form.Form

_WHOLLY_TEXT = re.compile(r'\\text\{([^{}]*)\}')
_MATRIX = re.compile(
  r'\\begin\{(?P<kind>[pbvBV]?matrix|smallmatrix|array)\}(?:\{[|lcr]*\})?'
  r'(?P<cells>.*)\\end\{(?P=kind)\}',
  re.DOTALL,
)
_ROW_END = re.compile(r'\\\\(?:\[[^\]]*\])?')
_BASED = re.compile(
  r'(?:\\text\{)?\(?(?P<digits>\d[\dA-Z]*|[A-Z]*\d[\dA-Z]*)\)?\}?'
  r'(?:_\{?\(?(?:\\text\{)?(?P<base>\d+|[a-z]+)\}?\)?\}?'
  r'| ?\(?(?:\\text\{\(?)?base[ }]*(?P<said>\d+|[a-z]+)\)?\}?\)?)'
)
_REVERSED = re.compile(r'([\](\[])([^\[\]()]*,[^\[\]()]*)([\[)\]])')
_NUMBERS = (
  'zero one two three four five six seven eight nine ten eleven twelve'.split()
)
# A run of letters that is a word; shorter ones may be products.
_WORD = re.compile(r'(?<![\\A-Za-z])[A-Za-z]{4,}')
_FUNCTION = re.compile(r'(?:sqrt|sinh|cosh)(?![A-Za-z])')
_NO_WORDS = re.compile(r'[=<>≤≥^_*+{}|∈±]|\\(?!text\{)')
_NONE = ('∅', 'nosolution', 'nosolutions', 'emptyset', 'theemptyset')


def read(text: str) -> Form:
  """Returns the form of an answer; no text makes it raise."""
  if len(text) > latex_tokens.LONGEST_CHARACTERS or latex_tokens.too_deep(text):
    return Form('opaque', text)
  try:
    return _read(text)
  except RecursionError:
    return Form('opaque', text)


def _read(text: str) -> Form:
  text = text.strip(' ')
  if not text:
    return Form('nothing', text)
  readers = (_text, _joined, _united, _related, _enclosed, _matrix, _reversed)
  readers += (_based, _both_signs, _quantity, _ratio, _words)
  for reader in readers:
    form = reader(text)
    if form:
      return form if form.text else form._replace(text=text)
  return Form('formula', text)


def _text(text: str) -> Form | None:
  r"""What is wholly in \text: words, or an answer."""
  found = _WHOLLY_TEXT.fullmatch(text)
  if not found:
    return None
  inner = _read(found[1])
  is_word = inner.kind == 'formula' and inner.text == found[1]
  return Form('words', text) if is_word else inner


def _joined(text: str) -> Form | None:
  """Members between commas, `and` and `or`."""
  pieces = text_parts.cut(text, ',;∧∨')
  if len(pieces) == 1:
    return None
  parts = [_read(piece) for piece in pieces[::2]]
  if any(part.kind == 'nothing' for part in parts):
    return Form('opaque', text)
  if all(part.kind in ('interval', 'union') and part.name for part in parts):
    # `x < 1 and x < 3` is no union.
    return _union(parts) if set(pieces[1::2]) == {'∨'} else None
  names = {part.detail for part in parts if part.kind == 'named'}
  first = parts[0]
  if len(names) == 1 and first.kind == 'named' and len(first.parts) == 1:
    # x = 1, 2 as well as x = 1, x = 2.
    members = [
      part.parts[0] if part.kind == 'named' else part for part in parts
    ]
    if all(part.kind != 'equation' for part in members):
      inner = Form('list', '', _flat(members))
      return Form('named', text, (inner,), first.detail)
  return Form('list', text, _flat(parts))


def _flat(parts: list[Form]) -> tuple[Form, ...]:
  """The members, both values of a ± among them."""
  members = []
  for part in parts:
    members += part.parts if part.detail == '±' else [part]
  return tuple(members)


def _union(parts: list[Form]) -> Form:
  pieces = []
  for part in parts:
    pieces += part.parts if part.kind == 'union' else [part]
  return Form('union', '', tuple(pieces), name=parts[0].name)


def _united(text: str) -> Form | None:
  """A union of intervals and sets; the real numbers without some."""
  if not {'=', '∈'}.isdisjoint(text):
    return None
  pieces = text_parts.split(text, '∪')
  if len(pieces) > 1:
    parts = [_read(piece) for piece in pieces]
    if all(part.kind == 'set' for part in parts):
      return Form('set', '', sum((part.parts for part in parts), ()))
    parts = [answer_form.as_interval(part) or part for part in parts]
    known = all(part.kind in ('interval', 'union', 'set') for part in parts)
    return _union(parts) if known else Form('opaque', text)
  if text == '\\R':
    return _interval('-∞', '∞', '()')
  found = re.fullmatch(
    r'(?:\\R|\(-∞,\+?∞\))(?:\\setminus|-) ?(\\\{.*\\\})', text
  )
  holes = _read(found[1]) if found else None
  if holes and holes.kind == 'set':
    return _without([hole.text for hole in holes.parts])
  return None


def _without(points: list[str]) -> Form | None:
  """The real numbers without some points."""
  points = relations.ascending(points)
  if points is None:
    return None
  ends = ['-∞', *points, '∞']
  return Form(
    'union',
    '',
    tuple(
      _interval(low, high, '()')
      for low, high in zip(ends[:-1], ends[1:], strict=True)
    ),
  )


def _interval(low: str, high: str, brackets: str, name: str = '') -> Form:
  ends = (_read(low), _read(high))
  text = f'{name}{brackets[0]}{low},{high}{brackets[1]}'
  return Form('interval', text, ends, brackets, name)


def _related(text: str) -> Form | None:
  """Equations, inequalities, membership, approximation."""
  relation = relations.read(text)
  if relation is None:
    return None
  kind, sides, detail = relation
  if kind == 'same':
    return _read(sides[0])
  if kind == 'interval':
    return _interval(sides[0], sides[1], detail[:2], detail[2:])
  if kind == 'without':
    holed = _without([sides[0]])
    return holed and holed._replace(name=detail)
  if kind == 'opaque':
    return Form('opaque', text)
  return Form(kind, text, tuple(_read(side) for side in sides), detail)


def _enclosed(text: str) -> Form | None:
  """What a pair of brackets holds: a tuple, an interval, a set."""
  found = text_parts.enclosed(text)
  if found is None:
    return None
  brackets, content = found
  if brackets == '{}':
    return _set(content)
  pieces = text_parts.split(content, ',;')
  if len(pieces) == 1:
    return _read(content) if brackets in ('()', '[]') else None
  parts = tuple(_read(piece) for piece in pieces)
  if any(part.kind == 'nothing' for part in parts):
    return Form('opaque', text)
  if len(parts) == 2 and (brackets in ('[)', '(]') or '∞' in content):
    return Form('interval', text, parts, brackets)
  if brackets in ('[)', '(]'):
    return Form('opaque', text)
  square = brackets == '[]' and len(parts) == 2
  return Form('tuple', text, parts, '[]' if square else '()')


def _set(content: str) -> Form | None:
  if not content:
    return Form('words', '∅')
  if content == '∅':
    # The set of the empty set has a member.
    return Form('opaque', '')
  builder = text_parts.split(content, '|:')
  if len(builder) == 2 and re.fullmatch(r'\(?[a-z](?:∈\\R)?\)?', builder[0]):
    return _read(builder[1])
  parts = [_read(piece) for piece in text_parts.split(content, ',;')]
  if any(part.kind == 'nothing' for part in parts):
    return None
  return Form('set', '', _flat(parts))


def _reversed(text: str) -> Form | None:
  """]0, 1[, which is (0, 1)."""
  found = _REVERSED.fullmatch(text)
  if not found or ']' != found[1] and '[' != found[3]:
    return None
  low, high = found[2].split(',', 1)
  brackets = ('[' if found[1] == '[' else '(') + (
    ']' if found[3] == ']' else ')'
  )
  return _interval(low, high, brackets)


def _matrix(text: str) -> Form | None:
  found = _MATRIX.fullmatch(text)
  if not found or '\\begin' in found['cells']:
    return None
  rows = [row.split('&') for row in _ROW_END.split(found['cells'])]
  if rows[-1] == ['']:
    rows.pop()
  detail = 'determinant' if found['kind'][0] in 'vV' else ''
  parts = [Form('list', '', tuple(_read(cell) for cell in row)) for row in rows]
  return Form('matrix', text, tuple(parts), detail)


def _based(text: str) -> Form | None:
  """Digits with their base: 204_5."""
  found = _BASED.fullmatch(text)
  if not found:
    return None
  base = found['base'] or found['said']
  if base in _NUMBERS:
    base = str(_NUMBERS.index(base))
  if not base.isdigit():
    return None
  return Form('based', text, (Form('formula', found['digits']),), base)


def _both_signs(text: str) -> Form | None:
  """The two values of a ±."""
  if '±' not in text and '∓' not in text:
    return None
  upper = text.replace('±', '+').replace('∓', '-')
  lower = text.replace('±', '-').replace('∓', '+')
  return Form('list', text, (_read(upper), _read(lower)), '±')


def _quantity(text: str) -> Form | None:
  core, unit = units.split(text)
  if core == text:
    return None
  number = _read(core)
  if number.kind in ('words', 'nothing', 'opaque'):
    return None
  return Form('quantity', text, (number,), unit) if unit else number


def _ratio(text: str) -> Form | None:
  pieces = text_parts.split(text, ':')
  if len(pieces) == 1 or not all(re.search(r'\d', piece) for piece in pieces):
    return None
  parts = tuple(_read(piece) for piece in pieces)
  known = all(part.kind == 'formula' for part in parts)
  return Form('ratio', text, parts) if known else None


def _words(text: str) -> Form | None:
  plain = answer_text.without_commands(text)
  if plain.lower() in _NUMBERS:
    return Form('formula', str(_NUMBERS.index(plain.lower())))
  if plain.replace(' ', '').lower() in _NONE:
    return Form('words', '∅')
  if _NO_WORDS.search(plain):
    return None
  known = _WORD.search(plain) and not _FUNCTION.search(plain)
  return Form('words', text) if known or '\\text' in text else None

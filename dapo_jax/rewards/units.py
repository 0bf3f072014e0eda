r"""The unit that an answer carries: read apart from the number, then compared.

A unit may be left out. Two units agree if they measure the same (`1 m` and
`100 cm`, by their factor) or, where they are words that no table has, if one
says all that the other does (`ways` and `different ways`).

Host only.
"""

import re
from fractions import Fraction

_PREFIXED = {
  'length': {
    1: 'm meter metre',
    Fraction(1, 10): 'dm decimeter',
    Fraction(1, 100): 'cm centimeter centimetre',
    Fraction(1, 1000): 'mm millimeter millimetre',
    1000: 'km kilometer kilometre',
    Fraction(254, 10000): 'in inch inche',
    Fraction(3048, 10000): 'ft foot feet',
    Fraction(9144, 10000): 'yd yard',
    Fraction(1609344, 1000): 'mi mile',
  },
  'time': {
    1: 's sec second',
    60: 'min minute',
    3600: 'h hr hour',
    86400: 'day',
    604800: 'week wk',
  },
  'months': {1: 'month', 12: 'yr year'},
  'mass': {1: 'g gram gm', 1000: 'kg kilogram', Fraction(1, 1000): 'mg'},
  'weight': {1: 'oz ounce', 16: 'lb pound', 32000: 'ton'},
  'volume': {1: 'L l liter litre', Fraction(1, 1000): 'mL ml milliliter'},
  'money': {1: 'dollar usd buck', Fraction(1, 100): 'cent ¢'},
  'euro': {1: '€ euro'},
  'sterling': {1: '£'},
  'angle': {1: '° degree deg'},
  'radian': {1: 'radian rad'},
  'celsius': {1: '°C celsius'},
  'fahrenheit': {1: '°F fahrenheit'},
}
_TABLE = {
  name: (dimension, Fraction(factor))
  for dimension, factors in _PREFIXED.items()
  for factor, names in factors.items()
  for name in names.split()
}
_ABBREVIATED = {
  'mph': 'mile/hour',
  'kph': 'km/hour',
  'sq': 'square',
  'cu': 'cubic',
}
# Names of one or two letters, which are variables unless they are in \text.
_BARE = frozenset(
  'per cm mm km kg mg ft yd lb oz hr min sec mph ml usd eur am pm'.split()
)
_SCALES = {
  'hundred': 100,
  'dozen': 12,
  'thousand': 10**3,
  'million': 10**6,
  'billion': 10**9,
  'trillion': 10**12,
}
# Words that are no unit: they say something about the number.
_NO_UNITS = frozenset(
  'not no and or less more than if when unless except wrong right correct '
  'incorrect plus minus times over below zero double doubled twice tripled '
  'halved couple negative repeating recurring squared cubed factorial mod '
  'modulo to at most least from '
  'maybe about approximately is are was isn but then choose remainder base '
  'with where for all any other infinity sqrt sin cos tan log ln pi theta '
  'one two three four five six seven eight nine ten eleven twelve twenty '
  'thirty forty fifty sixty seventy eighty ninety tens hundreds thousands '
  'millions billions'.split()
)
# Five eighths are no five.
_PART = re.compile(
  r'(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]+teen|[a-z]+tie'
  r'|hundred|thousand|[a-z]+illion)ths?|thirds?|quarters?|half|halves'
)
# Letters that are a unit in \text; others are variables there, too.
_LETTERS = frozenset('mgslLhJNKWVACF')
_GENERIC = frozenset({'unit', 'square unit', 'cubic unit', 'unit^2', 'unit^3'})
_TEXT_UNIT = re.compile(
  r'(?P<core>.*?)(?P<unit>(?:\\text\{[^{}]+\}(?:\^\{?[23]\}?)?[*/ ]?)+)', re.S
)
_BARE_UNIT = re.compile(
  r'(?P<core>.*?[\d}).°%])(?P<unit> ?[A-Za-z]{2,}\.?'
  r'(?:[ /][A-Za-z]+)*(?:\^\{?[23]\}?)?)',
  re.S,
)
_MONEY_BEHIND = re.compile(r'(?P<core>.*\d) ?(?P<unit>[€£¢])')
# One sign: `split` is called again for what is behind it.
_MONEY = re.compile(
  r'(?P<sign>-?)(?P<unit>\\\$|€|£)(?P<core>(?!-?(?:\\\$|€|£)).+)', re.S
)
_DEGREES = re.compile(r'(?P<core>.+)(?P<unit>°(?:\\text\{)?[CF]?\}?)', re.S)
_ANGLE = re.compile('sin|cos|tan|cot|sec|csc')
_PERCENT = re.compile(r'(?P<core>.+?)(?:%|\\text\{ ?per ?cent\}| per ?cent)')


def split(text: str) -> tuple[str, str]:
  """Returns an answer without its unit, and the unit; '' where it has none.

  `%` is a unit of its own. A number word (`million`) moves into the number.
  """
  percent = _PERCENT.fullmatch(text)
  if percent:
    return percent['core'], '%'
  money = _MONEY.fullmatch(text)
  if money:
    core, unit = split(money['sign'] + money['core'])
    if not unit.startswith('cent'):
      rate = unit if unit.startswith('per ') else ''
      unit = f'{"dollar" if "$" in money["unit"] else money["unit"]} {rate}'
    return core, unit.strip()
  for pattern in (_MONEY_BEHIND, _DEGREES, _TEXT_UNIT, _BARE_UNIT):
    found = pattern.fullmatch(text)
    if found and pattern is _DEGREES and _ANGLE.search(found['core']):
      # The argument's degrees are not the value's.
      return text, ''
    if found and found['core'].strip():
      core, unit = _measured(
        found['core'].strip(), found['unit'], bare=pattern is _BARE_UNIT
      )
      if unit is not None:
        return core, unit
  return text, ''


def _measured(core: str, unit: str, *, bare: bool) -> tuple[str, str | None]:
  """The number and its unit, bare or in a command; None where it is no unit."""
  unit = re.sub(r'\\text\{([^{}]*)\}', r' \1 ', unit).replace('*', ' ')
  words = unit.split()
  if words and words[0].lower() in _SCALES:
    core = f'({core})*{_SCALES[words.pop(0).lower()]}'
    bare = False
  if words and words[0].lower() == 'of':
    return core, None
  plain = [re.sub(r'[^a-z]', '', word.lower()) for word in words]
  if _NO_UNITS & set(plain) or any(map(_PART.fullmatch, plain)):
    return core, None
  # 5k is five thousand, 5 K are kelvins.
  single = {word for word in words if len(word) == 1 and word.isalpha()}
  if not single <= _LETTERS or len(words) > 5:
    return core, None
  if bare and not all(
    word in _BARE or (unit[0] == ' ' and (len(word) >= 4 or word == 'in'))
    for word in plain
  ):
    return core, None
  if '=' in unit or '<' in unit or re.search(r'\d', re.sub(r'\^\S+', '', unit)):
    return core, None
  return core, re.sub(r' (?=\^)|(?<=°) ', '', ' '.join(words))


def ratio(unit: str, other: str) -> Fraction | None:
  """Returns how many of `other` one `unit` is; None where they disagree.

  A missing or generic unit (`units`) agrees with every one.
  """
  if not unit or not other or unit == other:
    return Fraction(1)
  mine, theirs = _canonical(unit), _canonical(other)
  if mine == theirs or {mine, theirs} & _GENERIC:
    return Fraction(1)
  measures = _measure(mine), _measure(theirs)
  if all(measures):
    (dimension, factor), (other_dimension, other_factor) = measures
    return factor / other_factor if dimension == other_dimension else None
  if any(measures):
    return None
  few, many = sorted((set(mine.split()), set(theirs.split())), key=len)
  return Fraction(1) if few <= many else None


def _canonical(unit: str) -> str:
  """The words of a unit in lower case and singular, squares as `^2`."""
  unit = re.sub(r'[{}.]', '', unit).replace(' per ', '/')
  words = []
  for word in re.findall(r'\^[23]|/|°[CF]?|[^\W\d_]+|[€£¢]', unit):
    name = word if word in _TABLE else word.lower()
    if name not in _TABLE and len(name) > 2:
      name = re.sub(r's$', '', name)
    words.append(_ABBREVIATED.get(name, name))
  if words[:1] in (['square'], ['cubic']) and len(words) > 1:
    words = [*words[1:], '^2' if words[0] == 'square' else '^3']
  text = ' '.join(words)
  return re.sub(r' ?(\^|/) ?', r'\1', text)


def _measure(unit: str) -> tuple[tuple, Fraction] | None:
  """What a unit measures and in which amount, if the table has it."""
  dimension, amount = {}, Fraction(1)
  for place, part in enumerate(unit.split('/')):
    name, _, power = part.partition('^')
    if name not in _TABLE or power not in ('', '2', '3'):
      return None
    power = int(power or 1) * (-1 if place else 1)
    kind, factor = _TABLE[name]
    dimension[kind] = dimension.get(kind, 0) + power
    amount *= factor**power
  return tuple(sorted(dimension.items())), amount

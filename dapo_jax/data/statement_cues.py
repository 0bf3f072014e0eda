"""What the statement of a problem says about how to read its answer.

Host only.
"""

import re

_ASYMPTOTE = re.compile(r'\[asy\].*?\[/asy\]', re.DOTALL)
_MATH = re.compile(
  r'\$\$.*?\$\$|\$.*?\$|\\\(.*?\\\)|\\\[.*?\\\]'
  r'|\\begin\{(align|gather|equation)\*?\}.*?\\end\{\1\*?\}',
  re.DOTALL,
)
_WORDS_IN_MATH = re.compile(
  r'\\(?:text\w*|mbox|operatorname|mathrm|begin|end)\*?\{[^{}]*\}'
)
_COMMAND = re.compile(r'\\[A-Za-z]+')
_LONE_LETTER = re.compile(r'(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])')
# 2kx or xy^2 where no dollar signs tell formulas from words.
_PRODUCT = re.compile(
  r'(?<=[0-9])[A-Za-z]{1,3}(?![A-Za-z])|[A-Za-z]{1,3}(?=\^)'
)

_DECIMAL = re.compile(
  r'\b(decimals?|round(ed|ing)?|nearest|approximat\w+|significant|estimate\w*'
  r'|tenths?|hundredths?|thousandths?|correct to|places)\b|\\approx|≈',
  re.IGNORECASE,
)
_TUPLE = re.compile(
  r'\b(pairs?|triples?|points?|coordinates|vertex|tuple|midpoint|cent(er|re)'
  r'|centroid|intersection|focus)\b',
  re.IGNORECASE,
)
_INTERVAL = re.compile(r'\b(intervals?|domain|range|inequalit\w+)\b', re.I)
_LIST = re.compile(
  r'\b(commas?|list|all|values|solutions|roots|numbers are)\b', re.IGNORECASE
)
_COMPLEX = re.compile(
  r'\b(?i:complex|imaginary)\b|(?<![A-Za-z])i\s*\^\s*\{?\s*2'
  r'|[0-9)}+-]\s*i(?![A-Za-z])'
)
# i counts something: a_i, i = 1, the i-th, 1 <= i.
_INDEX = re.compile(
  r'_\s*\{?[^{}$]{0,4}(?<![A-Za-z\\])i(?![A-Za-z])'
  r'|(?<![A-Za-z\\])i\s*(=|\\in\b|\\leq?\b|\\geq?\b|<|>|\$?\s*-?\s*\^?\{?th\b)'
)


def letters(statement: str) -> frozenset[str]:
  """Returns the letters that stand for something in a statement.

  Those in its formulas, and single letters elsewhere (but not the words `a`,
  `A` and `I`). The code of drawings does not count.
  """
  statement = _ASYMPTOTE.sub(' ', statement).replace('\\$', ' ')
  found = set()
  for match in _MATH.finditer(statement):
    found |= set(_letters(match[0]))
  rest = _COMMAND.sub(' ', _MATH.sub(' ', statement))
  found |= set(_LONE_LETTER.findall(rest)) - {'a', 'A', 'I'}
  found |= set(''.join(_PRODUCT.findall(rest)))
  return frozenset(found)


def _letters(formula: str) -> list[str]:
  """Returns all letters of a formula that are no words or commands."""
  formula = _COMMAND.sub(' ', _WORDS_IN_MATH.sub(' ', formula))
  return re.findall('[A-Za-z]', formula)


def asks_for_decimal(statement: str) -> bool:
  """Says whether the answer is to be a decimal, or rounded."""
  return bool(_DECIMAL.search(_ASYMPTOTE.sub(' ', statement)))


def asks_for_tuple(statement: str) -> bool:
  """Says whether a pair in brackets is a pair, rather than an interval."""
  statement = _ASYMPTOTE.sub(' ', statement)
  return bool(_TUPLE.search(statement)) and not _INTERVAL.search(statement)


def asks_for_list(statement: str) -> bool:
  """Says whether commas may stand between several answers."""
  return bool(_LIST.search(_ASYMPTOTE.sub(' ', statement)))


def has_imaginary_unit(statement: str) -> bool:
  """Says whether i is the imaginary unit rather than an index."""
  statement = _ASYMPTOTE.sub(' ', statement)
  return bool(_COMPLEX.search(statement)) and not _INDEX.search(statement)

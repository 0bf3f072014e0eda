r"""The tokens of a formula: numbers, letters, commands, names, signs.

Host only.
"""

import re
from fractions import Fraction

# Longer or deeper formulas are refused.
LONGEST_CHARACTERS = 2_000
DEEPEST = 30

_TOKEN = re.compile(
  r'(?P<mixed>\d+ \d+/\d+(?![\d.]))'
  r'|(?P<repeating>\d*\.\d*\\(?:overline|dot) ?(?:\{\d+\}|\d(?!\d)))'
  r'|(?P<cycle>\d*\.\(\d+\))'
  # 0.1(6) is 1/6 to some, 0.6 to others.
  r'|(?P<unclear>\d*\.\d+\((?=\d+\)))'
  r'|(?P<number>\d+\.\d+|\.\d+|\d+\.(?![\d.])|\d+)'
  r'|(?P<decorated>\\(?:overline|vec|hat|tilde|angle|triangle|overrightarrow)'
  r'\s*(?:\{[A-Za-z]{1,4}\}|[A-Z]{1,3}))'
  r'|(?P<command>\\[A-Za-z]+|\\[{}|])'
  r'|(?P<name>(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?(?![a-z])'
  r'|(?:sqrt|ln|log|exp|gcd|lcm|pi|max|min|abs)(?![a-z]))'
  r"|(?P<other>[A-Za-z]|[-+*/^_{}()\[\]|!,°'∞⌊⌋⌈⌉])"
  r'|(?P<space> )'
)

# 0.1\overline{6} and 0.(3): what stands once, what repeats.
_CYCLE = re.compile(r'(\d*\.\d*)(?:\\[a-z]+ ?\{?|\()(\d+)[})]?')

# Greek letters, as variables.
SYMBOLS = frozenset(
  '\\' + name
  for name in (
    'alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi '
    'rho sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi '
    'Sigma Phi Psi Omega ell'
  ).split()
)


def split(text: str) -> list[str] | None:
  """Returns the tokens, last first, after an empty one that ends them.

  None for a text that has anything else in it, is too long or nests too deep.
  """
  if not text or len(text) > LONGEST_CHARACTERS or too_deep(text):
    return None
  tokens, at = [], 0
  while at < len(text):
    found = _TOKEN.match(text, at)
    if not found or found.lastgroup == 'unclear':
      return None
    at = found.end()
    if found.lastgroup != 'space':
      tokens.append(found[0])
  return ['', *reversed(tokens)]


def too_deep(text: str, deepest: int = DEEPEST) -> bool:
  """Returns whether groups, powers, bars or signs nest too deep."""
  depth = reached = 0
  for character in text:
    depth += (character in '([{⌊⌈') - (character in ')]}⌋⌉')
    reached = max(reached, depth)
  nested = max(text.count('|'), text.count('^'), text.count('\\frac'))
  nested = max(nested, text.count('\\sqrt'), text.count('/'))
  return reached > deepest or nested > 10 * deepest


def value(token: str) -> Fraction | None:
  """Returns what a number, a mixed one or a repeating decimal is worth.

  None for a mixed number whose fraction is above 1.
  """
  found = _CYCLE.fullmatch(token)
  if not found and ' ' in token:
    whole, above, below = (int(part) for part in re.split('[ /]', token))
    if not above < below:
      return None
    return whole + Fraction(above, below)
  if not found:
    return Fraction(token)
  start, repeated = found.groups()
  places = len(start.partition('.')[2])
  cycle = Fraction(int(repeated), 10 ** len(repeated) - 1)
  return Fraction(start.rstrip('.') or 0) + cycle / 10**places

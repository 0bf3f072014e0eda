r"""The formulas that latex2sympy2_extended may read, and what it makes of them.

It computes while it reads: `9^{9^{9^9}}` would end no more. So only short texts
of known commands reach it, whose powers, factorials and bounds are small. Its
floating-point numbers are made exact.

Host only; the parser is imported when the first text is read.
"""

import re

from dapo_jax.rewards import latex_tokens

LONGEST_CHARACTERS = 300
DEEPEST = 8

_COMMANDS = frozenset(
  'frac sqrt sum prod int lim to infty pi sin cos tan cot sec csc arcsin '
  'arccos arctan sinh cosh tanh ln log exp binom alpha beta gamma delta theta '
  'lambda mu sigma phi omega begin end cdot times left right'.split()
)
_UNKNOWN_TO_US = frozenset(['sum', 'prod', 'int', 'lim', 'begin'])
_ALLOWED = re.compile(r'[A-Za-z0-9 +\-*/^_{}()\[\]|!,.=<>&\\≤≥∞]*')
# Factorials of more than a variable or two digits.
_LARGE_FACTORIAL = re.compile(r'(?:\d{3}|[)\]}|!])\s*!')
# Products and powers of powers, which multiply exponents.
_MULTIPLIERS = re.compile(r'\\prod|\\binom|[)\]|]\s*\^')
_EXPONENT = re.compile(r'\^\s*(?:(\{)|.)')
_BRACE = re.compile(r'[{}]')
_SHORT_FRACTION = re.compile(r'\\frac ?(\d)(\d)(?!\d)')
_SHORT_ROOT = re.compile(r'\\sqrt ?(\d+)')
_MOST_DIGITS = 3
_MOST_MULTIPLIERS = 2


class Refused(Exception):
  """The text is not allowed, or not understood."""


def is_needed(text: str) -> bool:
  """Returns whether a text has what the reader of our own does not know."""
  return not _UNKNOWN_TO_US.isdisjoint(re.findall(r'\\([A-Za-z]+)', text))


def allows(text: str) -> bool:
  """Returns whether a text may be read."""
  if len(text) > LONGEST_CHARACTERS or not _ALLOWED.fullmatch(text):
    return False
  if latex_tokens.too_deep(text, DEEPEST):
    return False
  commands = set(re.findall(r'\\([A-Za-z]+)', text))
  if not commands <= _COMMANDS:
    return False
  if len(_MULTIPLIERS.findall(text)) > _MOST_MULTIPLIERS:
    return False
  return not _LARGE_FACTORIAL.search(text) and _has_small_exponents(text)


def _has_small_exponents(text: str) -> bool:
  """Whether no exponent or upper bound has a power or many digits in it."""
  for found in _EXPONENT.finditer(text):
    if not found[1]:
      continue
    depth = 1
    for brace in _BRACE.finditer(text, found.end()):
      depth += 1 if brace[0] == '{' else -1
      if not depth:
        break
    else:
      return False
    inside = text[found.end() : brace.start()]
    if re.search(r'[\^!]|\\(?:sum|prod|int|binom)', inside):
      return False
    if sum(character.isdigit() for character in inside) > _MOST_DIGITS:
      return False
  return True


def parse(text: str):
  """Returns a text that is allowed as a SymPy expression or matrix.

  Raises:
    Refused: the parser does not understand the whole of it.
  """
  import latex2sympy2_extended
  import sympy
  from latex2sympy2_extended import latex2sympy2

  text = text.replace('∞', '\\infty ').replace('≤', '\\le ')
  # Decimals as fractions: the parser would round them.
  text = re.sub(
    r'(\d*)\.(\d+)',
    lambda d: rf'\frac{{{d[1]}{d[2]}}}{{{10 ** len(d[2])}}}',
    text.replace('≥', '\\ge '),
  )
  text = _SHORT_FRACTION.sub(r'\\frac{\1}{\2}', text)
  text = _SHORT_ROOT.sub(r'\\sqrt{\1}', text)
  config = latex2sympy2.ConversionConfig(lowercase_symbols=False)
  try:
    found = latex2sympy2_extended.latex2sympy(
      text, normalization_config=None, conversion_config=config
    )
    if not isinstance(found, (sympy.Expr, sympy.MatrixBase)):
      raise Refused
    return found.doit()
  except Refused:
    raise
  except Exception as error:  # The parser raises plain exceptions.
    raise Refused from error

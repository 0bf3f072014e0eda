r"""Formulas in LaTeX or plain text, read as exact sums.

Host only. A recursive-descent parser of what answers are made of: numbers,
fractions, square roots, pi, powers, products, sums, brackets, mixed numbers
and variables. Nothing is evaluated but by the arithmetic of `surds`.

  sum      = [sign] product {sign product}
  product  = power {('*' | '/') power | power}    power with no sign between
  power    = atom ['^' argument]
  atom     = number | letter | \pi | '(' sum ')' | '{' sum '}'
           | \frac argument argument | \sqrt ['[2]'] argument
  argument = digit | letter | \pi | '{' sum '}' | '(' sum ')'

As in TeX, an argument without braces is one digit. What people write in two
meanings is refused: `x^10`, `\sqrt12`, `1/2x`, `2\frac{4}{3}`.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from dapo_jax.data import refusals, surds

_MAX_CHARACTERS = 200
_MAX_BRACKETS = 40
_TOKEN = re.compile(
  r'(?P<repeating>[0-9]*\.[0-9]*\\overline\{[0-9]+\})'
  r'|(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)'
  r'|(?P<command>\\[A-Za-z]+)'
  r'|(?P<letter>[A-Za-z])'
  r'|(?P<symbol>[-+*/^(){}\[\]])'
)
_REPEATING = re.compile(r'(\d*)\.(\d*)\\overline\{(\d+)\}')
# Spellings of one thing, replaced in this order.
_SPELLINGS = (
  (re.compile(r'\\left(?![A-Za-z])|\\right(?![A-Za-z])|\\displaystyle'), ''),
  (re.compile(r'\\[dtc]frac(?![A-Za-z])'), r'\\frac'),
  (re.compile(r'\\[bB]igg?[lr]?(?![A-Za-z])'), ''),
  (re.compile(r'\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[×·⋅]'), '*'),
  (re.compile(r'\\div(?![A-Za-z])|÷'), '/'),
  (re.compile('[−–]'), '-'),
  (re.compile('π'), r'\\pi '),
  (re.compile('√'), r'\\sqrt '),
  (re.compile(r'\\[,;:!> ]|\\q?quad(?![A-Za-z])|~'), ' '),
  (re.compile(r'(?<![\\A-Za-z])(sqrt|pi)(?![A-Za-z])'), r'\\\1 '),
  (re.compile(r'\\operatorname\{(\w+)\}'), r'\\\1 '),
)
_FUNCTIONS = re.compile(
  r'\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])'
  r'|\\(?:ln|lg|log|exp|max|min|gcd|binom|lfloor|lceil|arg|det|sum|prod|int)'
  r'(?![A-Za-z])|\\d?binom|!|\|'
)
_WORD = re.compile(r'(?<![\\A-Za-z])[A-Za-z]{2,}')


def parse(text: str, *, imaginary: bool) -> surds.Sum:
  r"""Returns the exact value of a formula.

  Args:
    text: the formula, without dollar signs around it.
    imaginary: whether the letter i is the imaginary unit. If not, it is
      refused like the letter e, which could be Euler's number.

  Raises:
    Refusal: the formula is none that is read, or has two readings.
  """
  brackets_count = text.count('(') + text.count('{')
  if len(text) > _MAX_CHARACTERS or brackets_count > _MAX_BRACKETS:
    raise refusals.Refusal('too_large')
  for pattern, plain in _SPELLINGS:
    text = pattern.sub(plain, text)
  if _FUNCTIONS.search(text):
    raise refusals.Refusal('function')
  if _WORD.search(re.sub(r'\\[A-Za-z]+', ' ', text)):
    raise refusals.Refusal('text')
  reader = _Reader(_tokens(text), imaginary)
  value = reader.sum()
  if reader.peek().text:
    raise refusals.Refusal('unreadable')
  return value


class _Token(NamedTuple):
  """A piece of a formula; at its end, one without text."""

  kind: str
  text: str


def _tokens(text: str) -> list[_Token]:
  """Returns the pieces of a formula, without the space between them."""
  found, start = [], 0
  while start < len(text):
    if text[start].isspace():
      start += 1
      continue
    match = _TOKEN.match(text, start)
    if match is None:
      raise refusals.Refusal('unreadable')
    found.append(_Token(match.lastgroup, match[0]))
    start = match.end()
  return found


class _Reader:
  """What is left of a formula. Each method reads what it is named for."""

  def __init__(self, tokens: list[_Token], imaginary: bool):
    self._tokens = tokens
    self._place = 0
    self._imaginary = imaginary

  def peek(self, ahead: int = 0) -> _Token:
    """Returns a token that is not read yet."""
    place = self._place + ahead
    return self._tokens[place] if place < len(self._tokens) else _Token('', '')

  def _take(self, *texts: str) -> bool:
    """Reads the next token if it is one of these."""
    found = self.peek().text in texts
    self._place += found
    return found

  def _expect(self, text: str) -> None:
    if not self._take(text):
      raise refusals.Refusal('unreadable')

  def sum(self) -> surds.Sum:
    """Reads terms with signs between them."""
    total, sign = {}, self._sign()
    while True:
      term = self._product()
      total = surds.add(total, surds.negative(term) if sign < 0 else term)
      if self.peek().text not in ('+', '-'):
        return total
      sign = self._sign()

  def _sign(self) -> int:
    if self._take('-'):
      return -1
    self._take('+')
    return 1

  def _product(self) -> surds.Sum:
    value = self._power()
    while True:
      if self._take('*'):
        value = self._times(value, self._power())
      elif self._take('/'):
        value = surds.multiply(value, surds.reciprocal(self._power()))
        # 1/2x is half of x to some, and the inverse of 2x to others.
        if self._at_factor() or self.peek().text == '/':
          raise refusals.Refusal('ambiguous')
      elif self._at_factor():
        # TeX prints {16}{5} as 165.
        if self.peek().kind in ('number', 'repeating', 'symbol') and (
          self.peek().text != '('
        ):
          raise refusals.Refusal('ambiguous')
        value = self._times(value, self._power())
      else:
        return value

  def _at_factor(self) -> bool:
    token = self.peek()
    return token.kind in ('number', 'repeating', 'letter', 'command') or (
      token.text in ('(', '{')
    )

  def _times(self, left: surds.Sum, right: surds.Sum) -> surds.Sum:
    if _is_polynomial_sum(left) or _is_polynomial_sum(right):
      raise refusals.Refusal('factored')
    return surds.multiply(left, right)

  def _power(self) -> surds.Sum:
    start = self.peek()
    base = self._atom()
    if not self._take('^'):
      return base
    exponent = surds.as_fraction(self._argument()[0])
    if start.text == '\\frac' or self.peek().text == '^':
      raise refusals.Refusal('ambiguous')
    if exponent is None or exponent.denominator != 1:
      raise refusals.Refusal('power')
    if _is_polynomial_sum(base):
      raise refusals.Refusal('factored')
    return surds.power(base, exponent.numerator)

  def _atom(self) -> surds.Sum:
    kind, text = token = self.peek()
    self._place += 1
    if kind == 'number':
      return self._number(text)
    if kind == 'repeating':
      return surds.constant(_repeating(text))
    if kind == 'letter':
      return self._letter(text)
    if token.text in ('(', '{'):
      return self._bracketed(text)
    if text == '\\pi':
      return surds.pi()
    if text == '\\frac':
      return self._fraction()[0]
    if text == '\\sqrt':
      return self._root()
    raise refusals.Refusal('unreadable' if kind != 'command' else 'symbol')

  def _letter(self, text: str) -> surds.Sum:
    if text == 'i' and self._imaginary:
      return surds.imaginary_unit()
    if text in ('e', 'i'):
      raise refusals.Refusal('symbol')
    return surds.variable(text)

  def _bracketed(self, opening: str) -> surds.Sum:
    value = self.sum()
    self._expect({'(': ')', '{': '}'}[opening])
    return value

  def _number(self, text: str) -> surds.Sum:
    """Reads what follows a number, if they are a mixed number."""
    part = self._fraction_part() if text.isdecimal() else None
    if part is None:
      if self.peek().kind == 'number':
        raise refusals.Refusal('ambiguous')
      return surds.constant(Fraction(text))
    # 2 4/3 is no mixed number, and so may be a product.
    ended = not self._at_factor() and self.peek().text not in ('^', '/')
    if not (0 < part < 1 and ended):
      raise refusals.Refusal('ambiguous')
    return surds.constant(int(text) + part)

  def _fraction_part(self) -> Fraction | None:
    r"""Reads m/n or \frac{m}{n} of integers, if that is what follows."""
    start = self._place
    if self._take('\\frac'):
      value, plain = self._fraction()
      if plain:
        return surds.as_fraction(value)
      self._place = start
    top, slash, bottom = (self.peek(ahead) for ahead in range(3))
    if slash.text == '/' and (top.text + bottom.text).isdecimal():
      if top.kind == bottom.kind == 'number' and int(bottom.text):
        self._place += 3
        return Fraction(int(top.text), int(bottom.text))
    return None

  def _fraction(self) -> tuple[surds.Sum, bool]:
    """Returns a fraction, and whether it is one integer over another."""
    top, top_is_plain = self._argument(more_digits=True)
    bottom, bottom_is_plain = self._argument()
    value = surds.multiply(top, surds.reciprocal(bottom))
    return value, top_is_plain and bottom_is_plain

  def _root(self) -> surds.Sum:
    if self._take('['):
      if not (self._take('2') and self._take(']')):
        raise refusals.Refusal('root')
    return surds.square_root(self._argument()[0])

  def _argument(self, *, more_digits: bool = False) -> tuple[surds.Sum, bool]:
    r"""Returns the argument of a command, and whether it is a plain integer.

    Args:
      more_digits: whether another argument follows, so that in \frac43 the 3
        is not left over.
    """
    kind, text = self.peek()
    if kind == 'number':
      if not text.isdecimal() or (len(text) > 1 and not more_digits):
        raise refusals.Refusal('ambiguous')
      if len(text) > 1:  # Its first digit is read, the others stay.
        self._tokens[self._place] = _Token('number', text[1:])
      else:
        self._place += 1
      return surds.constant(int(text[0])), True
    if text in ('{', '('):
      inside = self.peek(1)
      plain = inside.text.isdecimal() and self.peek(2).text in ('}', ')')
      self._place += 1
      return self._bracketed(text), plain
    if kind == 'letter' or text == '\\pi':
      return self._atom(), False
    raise refusals.Refusal('unreadable')


def _is_polynomial_sum(value: surds.Sum) -> bool:
  """Says whether a value has a variable and more than one term."""
  return len(value) > 1 and any(shape.variables for shape in value)


def _repeating(text: str) -> Fraction:
  r"""Returns a decimal whose last digits repeat: 0.1\overline{6} is 1/6."""
  whole, fixed, period = _REPEATING.fullmatch(text).groups()
  shift = 10 ** len(fixed)
  return Fraction(int(whole + fixed or 0), shift) + Fraction(
    int(period), shift * (10 ** len(period) - 1)
  )

"""The exact rational value of a formula, where it has one.

No floating-point number is made: 0.1 is one tenth, and integers beyond 2^53 are
told apart. The work is bounded, so that a tower of powers costs nothing.

Host only.
"""

import math
import re
from fractions import Fraction

from dapo_jax.rewards import latex_tree

# Values with more bits, or factorials of more, are left alone.
MOST_BITS = 40_000
LARGEST_FACTORIAL = 3_000

_DECIMAL = re.compile(
  r'[-+]?(?:\d{1,4000}(?:\.\d{0,4000})?|\.\d{1,4000})(?:[eE][-+]?\d{1,3})?',
  re.ASCII,
)


def decimal(text: str) -> Fraction | None:
  """Returns the value of a decimal number such as `-1.50` or `1e-3`."""
  return Fraction(text) if _DECIMAL.fullmatch(text) else None


def rational(tree: latex_tree.Tree) -> Fraction | None:
  """Returns the value of a formula.

  None when it has none (a symbol, 1/0), when it is irrational and when it is
  too large.
  """
  if tree.op == 'number':
    return tree.value
  rule = _RULES.get(tree.value if tree.op == 'call' else tree.op)
  if rule is None:
    return None
  parts = [rational(part) for part in tree.parts]
  if any(part is None for part in parts):
    return None
  try:
    value = rule(*parts)
  except (ZeroDivisionError, ValueError, TypeError):
    return None
  return value if value is not None and _bits(value) <= MOST_BITS else None


def _bits(value: Fraction) -> int:
  return max(value.numerator.bit_length(), value.denominator.bit_length())


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
  if exponent.denominator != 1:
    root = _root(base, Fraction(exponent.denominator))
    return None if root is None else _power(root, Fraction(exponent.numerator))
  if base == 0 and exponent <= 0:
    return None
  if abs(exponent) * (_bits(base) - (abs(base) == 1)) > MOST_BITS:
    return None
  if abs(base) == 1:
    return base if exponent.numerator % 2 else Fraction(1)
  return base**exponent.numerator


def _root(radicand: Fraction, degree: Fraction) -> Fraction | None:
  """The root of a perfect square, cube and so on that is positive."""
  if radicand < 0 or not (degree.denominator == 1 and 2 <= degree <= 64):
    return None
  above = _integer_root(radicand.numerator, degree.numerator)
  below = _integer_root(radicand.denominator, degree.numerator)
  return None if above is None or below is None else Fraction(above, below)


def _integer_root(value: int, degree: int) -> int | None:
  if degree == 2:
    root = math.isqrt(value)
  elif value.bit_length() > 1_000:
    return None
  else:
    # From float's guess, which is near enough for exact Newton steps.
    root = 1 << -(-value.bit_length() // degree)
    while True:
      step = ((degree - 1) * root + value // root ** (degree - 1)) // degree
      if step >= root:
        break
      root = step
  return root if root**degree == value else None


def _factorial(value: Fraction) -> Fraction | None:
  if value.denominator != 1 or not 0 <= value <= LARGEST_FACTORIAL:
    return None
  return Fraction(math.factorial(value.numerator))


def _binomial(above: Fraction, below: Fraction) -> Fraction | None:
  if above.denominator != 1 or not 0 <= above <= LARGEST_FACTORIAL:
    return None
  return Fraction(math.comb(above.numerator, below.numerator))


def _integers(function):
  """The function of integers only; None of others."""
  return lambda *parts: (
    Fraction(function(*(part.numerator for part in parts)))
    if all(part.denominator == 1 for part in parts)
    else None
  )


_RULES = {
  'sum': lambda *parts: sum(parts, Fraction()),
  'product': lambda *parts: _bounded_product(parts),
  'quotient': lambda above, below: above / below,
  'power': _power,
  'root': _root,
  'factorial': _factorial,
  'binomial': _binomial,
  'abs': abs,
  'floor': lambda value: Fraction(math.floor(value)),
  'ceiling': lambda value: Fraction(math.ceil(value)),
  'sqrt': lambda value: _root(value, Fraction(2)),
  'gcd': _integers(math.gcd),
  'lcm': _integers(math.lcm),
  'max': lambda *parts: max(parts),
  'min': lambda *parts: min(parts),
}


def _bounded_product(parts: tuple[Fraction, ...]) -> Fraction | None:
  if sum(_bits(part) for part in parts) > 4 * MOST_BITS:
    return None
  return math.prod(parts, start=Fraction(1))

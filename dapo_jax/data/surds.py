"""Exact sums of fractions times square roots, powers of pi and variables.

Host only. A sum is a mapping from the shape of a term to its coefficient, and
it is its own normal form: two sums are the same number (or polynomial) exactly
if the mappings are equal. For the square roots of different square-free
integers are linearly independent over the fractions (Besicovitch, 1940), and
pi is no root of a polynomial whose coefficients are such sums (Lindemann,
1882).
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from dapo_jax.data import refusals

# Beyond these a number is refused rather than computed with.
MAX_BITS = 128
MAX_RADICAND = 10**9  # Its primes are found by trial.
MAX_EXPONENT = 64
MAX_TERMS = 64


class Shape(NamedTuple):
  """What the coefficient of a term is multiplied by."""

  # Square-free; below 0 it is i times the root of what it is without sign.
  radicand: int = 1
  pi_exponent: int = 0
  # (name, exponent), sorted by name, exponents above 0.
  variables: tuple[tuple[str, int], ...] = ()


# No coefficient is 0; the empty sum is 0.
Sum = Mapping[Shape, Fraction]


def constant(value: Fraction | int) -> Sum:
  """Returns a fraction as a sum."""
  return _checked({Shape(): Fraction(value)})


def pi() -> Sum:
  """Returns pi."""
  return {Shape(pi_exponent=1): Fraction(1)}


def imaginary_unit() -> Sum:
  """Returns i, whose square is -1."""
  return {Shape(radicand=-1): Fraction(1)}


def variable(name: str) -> Sum:
  """Returns a variable."""
  return {Shape(variables=((name, 1),)): Fraction(1)}


def as_fraction(value: Sum) -> Fraction | None:
  """Returns the fraction that a sum is, None if it is none."""
  if value.keys() <= {Shape()}:
    return value.get(Shape(), Fraction(0))
  return None


def add(left: Sum, right: Sum) -> Sum:
  """Returns left + right."""
  total = dict(left)
  for shape, coefficient in right.items():
    total[shape] = total.get(shape, Fraction(0)) + coefficient
  return _checked(total)


def multiply(left: Sum, right: Sum) -> Sum:
  """Returns left * right."""
  total = {}
  for one, a in left.items():
    for other, b in right.items():
      factor, shape = _shape_product(one, other)
      total[shape] = total.get(shape, Fraction(0)) + a * b * factor
  return _checked(total)


def negative(value: Sum) -> Sum:
  """Returns -value."""
  return {shape: -coefficient for shape, coefficient in value.items()}


def power(value: Sum, exponent: int) -> Sum:
  """Returns value to an integer power.

  Raises:
    Refusal: of the reason `power` or `too_large`, or those of `reciprocal`.
  """
  if abs(exponent) > MAX_EXPONENT or (not value and exponent <= 0):
    raise refusals.Refusal('power')
  result = constant(1)
  for _ in range(abs(exponent)):
    result = multiply(result, value)
  return reciprocal(result) if exponent < 0 else result


def square_root(value: Sum) -> Sum:
  """Returns the square root of a fraction; of one below 0, i times a root.

  Raises:
    Refusal: `root` where the value is no fraction, `too_large`.
  """
  fraction = as_fraction(value)
  if fraction is None:
    raise refusals.Refusal('root')
  if not fraction:
    return {}
  # sqrt(a/b) = sqrt(a b) / b.
  outside, radicand = _extracted(fraction.numerator * fraction.denominator)
  return _checked({Shape(radicand): Fraction(outside, fraction.denominator)})


def reciprocal(value: Sum) -> Sum:
  """Returns 1 / value.

  Of a sum of roots it is found by conjugates: with c the value in which the
  root of one prime has the other sign, value * c has no root of that prime.

  Raises:
    Refusal: `unreadable` where the value is 0, `variables` where one has a
      variable, `terms` where several terms have pi.
  """
  if not value:
    raise refusals.Refusal('unreadable')
  if any(shape.variables for shape in value):
    raise refusals.Refusal('variables')
  if len(value) == 1:
    [(shape, a)] = value.items()
    inverse = Shape(shape.radicand, -shape.pi_exponent)
    return _checked({inverse: 1 / (a * shape.radicand)})
  if any(shape.pi_exponent for shape in value):
    raise refusals.Refusal('terms')
  numerator = constant(1)
  for prime in _primes(value):
    conjugate = {
      shape: -a if _has_root(shape, prime) else a for shape, a in value.items()
    }
    numerator = multiply(numerator, conjugate)
    value = multiply(value, conjugate)
  fraction = as_fraction(value)
  return multiply(numerator, constant(1 / fraction))


def _checked(terms: Mapping[Shape, Fraction]) -> Sum:
  """Returns the terms that are not 0, if they are few and not too long."""
  kept = {shape: a for shape, a in terms.items() if a}
  if len(kept) > MAX_TERMS:
    raise refusals.Refusal('too_large')
  for shape, a in kept.items():
    longest = max(abs(a.numerator), a.denominator)
    if longest.bit_length() > MAX_BITS or abs(shape.radicand) > MAX_RADICAND:
      raise refusals.Refusal('too_large')
  return kept


def _shape_product(one: Shape, other: Shape) -> tuple[int, Shape]:
  """Returns what two shapes make: a factor, and the shape of the product."""
  shared = math.gcd(one.radicand, other.radicand)
  # sqrt(g a) sqrt(g b) = g sqrt(a b), and i times i is -1.
  both_imaginary = one.radicand < 0 and other.radicand < 0
  factor = -shared if both_imaginary else shared
  radicand = one.radicand * other.radicand // shared**2
  exponents = dict(one.variables)
  for name, exponent in other.variables:
    exponents[name] = exponents.get(name, 0) + exponent
  return factor, Shape(
    radicand,
    one.pi_exponent + other.pi_exponent,
    tuple(sorted(exponents.items())),
  )


def _extracted(number: int) -> tuple[int, int]:
  """Returns (a, n) of the number a^2 n, where n is square-free."""
  if abs(number) > MAX_RADICAND:
    raise refusals.Refusal('too_large')
  outside, inside, rest, divisor = 1, 1 if number >= 0 else -1, abs(number), 2
  while divisor * divisor <= rest:
    exponent = 0
    while rest % divisor == 0:
      rest //= divisor
      exponent += 1
    outside *= divisor ** (exponent // 2)
    inside *= divisor ** (exponent % 2)
    divisor += 1
  return outside, inside * rest


def _primes(value: Sum) -> list[int]:
  """Returns the primes below the roots, and -1 where one is imaginary."""
  found = set()
  for shape in value:
    rest, divisor = abs(shape.radicand), 2
    while rest > 1:
      if divisor * divisor > rest:
        divisor = rest  # What is left has no smaller divisor: it is prime.
      if rest % divisor == 0:
        found.add(divisor)
        rest //= divisor
      else:
        divisor += 1
    if shape.radicand < 0:
      found.add(-1)
  return sorted(found)


def _has_root(shape: Shape, prime: int) -> bool:
  if prime == -1:
    return shape.radicand < 0
  return shape.radicand % prime == 0

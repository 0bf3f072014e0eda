"""Exact sums as the expressions of a computer algebra system."""

import sympy

from dapo_jax.data import surds


def to_sympy(value: surds.Sum) -> sympy.Expr:
  """Returns a sum as sympy's expression."""
  total = sympy.Integer(0)
  for shape, a in value.items():
    term = sympy.Rational(a.numerator, a.denominator)
    term *= sympy.sqrt(shape.radicand) * sympy.pi**shape.pi_exponent
    for name, exponent in shape.variables:
      term *= sympy.Symbol(name) ** exponent
    total += term
  return total

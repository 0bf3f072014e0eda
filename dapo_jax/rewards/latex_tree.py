"""A formula as a tree of operations.

Host only.
"""

from fractions import Fraction
from typing import NamedTuple


class Tree(NamedTuple):
  """An operation on parts; a leaf has a value and no parts.

  `op` is number, symbol, constant, sum, product, quotient, power, root (of the
  first part, the second its degree), factorial, degrees, call (of the function
  `value`) or binomial.
  """

  op: str
  value: Fraction | str | None = None
  parts: tuple['Tree', ...] = ()


def number(value: Fraction | int) -> Tree:
  """Returns the leaf of a number."""
  return Tree('number', Fraction(value))

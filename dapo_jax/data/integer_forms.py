r"""The form of an exact answer whose parameters make an integer.

Host only. A value such as 11 - 2 sqrt(6) has the form k - m sqrt(n), with one
choice of the parameters only: they are positive, signs belong to the form,
what is under a root is square-free and fractions are in lowest terms. So two
different values of one form never have the same parameters (the sums of those
may be the same, as in 1/4 and 2/3).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dapo_jax.data import refusals, surds

# Parameters get the first of these that the statement leaves free.
_LETTERS = (
  *('k', 'm', 'n', 'p', 'q', 'r', 's', 't', 'u', 'v', 'w', 'a', 'b', 'c'),
  *('d', 'g', 'h', 'j', 'y', 'z', 'A', 'B', 'C', 'D', 'K', 'M', 'N', 'P'),
  *(f'k_{index}' for index in range(1, 10)),
)
_MAX_TERMS = 3
_MAX_DIGITS = 15


class Form(NamedTuple):
  r"""How an answer is to be written, and what to give instead of it.

  Attributes:
    name: such as `k - m\sqrt{n}`.
    sentence: what asks for the integer, to be put after the statement.
    parameters: their values, in the order of the form.
    integer: what is asked for.
  """

  name: str
  sentence: str
  parameters: tuple[int, ...]
  integer: int


class _Term(NamedTuple):
  """A term of a sum, and the letters that stand for its numbers."""

  is_negative: bool
  shape: surds.Shape
  letter: str
  root_letter: str  # '' where there is no root


def of_integer(value: int, *, unit: str = '') -> Form:
  """Returns the form of an integer that is written in another way."""
  sentence = 'Give the answer as an integer in decimal digits.'
  if unit:
    sentence = f'Give the answer in {unit}, as an integer without the unit.'
  return _form('integer', sentence, [value], value)


def of_numeral(digits: str, base: int) -> Form:
  """Returns the form of a number in another base, to be given digit by digit.

  Args:
    digits: without a zero in front.
    base: at most 10, so that the digits are those of an integer.
  """
  sentence = (
    f'Give the digits of the answer in base ${base}$, without the subscript, as'
    ' the final answer.'
  )
  return _form(f'base {base}', sentence, [int(digits)], int(digits))


def of_tuple(entries: Sequence[int], taken: frozenset[str]) -> Form:
  """Returns the form of a tuple of integers.

  Asked for is k + 2m + 3n + ..., so that entries in a wrong order are noticed.

  Args:
    entries: two or more.
    taken: letters that the statement uses.
  """
  letters = list(itertools.islice(_free(taken), len(entries)))
  if len(letters) < len(entries):
    raise refusals.Refusal('too_large')
  name = f'({", ".join(letters)})'
  total = ' + '.join(
    f'{place if place > 1 else ""}{letter}'
    for place, letter in enumerate(letters, start=1)
  )
  sentence = (
    f'Write the answer as ${name}$ with integers {_listed(letters)}, and give'
    f' the value of ${total}$ as the final answer.'
  )
  integer = sum(place * n for place, n in enumerate(entries, start=1))
  return _form(name, sentence, entries, integer)


def of_polynomial(value: surds.Sum) -> Form:
  """Returns the form of a polynomial in one variable.

  Asked for is the sum of its coefficients, which must be integers.

  Raises:
    Refusal: `variables`, `coefficients`, `symbol` for a variable alone.
  """
  if len({name for shape in value for name, _ in shape.variables}) > 1:
    raise refusals.Refusal('variables')
  [variable] = {name for shape in value for name, _ in shape.variables}
  coefficients = {}
  for shape, a in value.items():
    if shape[:2] != surds.Shape()[:2] or a.denominator > 1:
      raise refusals.Refusal('coefficients')
    coefficients[dict(shape.variables).get(variable, 0)] = a.numerator
  if coefficients == {1: 1}:
    raise refusals.Refusal('symbol')
  sentence = (
    f'Write the answer as a polynomial in ${variable}$ with like terms'
    ' collected, and give the sum of its coefficients, the constant term'
    ' included, as the final answer.'
  )
  parameters = [coefficients.get(e, 0) for e in range(max(coefficients) + 1)]
  name = f'polynomial in {variable}'
  return _form(name, sentence, parameters, sum(parameters))


def of_number(
  value: surds.Sum, taken: frozenset[str], *, unit: str = ''
) -> Form:
  r"""Returns the form of a number that is no integer.

  With p the least common denominator it is (s_1 + ... + s_j) / p, where s_i
  is +-c_i sqrt(n_i) times a power of pi, and maybe i. What is 1 in every
  value of this form is left out: a root, or the denominator. Terms with a plus
  come first; terms that look alike are in the order of their n_i.

  Asked for is the sum of all c_i, n_i and p.

  Args:
    value: its terms have no variables.
    taken: letters that the statement uses.
    unit: what the value counts, if anything.

  Raises:
    Refusal: `terms` for a sum of more than three, or with pi in a denominator;
      `too_large`.
  """
  has_pi_below = any(shape.pi_exponent < 0 for shape in value)
  if len(value) > _MAX_TERMS or (has_pi_below and len(value) > 1):
    raise refusals.Refusal('terms')
  # One term alone begins with m, as in m/n.
  letters = _free(taken | ({'k'} if len(value) == 1 else set()))
  terms, below, parameters = _lettered(value, letters)
  name = _name(terms, below)
  total = ' + '.join(parameters)
  asked = f'the value of ${total}$' if len(parameters) > 1 else f'${total}$'
  sentence = (
    f'Write the answer{" in " + unit if unit else ""} as ${name}$,'
    f' {_conditions(terms, list(parameters), below)}, and give {asked} as the'
    ' final answer.'
  )
  numbers = list(parameters.values())
  return _form(name, sentence, numbers, sum(numbers))


def _lettered(
  value: surds.Sum, letters: Iterator[str]
) -> tuple[list[_Term], str, dict[str, int]]:
  """Returns the terms, the letter of the denominator, and what letters are."""
  denominator = math.lcm(*(a.denominator for a in value.values()))
  terms, parameters = [], {}
  for shape, a in sorted(value.items(), key=_place):
    letter, root_letter = next(letters), ''
    parameters[letter] = abs(int(a * denominator))
    if abs(shape.radicand) != 1:
      root_letter = next(letters)
      parameters[root_letter] = abs(shape.radicand)
    terms.append(_Term(a < 0, shape, letter, root_letter))
  below = next(letters) if denominator > 1 else ''
  if below:
    parameters[below] = denominator
  return terms, below, parameters


def _form(
  name: str, sentence: str, parameters: Sequence[int], integer: int
) -> Form:
  """Returns a form whose integer is not too long to be an answer."""
  if abs(integer) >= 10**_MAX_DIGITS:
    raise refusals.Refusal('too_large')
  return Form(name, sentence, tuple(parameters), integer)


def _free(taken: frozenset[str]) -> Iterator[str]:
  return (letter for letter in _LETTERS if letter not in taken)


def _place(term: tuple[surds.Shape, object]) -> tuple:
  """Returns what terms are sorted by: sign, kind, number under the root."""
  shape, a = term
  return (a < 0, *_kind(shape), abs(shape.radicand))


def _kind(shape: surds.Shape) -> tuple[bool, int, bool]:
  """Returns what tells terms of one sign apart when only letters are seen."""
  return shape.radicand < 0, shape.pi_exponent, abs(shape.radicand) != 1


def _name(terms: Sequence[_Term], below: str) -> str:
  """Returns the form as LaTeX, with the letters for the numbers."""
  all_negative = all(term.is_negative for term in terms)
  pi_exponent = min(term.shape.pi_exponent for term in terms)
  is_fraction = bool(below) or pi_exponent < 0
  # -(k + m)/p has one minus, before the fraction.
  sign = '-' if all_negative and is_fraction else ''
  text = ''
  for term in terms:
    minus = term.is_negative and not sign
    if text:
      text += ' - ' if minus else ' + '
    elif minus:
      text += '-'
    text += _term(term)
  if not is_fraction:
    return text
  return f'{sign}\\frac{{{text}}}{{{below}{_pi(-pi_exponent)}}}'


def _term(term: _Term) -> str:
  root = f'\\sqrt{{{term.root_letter}}}' if term.root_letter else ''
  unit = 'i' if term.shape.radicand < 0 else ''
  return f'{term.letter}{unit}{_pi(term.shape.pi_exponent)}{root}'


def _pi(exponent: int) -> str:
  if exponent < 1:
    return ''
  return '\\pi' if exponent == 1 else f'\\pi^{{{exponent}}}'


def _conditions(
  terms: Sequence[_Term], letters: Sequence[str], below: str
) -> str:
  """Returns what makes the parameters of a form unique, in words."""
  roots = [term.root_letter for term in terms if term.root_letter]
  if len(letters) == 1:
    clauses = [f'where ${letters[0]}$ is a positive integer']
  elif below and len(letters) == 2:
    clauses = [
      f'where {_listed(letters)} are relatively prime positive integers'
    ]
    below = ''
  else:
    clauses = [f'where {_listed(letters)} are positive integers']
  if below:
    divided = [*(term.letter for term in terms), below]
    clauses.append(
      f'{_listed(divided)} are relatively prime'
      if len(divided) == 2
      else f'no prime divides all of {_listed(divided)}'
    )
  if roots:
    none_of = {
      1: f'{_listed(roots)} is not',
      2: f'neither {_listed(roots, " nor ")} is',
      3: f'none of {_listed(roots)} is',
    }
    clauses.append(
      f'{none_of[len(roots)]} divisible by the square of any prime'
    )
  clauses += _order(terms)
  if any(term.shape.radicand < 0 for term in terms):
    clauses.append('$i^2 = -1$')
  return _listed_clauses(clauses)


def _order(terms: Sequence[_Term]) -> Iterator[str]:
  """Yields `$n < q$` for each two terms that look alike."""
  for one, other in itertools.pairwise(terms):
    alike = one.is_negative == other.is_negative
    if alike and _kind(one.shape) == _kind(other.shape):
      yield f'${one.root_letter} < {other.root_letter}$'


def _listed(letters: Sequence[str], last: str = ' and ') -> str:
  """Returns `$k$, $m$ and $n$`."""
  return _joined([f'${letter}$' for letter in letters], last)


def _listed_clauses(clauses: Sequence[str]) -> str:
  return _joined(clauses, ', and ' if len(clauses) > 2 else ' and ')


def _joined(parts: Sequence[str], last: str) -> str:
  return last.join([', '.join(parts[:-1]), parts[-1]] if parts[1:] else parts)

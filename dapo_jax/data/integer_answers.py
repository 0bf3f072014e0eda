r"""Problems rewritten by rule so that the answer is an integer.

Host only. DAPO (section 3.5, appendix A) turns answers of many forms into
integers, so that comparing texts grades them without a mistake: where the
answer is 11 - 2 sqrt(6), the problem asks for k + m + n of k - m sqrt(n), 19.
The paper has a language model do it. Here a rule does where the answer can be
read exactly, and appends one sentence to the statement; what it can't read is
refused, with a reason, and may be left to a model (`integer_rewriting`).
"""

import re
from typing import NamedTuple

from dapo_jax.data import (
  gold_text,
  integer_forms,
  latex_expressions,
  refusals,
  statement_cues,
  surds,
)

# The form of an answer that is an integer already.
UNCHANGED = 'unchanged'

_INTEGER = re.compile(r'[+-]?[0-9]{1,15}')
_NUMERAL = re.compile(r'([0-9]+)\s*_\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))')
# 000 is the end of a number with a comma in it, as in (1,000).
_LEADING_ZERO = re.compile(r'\s*-?0[0-9]')
_CENTS = re.compile(r'([0-9]+)\.([0-9]{2})')


class Rewritten(NamedTuple):
  r"""A problem whose answer is an integer.

  Attributes:
    statement: the problem's text.
    integer: its answer.
    form: what the original answer looks like, such as `k - m\sqrt{n}`;
      `UNCHANGED` if it is this integer and the statement is the original.
  """

  statement: str
  integer: int
  form: str


def by_rule(statement: str, answer: str) -> Rewritten:
  """Returns the problem that asks for an integer instead of its answer.

  The statement stays as it is and gets a sentence that names the form of the
  answer, what makes it unique, and what to give. An integer stays as it is.

  Args:
    statement: the problem, in LaTeX or plain text.
    answer: its right answer, in either.

  Raises:
    Refusal: the answer has no form that is known, or more than one reading.
  """
  found = gold_text.undressed(answer)
  number = gold_text.without_thousands(found.text)
  if number is not None and not statement_cues.asks_for_list(statement):
    found = found._replace(text=number)
  if _INTEGER.fullmatch(found.text) and not found.unit:
    return Rewritten(statement, int(found.text), UNCHANGED)
  form = _form(statement, found)
  return Rewritten(
    f'{statement.rstrip()}\n\n{form.sentence}', form.integer, form.name
  )


def _form(statement: str, answer: gold_text.Answer) -> integer_forms.Form:
  """Returns the form of an answer that is not an integer as it stands."""
  numeral = _NUMERAL.fullmatch(answer.text)
  if numeral:
    return _numeral(numeral[1], int(numeral[2] or numeral[3]))
  if ',' in answer.text:
    if answer.unit:
      raise refusals.Refusal('several')
    return _tuple(statement, answer.text)
  if answer.unit == 'dollars' and _CENTS.fullmatch(answer.text):
    cents = int(answer.text.replace('.', ''))
    return integer_forms.of_integer(cents, unit='cents')
  if re.search(r'\.[0-9]', answer.text):
    if statement_cues.asks_for_decimal(statement):
      raise refusals.Refusal('decimal')
  return _formula(statement, answer)


def _numeral(digits: str, base: int) -> integer_forms.Form:
  """Returns the form of a number in another base."""
  if not 2 <= base <= 10 or digits.startswith('0'):
    raise refusals.Refusal('unreadable')
  if any(int(digit) >= base for digit in digits):
    raise refusals.Refusal('unreadable')
  return integer_forms.of_numeral(digits, base)


def _tuple(statement: str, text: str) -> integer_forms.Form:
  """Returns the form of a tuple of integers."""
  text = re.sub(r'\\(?:left|right|[bB]igg?[lr]?)(?=[([\])])', '', text)
  parts = gold_text.entries(text)
  if len(parts) > 1:
    raise refusals.Refusal('several')
  inside = re.fullmatch(r'([(\[])(.*)([)\]])', text, re.DOTALL)
  if inside is None:
    raise refusals.Refusal('unreadable')
  parts = gold_text.entries(inside[2])
  if inside[1] == '[' or inside[3] == ']':
    raise refusals.Refusal('interval')
  if len(parts) == 2 and not statement_cues.asks_for_tuple(statement):
    raise refusals.Refusal('interval')
  if any(_LEADING_ZERO.match(part) for part in parts):
    raise refusals.Refusal('ambiguous')
  values = [
    surds.as_fraction(latex_expressions.parse(part, imaginary=False))
    for part in parts
  ]
  if any(value is None or value.denominator > 1 for value in values):
    raise refusals.Refusal('tuple')
  numbers = [value.numerator for value in values]
  return integer_forms.of_tuple(numbers, statement_cues.letters(statement))


def _formula(statement: str, answer: gold_text.Answer) -> integer_forms.Form:
  """Returns the form of a number or a polynomial."""
  letters = statement_cues.letters(statement)
  has_unit = statement_cues.has_imaginary_unit(statement)
  value = latex_expressions.parse(answer.text, imaginary=has_unit)
  if 'i' in letters and not has_unit:
    if any(shape.radicand < 0 for shape in value):
      raise refusals.Refusal('ambiguous')
  variables = {name for shape in value for name, _ in shape.variables}
  if variables:
    if answer.unit:
      raise refusals.Refusal('unit')
    if variables - letters:
      raise refusals.Refusal('symbol')
    return integer_forms.of_polynomial(value)
  fraction = surds.as_fraction(value)
  if fraction is not None and fraction.denominator == 1:
    return integer_forms.of_integer(fraction.numerator, unit=answer.unit)
  return integer_forms.of_number(value, letters, unit=answer.unit)

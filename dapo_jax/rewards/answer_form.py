"""What kind of answer a text is, and its parts.

Host only.
"""

from typing import NamedTuple


class Form(NamedTuple):
  """An answer's kind, text and parts.

  | kind | parts | detail |
  |---|---|---|
  | nothing, words, formula, opaque | none | |
  | list, set | the members | |
  | tuple | the members | brackets, `()` or `[]` |
  | interval | its two ends | brackets, `()`, `[]`, `[)` or `(]` |
  | union | intervals and sets | |
  | matrix | rows, each a list | `determinant` or nothing |
  | quantity | the number | the unit, `%` included |
  | based | none; its text is the digits | the base |
  | ratio | its terms | |
  | named | values that are one another's equals | what is equal to them |
  | equation | two sides | |
  | inequality | the smaller side, the larger | `<` or `≤` |

  An interval that was written as an inequality has the variable's `name`.
  """

  kind: str
  text: str
  parts: tuple['Form', ...] = ()
  detail: str = ''
  name: str = ''


def as_interval(form: Form) -> Form | None:
  """Returns the interval that a form is, or that a pair may be."""
  if form.kind == 'interval':
    return form
  if form.kind == 'tuple' and len(form.parts) == 2:
    return form._replace(kind='interval')
  return None

"""Whether an answer's form is the gold one's, part by part.

The parts that only algebra can decide go to an `Oracle`. A verdict is True,
False, or None where the oracle does not know and everything depends on it.

Host only.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from dapo_jax.rewards import (
  answer_form,
  answer_text,
  quantity_equality,
  three_valued,
)

Form = answer_form.Form


class Oracle(NamedTuple):
  """Decides on formulas; None where it can't."""

  # Whether two formulas have one value.
  equal: Callable[[str, str], bool | None]
  # Whether one is the other times a constant that is not 0, and positive if
  # the third argument says so.
  proportional: Callable[[str, str, bool], bool | None]


_SYMBOL = re.compile(r"(?:[A-Za-z]|[A-Z]{2,4}|\\[a-z]+)(?:_\w)?'*")
# Spaces but between digits, braces around one letter or digit.
_SILENT = re.compile(r'(?<!\d) | (?!\d)|(?<=[\^_A-Za-z])\{(\w)\}')


def same(answer: Form, gold: Form, oracle: Oracle) -> bool | None:
  """Returns whether an answer says what the gold one says.

  It is not symmetric: an answer may say more (`x = 5`, a unit) or leave out
  what the question states (a unit, a base), as `docs/rewards.md` lists.
  """
  if 'nothing' in (answer.kind, gold.kind):
    return False
  if _spelled_alike(answer.text, gold.text):
    return True
  for rule in (_statements, _quantities, _regions, _collections, _special):
    verdict = rule(answer, gold, oracle)
    if verdict is not NotImplemented:
      return verdict
  if 'words' in (answer.kind, gold.kind):
    return False
  return oracle.equal(answer.text, gold.text)


def _spelled_alike(answer: str, gold: str) -> bool:
  """Whether two texts are equal, words in any case."""
  if not (answer and gold):
    return False
  if answer == gold:
    return True
  answer_plain, gold_plain = (
    _SILENT.sub(r'\1', answer_text.without_commands(text))
    for text in (answer, gold)
  )
  in_text = '\\text' in answer + gold and len(gold_plain) > 1
  is_word = re.search('[A-Za-z]{4}', gold_plain)
  if '\\' not in gold_plain and (in_text or is_word):
    answer_plain, gold_plain = answer_plain.lower(), gold_plain.lower()
  return answer_plain == gold_plain != ''


def _statements(
  answer: Form, gold: Form, oracle: Oracle
) -> three_valued.Attempt:
  """What has an equals sign or compares two expressions."""
  kinds = (answer.kind, gold.kind)
  if kinds == ('named', 'named'):
    return _named_alike(answer, gold, oracle)
  if set(kinds) <= {'named', 'equation'}:
    return _equations(answer, gold, oracle)
  if set(kinds) == {'inequality', 'interval'}:
    answer, gold = _as_inequality(answer), _as_inequality(gold)
    kinds = (answer.kind, gold.kind)
  if kinds == ('inequality', 'inequality'):
    if answer.detail != gold.detail:
      return False
    return _proportional(answer, gold, oracle, positive=True)
  if not {'equation', 'inequality'}.isdisjoint(kinds):
    return False
  if 'named' in kinds:
    return _values(answer, gold, oracle)
  return NotImplemented


def _as_inequality(form: Form) -> Form:
  """A ray, x > 2, as the inequality that it was; others as they are."""
  if form.kind != 'interval' or not form.name:
    return form
  variable = Form('formula', form.name)
  low, high = form.parts
  sign = '≤' if {'[', ']'} & set(form.detail) else '<'
  if low.text == '-∞':
    return Form('inequality', form.text, (variable, high), sign)
  if high.text == '∞':
    return Form('inequality', form.text, (low, variable), sign)
  return form


def _named_alike(answer: Form, gold: Form, oracle: Oracle) -> bool | None:
  names = answer.detail.replace(' ', ''), gold.detail.replace(' ', '')
  symbols = [bool(_SYMBOL.fullmatch(name)) for name in names]
  if names[0] == names[1] or not all(names):
    return _values(answer, gold, oracle)
  if all(symbols):
    return _equations(answer, gold, oracle)
  both_applied = all(re.fullmatch(r'.*\(.+\)', name) for name in names)
  return False if both_applied else _values(answer, gold, oracle)


def _values(answer: Form, gold: Form, oracle: Oracle) -> bool | None:
  """Whether every value on one side is every value on the other."""
  answers = answer.parts if answer.kind == 'named' else (answer,)
  golds = gold.parts if gold.kind == 'named' else (gold,)
  return three_valued.every(same(a, g, oracle) for a in answers for g in golds)


def _equations(answer: Form, gold: Form, oracle: Oracle) -> bool | None:
  if len(answer.parts) > 2 or len(gold.parts) > 2:
    return False
  return _proportional(answer, gold, oracle, positive=False)


def _proportional(
  answer: Form, gold: Form, oracle: Oracle, *, positive: bool
) -> bool | None:
  mine, theirs = _difference(answer), _difference(gold)
  if mine is None or theirs is None:
    return False
  return oracle.proportional(mine, theirs, positive)


def _difference(form: Form) -> str | None:
  """One side less the other; None where a side is no formula."""
  if any(part.kind != 'formula' for part in form.parts):
    return None
  sides = [part.text for part in form.parts]
  if form.kind == 'named':
    sides = [form.detail, *sides][:2]
  return f'({sides[0]})-({sides[1]})'


def _quantities(
  answer: Form, gold: Form, oracle: Oracle
) -> three_valued.Attempt:
  alike = lambda a, g: same(a, g, oracle)
  return quantity_equality.compare(answer, gold, alike)


def _regions(answer: Form, gold: Form, oracle: Oracle) -> three_valued.Attempt:
  """Intervals and their unions; a pair may be an interval."""
  kinds = {answer.kind, gold.kind}
  if kinds.isdisjoint({'interval', 'union'}):
    return NotImplemented
  names = {answer.name, gold.name} - {''}
  if len(names) > 1:
    return False
  pieces = []
  for form in (answer, gold):
    form = answer_form.as_interval(form) or form
    if form.kind not in ('interval', 'union'):
      return False
    pieces.append(form.parts if form.kind == 'union' else (form,))
  return three_valued.matched(*pieces, lambda a, g: _piece(a, g, oracle))


def _piece(answer: Form, gold: Form, oracle: Oracle) -> bool | None:
  if answer.kind != gold.kind:
    return False
  if answer.kind == 'set':
    return same(answer, gold, oracle)
  if answer.detail != gold.detail:
    return False
  return _in_order(answer.parts, gold.parts, oracle)


def _collections(
  answer: Form, gold: Form, oracle: Oracle
) -> three_valued.Attempt:
  """Lists and sets in any order, tuples in theirs, matrices by their rows."""
  answer, gold = _as_tuple(answer, gold), _as_tuple(gold, answer)
  kinds = (answer.kind, gold.kind)
  if set(kinds).isdisjoint({'list', 'set', 'tuple', 'matrix'}):
    return NotImplemented
  if kinds == ('tuple', 'tuple'):
    if answer.detail != gold.detail:
      return False
    return _in_order(answer.parts, gold.parts, oracle)
  if kinds == ('matrix', 'matrix'):
    if answer.detail != gold.detail:
      return False
    rows = zip(answer.parts, gold.parts, strict=False)
    return len(answer.parts) == len(gold.parts) and three_valued.every(
      _in_order(row.parts, gold_row.parts, oracle) for row, gold_row in rows
    )
  if set(kinds) == {'matrix', 'formula'}:
    return oracle.equal(answer.text, gold.text)
  if kinds in (('tuple', 'list'), ('list', 'tuple')):
    # Brackets left out, or put in; [0, 9] is an interval.
    square = '[]' in (answer.detail, gold.detail)
    return not square and _in_order(answer.parts, gold.parts, oracle)
  alike = lambda a, g: same(a, g, oracle)
  if set(kinds) == {'set'}:
    return three_valued.covered(answer.parts, gold.parts, alike)
  if set(kinds) <= {'set', 'list'}:
    return three_valued.matched(answer.parts, gold.parts, alike)
  lone = [len(f.parts) == 1 for f in (answer, gold) if f.kind == 'set']
  return lone == [True] and same(_only(answer), _only(gold), oracle)


def _only(form: Form) -> Form:
  return form.parts[0] if form.kind == 'set' else form


def _as_tuple(form: Form, other: Form) -> Form:
  """A column beside a tuple, or x=1, y=2 beside (1, 2), as a tuple."""
  if other.kind != 'tuple':
    return form
  if form.kind == 'matrix' and all(len(row.parts) == 1 for row in form.parts):
    cells = tuple(row.parts[0] for row in form.parts)
    return Form('tuple', form.text, cells, '()')
  if form.kind == 'list' and all(part.kind == 'named' for part in form.parts):
    parts = sorted(form.parts, key=lambda part: part.detail)
    if len({part.detail for part in parts}) < len(parts):
      return form._replace(kind='opaque', parts=())
    return form._replace(parts=tuple(parts))
  return form


def _special(answer: Form, gold: Form, oracle: Oracle) -> three_valued.Attempt:
  """Numerals with a base, and ratios."""
  kinds = (answer.kind, gold.kind)
  if 'based' in kinds:
    return _numerals(answer, gold)
  if kinds == ('ratio', 'ratio'):
    return _ratios(answer, gold, oracle)
  if 'ratio' in kinds:
    ratio, other = (answer, gold) if kinds[0] == 'ratio' else (gold, answer)
    if len(ratio.parts) != 2 or other.kind != 'formula':
      return False
    if ratio.parts[1].text.startswith('0'):
      return False
    above, below = (f'({part.text})' for part in ratio.parts)
    return oracle.equal(f'{above}/{below}', other.text)
  return NotImplemented


def _numerals(answer: Form, gold: Form) -> bool:
  """Digits with a base; the answer may leave out what the question states."""
  bases = [form.detail for form in (answer, gold) if form.kind == 'based']
  if len(bases) == 2 and bases[0] != bases[1]:
    return False
  if len(bases) == 1 and answer.kind == 'based' and bases != ['10']:
    return False
  digits = [
    (form.parts[0] if form.kind == 'based' else form).text.lstrip('0')
    for form in (answer, gold)
  ]
  return digits[0] == digits[1]


def _ratios(answer: Form, gold: Form, oracle: Oracle) -> bool | None:
  verdict = _in_order(answer.parts, gold.parts, oracle)
  if verdict or (_is_time(answer) and _is_time(gold)):
    return verdict
  if len(answer.parts) != len(gold.parts):
    return False
  firsts = answer.parts[0].text, gold.parts[0].text
  return three_valued.every(
    oracle.equal(f'({firsts[0]})*({g.text})', f'({firsts[1]})*({a.text})')
    for a, g in zip(answer.parts[1:], gold.parts[1:], strict=True)
  )


def _is_time(ratio: Form) -> bool:
  """Whether a ratio can be a time of day."""
  texts = [part.text for part in ratio.parts]
  return all(re.fullmatch(r'\d{1,2}', text) for text in texts) and all(
    len(text) == 2 and text < '60' for text in texts[1:]
  )


def _in_order(answers, golds, oracle: Oracle) -> bool | None:
  if len(answers) != len(golds):
    return False
  pairs = zip(answers, golds, strict=True)
  return three_valued.every(
    same(answer, gold, oracle) for answer, gold in pairs
  )

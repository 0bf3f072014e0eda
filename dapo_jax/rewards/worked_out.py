r"""Whether an answer is worked out: not the question again, nor a sum to do.

`47+38` equals 85, but who answers so to `47+38=?` has done nothing, and a
policy that is paid for it learns to copy. So an answer that is right in value
must also be, its unit aside, one of these:

- spelled like the gold answer, or a single number;
- where the gold answer is a number: a number or a power of one, maybe with a
  sign and a power of ten beside it, and, if the gold one is no integer, a
  quotient of these;
- otherwise not a formula that stands in the problem, whatever its spelling and
  the order of its terms. Neither is a fraction or a number with a point.

Host only.
"""

import re

from dapo_jax.rewards import (
  answer_text,
  asked,
  exact_value,
  latex_parser,
  latex_tree,
  units,
)

# Names before an equals sign are not looked at, nor what was equated first.
_SIDES = re.compile(r'[=≈]')
_LISTS = re.compile(r'[,;∧∨∪]')
_OPERATIONS = re.compile(r'[-+*/^!\\]')
# What our parser does not read, and what no number has.
_TO_DO = re.compile(r'\\(?:sum|prod|int|lim)(?![A-Za-z])')
# A number word, as `units` writes it.
_SCALED = re.compile(r'\((.+)\)\*\d+')
_BRACKETS = '()[]{}\\⟨⟩ '
# Parts of a formula that stand for a value as they are.
_LEAVES = ('number', 'symbol', 'constant')


def is_worked_out(answer: str, gold: str, problem: str) -> bool:
  """Returns whether an answer that equals the gold one is more than equal.

  One that nests too deep is not; no text makes it raise.

  Args:
    answer: the answer as `final_answer.find` returns it.
    gold: the right answer.
    problem: what was asked.
  """
  if len(answer) > answer_text.LONGEST_CHARACTERS:
    return True  # an integer: nothing else is right of that length
  try:
    return _is_worked_out(answer, gold, problem)
  except RecursionError:
    return False


def _is_worked_out(answer: str, gold: str, problem: str) -> bool:
  ours, theirs = answer_text.normalize(answer), answer_text.normalize(gold)
  if _spelling(ours) == _spelling(theirs):
    return True
  name, _, value = theirs.rpartition('=')
  if _is_name(name) and ours.startswith(f'{name}=') and _read_number(value):
    theirs = value
  elif name:  # an equation, whose sides are no answers
    return _compact(ours) not in _compact(answer_text.normalize(problem))
  # Members of a list may stand in any order.
  golds = _LISTS.split(theirs)
  return all(
    any(_is_done(part, own, problem) for own in golds)
    for part in _LISTS.split(_last_side(ours))
  )


def _last_side(text: str) -> str:
  """Returns what a formula ends on; of `5+3=x` that is the sum."""
  sides = _SIDES.split(text)
  while len(sides) > 1:
    tree = _read(sides[-1])
    if tree is not None and tree.op != 'symbol':
      break
    sides.pop()
  return sides[-1]


def _is_done(answer: str, gold: str, problem: str) -> bool:
  (core, unit), (own, _) = _measured(answer), _measured(gold)
  if _spelling(core) == _spelling(own):
    return True
  tree, known = _read(core), _read_number(own)
  if tree is not None and _same(tree, _read(own)):
    return True
  decimals = [exact_value.decimal(text) is not None for text in (core, own)]
  if all(decimals) and not unit:
    return True
  if tree is None:
    if known is not None and _TO_DO.search(core):
      return False
    # A word stands in the problem without being an answer to copy.
    return not _OPERATIONS.search(core) or _compact(core) not in _compact(
      answer_text.normalize(problem)
    )
  return _is_formula_done(tree, known, problem)


def _measured(text: str) -> tuple[str, str]:
  """Returns an answer without its unit, and the unit, `3 million`'s too."""
  core, unit = units.split(text)
  scaled = _SCALED.fullmatch(core)
  if scaled and core not in text:
    return scaled[1], unit or 'scale'
  return core, unit


def _same(tree: latex_tree.Tree, other: latex_tree.Tree | None) -> bool:
  """Returns whether two formulas differ in the order of terms at most."""
  return other is not None and asked.canonical(tree) == asked.canonical(other)


def _is_name(text: str) -> bool:
  tree = latex_parser.parse(text)
  return tree is not None and tree.op == 'symbol'


def _read_number(text: str) -> latex_tree.Tree | None:
  """Returns a formula that is a number, None for any other."""
  tree = _read(text)
  return tree if tree is not None and _is_number(tree) else None


def _read(text: str) -> latex_tree.Tree | None:
  """Returns a formula; a bracket may have been opened in another part."""
  tree = latex_parser.parse(text)
  return tree or latex_parser.parse(text.strip(_BRACKETS))


def _is_number(tree: latex_tree.Tree) -> bool:
  """Returns whether a formula is a number, a fraction or one with a sign."""
  value = exact_value.rational(tree)
  if value is None or tree.op == 'number':
    return value is not None
  if tree.op == 'product':
    return len(tree.parts) == 2 and tree.parts[0] == latex_tree.number(-1)
  return tree.op == 'quotient' and all(map(_is_number, tree.parts))


def _is_formula_done(
  tree: latex_tree.Tree, known: latex_tree.Tree | None, problem: str
) -> bool:
  """Returns whether a formula is an answer, beside a number that is `known`."""
  value = exact_value.rational(tree)
  if tree.op in _LEAVES and (value is None or value.denominator == 1):
    return True
  if known is not None:
    # Of an angle in radians, which is no fraction, the quotient stays.
    quotients = value is None or exact_value.rational(known).denominator != 1
    if not _is_evaluated(tree, quotients=quotients):
      return False
  return asked.canonical(tree) not in asked.formulas(problem)


def _is_evaluated(tree: latex_tree.Tree, *, quotients: bool) -> bool:
  """Returns whether nothing but powers and, perhaps, quotients is in it."""
  if tree.op in _LEAVES:
    return True
  if tree.op == 'power':
    exponent = exact_value.rational(tree.parts[1])
    is_whole = exponent is not None and exponent.denominator == 1
    return is_whole and all(map(_is_number, tree.parts))
  if tree.op == 'product':
    if sum(map(_is_factor, tree.parts)) > 1:
      return False
  elif not (tree.op == 'degrees' or (tree.op == 'quotient' and quotients)):
    return False
  return all(_is_evaluated(part, quotients=quotients) for part in tree.parts)


def _is_factor(tree: latex_tree.Tree) -> bool:
  """Returns whether a factor is a number to multiply with.

  A sign, a unit and a power of ten are none.
  """
  if tree == latex_tree.number(-1):
    return False
  if tree.op == 'power' and tree.parts[0] == latex_tree.number(10):
    return False
  return tree.op not in ('symbol', 'constant')


def _spelling(text: str) -> str:
  """Returns a text by which words with and without a command are the same."""
  return _compact(answer_text.without_commands(text)).lower()


def _compact(text: str) -> str:
  return ''.join(text.split())

r"""Whether an answer is worked out: not the question again, nor a sum to do.

`47+38` equals 85, but who answers so to `47+38=?` has done nothing, and a
policy that is paid for it learns to copy. So an answer that is right in value
must also be one of these:

- spelled like the gold answer, or a single number;
- where the gold answer is a number: without sums or products of numbers (a
  power of ten aside), and, if that is an integer, without a quotient;
- and not a formula that stands in the problem as it is.

Host only.
"""

import re

from dapo_jax.rewards import answer_text, exact_value, latex_parser, latex_tree

# Names before an equals sign are not looked at, nor what was equated first.
_SIDES = re.compile(r'[=≈]')
_LISTS = re.compile(r'[,;∧∨∪]')
_OPERATIONS = re.compile(r'[-+*/^!\\]')
_WORDS = re.compile(r'\\text\{([^{}]*)\}')
_BRACKETS = '()[]{}\\⟨⟩ '
# Parts of a formula that stand for a value as they are.
_LEAVES = ('number', 'symbol', 'constant')


def is_worked_out(answer: str, gold: str, problem: str) -> bool:
  """Returns whether an answer that equals the gold one is more than equal.

  Args:
    answer: the answer as `final_answer.find` returns it.
    gold: the right answer.
    problem: what was asked.
  """
  if len(answer) > answer_text.LONGEST_CHARACTERS:
    return True  # an integer: nothing else is right of that length
  ours, theirs = answer_text.normalize(answer), answer_text.normalize(gold)
  if _spelling(ours) == _spelling(theirs):
    return True
  asked = _compact(answer_text.normalize(problem))
  if '=' in theirs:  # an equation, whose sides are no answers
    return _compact(ours) not in asked
  # Members of a list may stand in any order.
  golds = _LISTS.split(theirs)
  return all(
    any(_is_done(part, own, asked) for own in golds)
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


def _is_done(answer: str, gold: str, asked: str) -> bool:
  if exact_value.decimal(answer) is not None:
    return True
  tree, known = _read(answer), _read(gold)
  if tree is None:
    # A word stands in the problem without being an answer to copy.
    return not _OPERATIONS.search(answer) or _compact(answer) not in asked
  if tree.op in _LEAVES:
    return True
  if known is not None and _is_number(known):
    is_integer = exact_value.rational(known).denominator == 1
    if not _is_evaluated(tree, quotients=not is_integer):
      return False
    # A fraction that is to be a decimal is the question again.
    if _is_number(tree) and exact_value.decimal(gold) is None:
      return True
  return _compact(answer) not in asked


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


def _is_evaluated(tree: latex_tree.Tree, *, quotients: bool) -> bool:
  """Returns whether no sum, product or unwanted quotient is left to do."""
  if tree.op == 'sum' or (tree.op == 'quotient' and not quotients):
    return False
  if tree.op == 'product' and sum(map(_is_factor, tree.parts)) > 1:
    return False
  # An exponent is not to be worked out.
  parts = tree.parts[:1] if tree.op == 'power' else tree.parts
  return all(_is_evaluated(part, quotients=quotients) for part in parts)


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
  return _compact(_WORDS.sub(r'\1', text)).lower()


def _compact(text: str) -> str:
  return ''.join(text.split())

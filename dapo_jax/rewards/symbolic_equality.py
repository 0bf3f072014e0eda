r"""Equality of formulas by algebra: the exact difference must come out as 0.

A difference is first evaluated at a few points, to 30 digits and relative to
the size of the two: that can only refuse. Whether it is 0 is then for SymPy to
prove. What it does not prove is not equal. A formula that our own reader does
not know (sums, integrals, limits) is read by latex2sympy2_extended, the parser
under math-verify; math-verify's own comparison is not used, for it has a
tolerance, and neither is its entry point, for it evaluates the text.

SymPy takes a second to import, and now and then minutes for a formula: this
module imports it when it first decides, and wants to run in a worker process
that has limits.

Host only.
"""

from collections.abc import Callable

from dapo_jax.rewards import latex_guard, latex_parser, sympy_terms

# What is simplified has at most so many operations.
MOST_OPERATIONS = 300
_DIGITS = 30
# A relative difference above this is none of rounding's.
_DIFFERENT = 1e-15
# Variables that are whole numbers where a formula has no others.
_WHOLE = frozenset('kmn')


def equal(answer: str, gold: str) -> bool:
  r"""Returns whether two formulas are proved to have the same value.

  A variable is real. Where a side is not, as $\sqrt{1/n}$ and $1/\sqrt n$ at
  n < 0, the two need not agree.
  """
  pair = _expressions(answer, gold)
  try:
    return pair is not None and _equal(*pair)
  except Exception:  # SymPy's are of every kind; none of them is a proof.
    return False


def proportional(answer: str, gold: str, positive: bool) -> bool:
  """Returns whether one is a constant other than 0 times the other.

  Denominators are multiplied out first unless the constant is to be positive,
  as between two inequalities.
  """
  pair = _expressions(answer, gold)
  try:
    return pair is not None and _proportional(*pair, positive)
  except Exception:  # As above.
    return False


def _proportional(answer, gold, positive: bool) -> bool:
  import sympy

  pair = answer, gold
  if not all(_is_moderate(side) for side in pair):
    return False
  if not all(side.free_symbols for side in pair):
    return False
  sides = pair
  if not positive:
    sides = [sympy.fraction(sympy.together(side))[0] for side in pair]
  if any(sympy.expand(side) == 0 for side in sides):
    return False
  ratio = sympy.simplify(sides[0] / sides[1])
  if ratio.free_symbols or ratio == 0 or not ratio.is_finite:
    return False
  return not positive or bool(ratio.is_positive)


def can_read(answer: str, gold: str) -> bool:
  """Returns whether two formulas have a reader that may read both."""
  trees = latex_parser.parse(answer), latex_parser.parse(gold)
  if all(trees):
    return True
  return all(
    latex_guard.allows(text) and (tree or latex_guard.is_needed(text))
    for tree, text in zip(trees, (answer, gold), strict=True)
  )


def _expressions(answer: str, gold: str) -> tuple | None:
  """Both as SymPy expressions by the same reader; None where one is none."""
  trees = latex_parser.parse(answer), latex_parser.parse(gold)
  try:
    if all(trees):
      return tuple(sympy_terms.expression(tree) for tree in trees)
    if can_read(answer, gold):
      return latex_guard.parse(answer), latex_guard.parse(gold)
  except (sympy_terms.Refused, latex_guard.Refused):
    pass
  return None


def _equal(answer, gold) -> bool:
  import sympy

  if answer == gold:
    return not answer.has(sympy.nan, sympy.zoo)
  if isinstance(answer, sympy.MatrixBase) or isinstance(gold, sympy.MatrixBase):
    return _matrices_equal(answer, gold)
  if not all(isinstance(side, sympy.Expr) for side in (answer, gold)):
    return False
  if any(side.has(sympy.nan, sympy.zoo, sympy.oo) for side in (answer, gold)):
    return False
  if not (_is_moderate(answer) and _is_moderate(gold)):
    return False
  symbols = answer.free_symbols | gold.free_symbols
  if symbols and {symbol.name for symbol in symbols} <= _WHOLE:
    whole = {s: sympy.Symbol(s.name, integer=True) for s in symbols}
    answer, gold = answer.xreplace(whole), gold.xreplace(whole)
  if _differ_somewhere(answer, gold):
    return False
  return _is_zero(answer - gold)


def _matrices_equal(answer, gold) -> bool:
  shapes = getattr(answer, 'shape', None), getattr(gold, 'shape', None)
  if shapes[0] is None or shapes[0] != shapes[1]:
    return False
  return all(_equal(a, g) for a, g in zip(answer, gold, strict=True))


def _is_moderate(expression) -> bool:
  return expression.count_ops() <= MOST_OPERATIONS


def _differ_somewhere(answer, gold) -> bool:
  """Whether the two have different values at some point.

  At one with negative coordinates that counts only where both are real, and
  all their roots and logarithms as well.
  """
  import sympy

  symbols = sorted(
    answer.free_symbols | gold.free_symbols, key=lambda symbol: symbol.name
  )
  whole = any(symbol.is_integer for symbol in symbols)
  for positive, values in _points(len(symbols), whole=whole):
    at = dict(zip(symbols, map(sympy.Rational, values), strict=True))
    try:
      if not positive and not all(_is_real(s, at) for s in (answer, gold)):
        continue
      pair = [_number(side.xreplace(at)) for side in (answer, gold)]
    except (TypeError, ValueError, ArithmeticError, NotImplementedError):
      # Without numbers there is still the proof.
      return False
    if None in pair:
      continue
    size = max(abs(value) for value in pair)
    if abs(pair[0] - pair[1]) > _DIFFERENT * size:
      return True
  return False


def _is_real(expression, at: dict) -> bool:
  """Whether an expression is real at a point, and what it is made of."""
  import sympy

  roots = [p.base for p in expression.atoms(sympy.Pow) if not p.exp.is_integer]
  logarithms = [log.args[0] for log in expression.atoms(sympy.log)]
  values = [_number(part.xreplace(at)) for part in roots + logarithms]
  if any(value is None or not value.is_nonnegative for value in values):
    return False
  value = _number(expression.xreplace(at))
  return value is not None and value.is_real


def _number(expression):
  """A number to 30 digits; None where there is none."""
  import sympy

  value = sympy.N(expression, _DIGITS)
  if not value.is_number or not value.is_finite:
    return None
  real, imaginary = value.as_real_imag()
  if not (real.is_Float or real.is_Rational):
    return None
  # What rounding leaves of an imaginary part is none.
  if abs(imaginary) < _DIFFERENT * abs(real):
    imaginary = sympy.Integer(0)
  return real + imaginary * sympy.I


def _points(count: int, *, whole: bool) -> list[tuple[bool, list[str]]]:
  """Some values for so many variables, and whether all are positive."""
  if whole:
    small = [str(2 + i) for i in range(count)]
    large = [str(7 + 2 * i) for i in range(count)]
  else:
    small = [f'{23 + 17 * i}/97' for i in range(count)]
    large = [f'{137 + 61 * i}/100' for i in range(count)]
  points = [(True, small), (True, large)]
  # Every choice of signs for three variables; further ones repeat them.
  for choice in range(1, 2 ** min(count, 3)):
    signs = ['-' if choice >> i % 3 & 1 else '' for i in range(count)]
    values = [s + v for s, v in zip(signs, large, strict=True)]
    points.append((False, values))
  return points[:1] if not count else points


def _is_zero(difference) -> bool:
  """Whether SymPy proves that an expression is 0 for positive variables."""
  import sympy

  positive = {
    symbol: sympy.Symbol(symbol.name, positive=True, integer=symbol.is_integer)
    for symbol in difference.free_symbols
  }
  difference = difference.doit().xreplace(positive)
  for step in _steps(bool(difference.free_symbols)):
    try:
      if step(difference) == 0:
        return True
    except Exception:  # As above; the next step may succeed.
      continue
  return False


def _steps(has_symbols: bool) -> list[Callable]:
  """Ways to show that an expression is 0, the cheap ones first."""
  import sympy

  steps = [
    sympy.expand,
    lambda e: sympy.expand(sympy.fraction(sympy.together(e))[0]),
    sympy.radsimp,
    sympy.simplify,
    lambda e: sympy.simplify(sympy.expand_log(e, force=True)),
    lambda e: sympy.simplify(e.rewrite(sympy.exp)),
    lambda e: sympy.trigsimp(sympy.expand_trig(e)),
    lambda e: sympy.simplify(sympy.sqrtdenest(e)),
  ]
  if not has_symbols:
    # For algebraic numbers it has a proof, by their minimal polynomial.
    steps.insert(3, lambda e: 0 if e.equals(0) else 1)
  return steps

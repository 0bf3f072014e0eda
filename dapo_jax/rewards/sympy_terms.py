"""A formula's tree as a SymPy expression.

SymPy computes as it builds: what would take it long is refused here.

Host only; SymPy is imported when the first tree is converted.
"""

from dapo_jax.rewards import exact_value, latex_tree

# Of a sum's power, of a number's, and a root's degree.
LARGEST_POWER = 60
LARGEST_EXPONENT = 10_000
LARGEST_DEGREE = 60
LARGEST_FACTORIAL = 3_000


class Refused(Exception):
  """The tree would take too long, or has no meaning."""


def expression(tree: latex_tree.Tree):
  """Returns the SymPy expression; a variable is a real symbol.

  Raises:
    Refused: its powers are too large, or a function is unknown.
  """
  import sympy

  infinity = latex_tree.Tree('constant', 'infinity')
  if tree == infinity:
    return sympy.oo
  if tree == latex_tree.Tree(
    'product', None, (latex_tree.number(-1), infinity)
  ):
    return -sympy.oo
  return _convert(tree, in_function=False)


def _convert(tree: latex_tree.Tree, *, in_function: bool):
  import sympy

  if tree.op == 'number':
    return sympy.Rational(tree.value.numerator, tree.value.denominator)
  if tree.op == 'symbol':
    return sympy.Symbol(tree.value, real=True)
  if tree.op == 'constant':
    if tree.value == 'infinity':
      # One does not calculate with it.
      raise Refused
    return {'e': sympy.E, 'i': sympy.I, 'pi': sympy.pi}[tree.value]
  in_function = in_function or tree.op == 'call'
  parts = [_convert(part, in_function=in_function) for part in tree.parts]
  if tree.op == 'call':
    return _call(tree.value, parts)
  if tree.op == 'degrees':
    # Degrees as such are a unit; a function takes radians.
    return parts[0] * sympy.pi / 180 if in_function else parts[0]
  rules = {
    'sum': lambda *terms: sympy.Add(*terms),
    'product': lambda *factors: sympy.Mul(*factors),
    'quotient': _quotient,
    'power': _power,
    'root': _root,
    'factorial': _factorial,
    'binomial': _binomial,
  }
  return rules[tree.op](*parts)


def _quotient(above, below):
  if below == 0:
    raise Refused
  return above / below


def _power(base, exponent):
  if base == 0 and (exponent.is_nonpositive or not exponent.is_number):
    raise Refused
  if exponent.is_number:
    most = LARGEST_EXPONENT
    if base.is_Add:
      most = LARGEST_POWER
    if base.is_Rational:
      bits = max(base.p.bit_length(), base.q.bit_length())
      most = exact_value.MOST_BITS // max(bits, 1)
    _expect_at_most(exponent, most)
  return base**exponent


def _expect_at_most(number, most: int) -> None:
  """Refuses a number that is not surely as small as that."""
  import sympy

  size = sympy.N(abs(number), 5)
  if not (size.is_Float or size.is_Rational) or not size <= most:
    raise Refused


def _root(radicand, degree):
  import sympy

  if not degree.is_Integer or not 2 <= degree <= LARGEST_DEGREE:
    if degree.is_number:
      raise Refused
    return radicand ** (1 / degree)
  if radicand.is_negative and degree % 2:
    # The real root, which is what a cube root means at school.
    return -((-radicand) ** sympy.Rational(1, degree))
  return radicand ** sympy.Rational(1, degree)


def _factorial(number):
  import sympy

  if number.is_number:
    if not number.is_Integer or number < 0:
      raise Refused
    _expect_at_most(number, LARGEST_FACTORIAL)
  return sympy.factorial(number)


def _binomial(above, below):
  import sympy

  for number in (above, below):
    if number.is_number:
      _expect_at_most(number, LARGEST_FACTORIAL)
  return sympy.binomial(above, below)


def _call(name: str, arguments: list):
  """A function's value; f, g and h stay unknown."""
  import sympy

  if name in ('f', 'g', 'h'):
    # Known by its arguments, in SymPy's order, it is as good as a variable.
    listed = ', '.join(str(argument) for argument in arguments)
    return sympy.Symbol(f'{name}({listed})', real=True)
  if name == 'log':
    base = arguments[1] if len(arguments) > 1 else sympy.Integer(10)
    if base in (0, 1) or arguments[0] == 0:
      raise Refused
    return sympy.log(arguments[0]) / sympy.log(base)
  functions = {
    'ln': sympy.log,
    'arcsin': sympy.asin,
    'arccos': sympy.acos,
    'arctan': sympy.atan,
    'arccot': sympy.acot,
    'abs': sympy.Abs,
    'ceiling': sympy.ceiling,
    'max': sympy.Max,
    'min': sympy.Min,
  }
  several = name in ('gcd', 'lcm', 'max', 'min')
  if not several and len(arguments) != 1:
    raise Refused
  if name == 'exp':
    return _power(sympy.E, arguments[0])
  if name == 'ln' and arguments[0] == 0:
    raise Refused
  function = functions.get(name) or getattr(sympy, name)
  return function(*arguments)

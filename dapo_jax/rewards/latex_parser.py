r"""The reading of a formula, in an answer's one spelling, as a tree.

`parse` reads a whole text or refuses it: it never takes the part that it
understands for the whole. What a writer leaves out is read as the writer means
it: `\frac12` and `\sqrt51` without braces, `2x` as a product, `1\frac34` and
`1 3/4` as sums, `\sin^2 x` as a power, `\sin^{-1} x` as an inverse. It is plain
Python; nothing in it evaluates the text.

Host only.
"""

import re

from dapo_jax.rewards import latex_tokens, latex_tree

Tree = latex_tree.Tree

FUNCTIONS = frozenset(
  'sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh ln log '
  'exp gcd lcm max min sqrt abs'.split()
)
_INVERSES = {'sin': 'arcsin', 'cos': 'arccos', 'tan': 'arctan'}
# Letters that are functions where a parenthesis follows.
_APPLIED = frozenset('fgh')
_CONSTANTS = {'e': 'e', 'i': 'i', '\\pi': 'pi', 'pi': 'pi', '∞': 'infinity'}
_PAIRS = {'(': ')', '[': ']', '{': '}', '|': '|', '⌊': '⌋', '⌈': '⌉'}
_AROUND = {'|': 'abs', '⌊': 'floor', '⌈': 'ceiling'}


class _Refused(Exception):
  """The text is no formula that is understood."""


def parse(text: str) -> Tree | None:
  """Returns the tree of a whole text, or None where it is no formula."""
  tokens = latex_tokens.split(text)
  if tokens is None:
    return None
  try:
    tree = _sum(tokens)
  except (_Refused, RecursionError):
    return None
  return None if tokens[-1] else tree


def _expect(tokens: list[str], token: str) -> None:
  if tokens[-1] != token:
    raise _Refused
  tokens.pop()


def _sum(tokens: list[str], bars: bool = False) -> Tree:
  """Terms with their signs; within `bars` a bar ends them."""
  terms = []
  while not terms or tokens[-1] in ('+', '-'):
    terms.append(_signed(tokens, bars))
  return terms[0] if len(terms) == 1 else Tree('sum', None, tuple(terms))


def _signed(tokens: list[str], bars: bool) -> Tree:
  negative = False
  while tokens[-1] in ('+', '-'):
    negative ^= tokens.pop() == '-'
  term = _term(tokens, bars)
  return _negated(term) if negative else term


def _negated(tree: Tree) -> Tree:
  if tree.op == 'number':
    return latex_tree.number(-tree.value)
  return Tree('product', None, (latex_tree.number(-1), tree))


def _term(tokens: list[str], bars: bool) -> Tree:
  """Factors, written with a sign between them or side by side."""
  begin = tokens[-1]
  factors = [_power(tokens, bars)]
  while True:
    sign = tokens[-1]
    if sign in ('*', '/'):
      tokens.pop()
      negative = tokens[-1] == '-' and tokens.pop()
      begin = tokens[-1]
      factor = _power(tokens, bars)
      factor = _negated(factor) if negative else factor
      if sign == '*':
        factors.append(factor)
      else:
        factors = [Tree('quotient', None, (_product(factors), factor))]
    elif _begins_factor(sign, bars) or (
      sign[:1].isdigit() and factors[-1].op == 'factorial'  # 3!7!
    ):
      begin = _add_beside(factors, begin, tokens, bars)
    else:
      return _product(factors)


def _product(factors: list[Tree]) -> Tree:
  several = len(factors) > 1
  return Tree('product', None, tuple(factors)) if several else factors[0]


def _begins_factor(token: str, bars: bool) -> bool:
  """Whether a token begins a factor that stands beside another."""
  if token == '|':
    return not bars
  return token in ('(', '[', '{', '⌊', '⌈') or (
    token not in ('', '\\}', '\\|')
    and (token[0] in '\\∞' or token[0].isalpha())
  )


def _add_beside(
  factors: list[Tree], begin: str, tokens: list[str], bars: bool
) -> str:
  """Adds the next factor; returns its first token, as `begin` is the last's.

  A fraction behind digits, unlike one behind (2), ends a mixed number.
  """
  token, left, right = tokens[-1], factors[-1], _power(tokens, bars)
  values = [p.value for p in (left, *right.parts) if p.op == 'number']
  is_fraction = token == '\\frac' and right.op == 'quotient'
  wholes = [value for value in values if value.denominator == 1]
  if begin[:1].isdigit() and is_fraction and len(wholes) == 3:
    whole, above, below = wholes
    if 0 < above < below:
      part = above / below
      right = latex_tree.number(whole + (-part if whole < 0 else part))
      factors.pop()
  factors.append(right)
  return token


def _power(tokens: list[str], bars: bool) -> Tree:
  """A factor with what is raised or follows it."""
  tree = _atom(tokens, bars)
  while tokens[-1] in ('!', '°', '^'):
    mark = tokens.pop()
    if mark == '^':
      return Tree('power', None, (tree, _exponent(tokens, bars)))
    # Marks in any number would nest without a bracket that is counted.
    if tree.op == 'degrees' or (mark == '!' and tokens[-1] == '!'):
      raise _Refused
    tree = Tree({'!': 'factorial', '°': 'degrees'}[mark], None, (tree,))
  return tree


def _exponent(tokens: list[str], bars: bool) -> Tree:
  if tokens[-1] == '-':
    tokens.pop()
    return _negated(_exponent(tokens, bars))
  return _group(tokens) if tokens[-1] == '{' else _power(tokens, bars)


def _atom(tokens: list[str], bars: bool) -> Tree:
  token = tokens[-1]
  if not token or (token == '|' and bars):
    raise _Refused
  if token in _PAIRS:
    return _group(tokens)
  tokens.pop()
  if token[:1].isdigit() or token[:1] == '.':
    value = latex_tokens.value(token)
    if value is None:
      raise _Refused
    return latex_tree.number(value)
  if token == '\\frac':
    return Tree('quotient', None, (_argument(tokens), _argument(tokens)))
  if token == '\\binom':
    return Tree('binomial', None, (_argument(tokens), _argument(tokens)))
  if token in ('\\sqrt', 'sqrt'):
    return _root(tokens)
  name = token.removeprefix('\\')
  if name in FUNCTIONS:
    return _call(name, tokens, bars)
  if token in _APPLIED and tokens[-1] == '(':
    return Tree('call', token, _listed(tokens))
  return _name(token, tokens)


def _name(token: str, tokens: list[str]) -> Tree:
  """A constant, or a symbol with its subscript and primes."""
  bare = tokens[-1] not in ('_', "'")
  if token in _CONSTANTS and bare:
    return Tree('constant', _CONSTANTS[token])
  known = token in latex_tokens.SYMBOLS or (len(token) == 1 and token.isalpha())
  # The rest is decorated, as \vec{v} is.
  if not known and not re.match(r'\\[a-z]+\s*[{A-Z]', token):
    raise _Refused
  token = token.replace(' ', '')
  while tokens[-1] in ('_', "'"):
    mark = tokens.pop()
    token += mark if mark == "'" else '_' + _subscript(tokens)
  return Tree('symbol', token)


def _subscript(tokens: list[str]) -> str:
  if tokens[-1] != '{':
    token = tokens.pop()
    if not token.isalnum():
      raise _Refused
    return token
  tokens.pop()
  text = ''
  while tokens[-1] not in ('}', '{', ''):
    text += tokens.pop()
  _expect(tokens, '}')
  return text


def _group(tokens: list[str]) -> Tree:
  """What a pair of brackets, bars or floors holds."""
  opening = tokens.pop()
  tree = _sum(tokens, bars=opening == '|')
  _expect(tokens, _PAIRS[opening])
  name = _AROUND.get(opening)
  return Tree('call', name, (tree,)) if name else tree


def _listed(tokens: list[str]) -> tuple[Tree, ...]:
  """The arguments between two parentheses."""
  _expect(tokens, '(')
  parts = [_sum(tokens)]
  while tokens[-1] == ',':
    tokens.pop()
    parts.append(_sum(tokens))
  _expect(tokens, ')')
  return tuple(parts)


def _argument(tokens: list[str]) -> Tree:
  r"""What \frac takes: a group, or one digit, letter or command."""
  token = tokens[-1]
  if token == '{':
    return _group(tokens)
  if token.isdigit() and len(token) > 1:
    tokens[-1] = token[1:]
    return latex_tree.number(int(token[0]))
  if token.isdigit() or token == '\\sqrt':
    return _atom(tokens, False)
  return _letter(tokens)


def _letter(tokens: list[str]) -> Tree:
  """A constant or symbol without what may follow it."""
  token = tokens.pop()
  if token in _CONSTANTS:
    return Tree('constant', _CONSTANTS[token])
  if token in latex_tokens.SYMBOLS or (len(token) == 1 and token.isalpha()):
    return Tree('symbol', token)
  raise _Refused


def _root(tokens: list[str]) -> Tree:
  degree = latex_tree.number(2)
  if tokens[-1] == '[':
    degree = _group(tokens)
  if tokens[-1] in ('{', '('):
    radicand = _group(tokens)
  elif tokens[-1].isdigit() or tokens[-1] == '\\frac':
    radicand = _atom(tokens, False)
  else:
    radicand = _letter(tokens)
  return Tree('root', None, (radicand, degree))


def _call(name: str, tokens: list[str], bars: bool) -> Tree:
  """A named function with its base, its power and its argument."""
  base, power = (), None
  while tokens[-1] in ('_', '^'):
    if tokens.pop() == '_':
      if name != 'log':
        raise _Refused
      is_number = tokens[-1].isdigit()
      base = (_atom(tokens, False) if is_number else _argument(tokens),)
    else:
      power = _exponent(tokens, bars)
  if power == latex_tree.number(-1):
    if name not in _INVERSES:
      raise _Refused
    name, power = _INVERSES[name], None
  if tokens[-1] == '(':
    arguments = _listed(tokens)
  else:
    arguments = (_bare_argument(tokens, bars),)
  tree = Tree('call', name, arguments + base)
  return Tree('power', None, (tree, power)) if power else tree


def _bare_argument(tokens: list[str], bars: bool) -> Tree:
  """Factors side by side, up to a sign or another function."""
  begin = tokens[-1]
  factors = [_power(tokens, bars)]
  while (
    _begins_factor(tokens[-1], bars)
    and tokens[-1].removeprefix('\\') not in FUNCTIONS - {'sqrt'}
    and tokens[-1] not in ('(', '[')
  ):
    begin = _add_beside(factors, begin, tokens, bars)
  return _product(factors)

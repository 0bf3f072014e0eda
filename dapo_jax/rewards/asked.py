r"""The formulas that stand in a problem, by which a copied answer is known.

Formulas are compared as trees: `\sqrt8` is `\sqrt{8}`, and `1+x` is `x+1`.

Host only.
"""

import functools
import re
from collections.abc import Iterator

from dapo_jax.rewards import answer_text, latex_parser, latex_tree

# What is set as mathematics; a dollar sign of money is none.
_FORMULA = re.compile(
  r'(?<!\\)\$\$?([^$]{1,2000})\$|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]',
  re.DOTALL,
)
# In a text without any, what lies between words.
_BETWEEN_WORDS = re.compile(r'(?:(?<![A-Za-z])[A-Za-z](?![A-Za-z])|[^A-Za-z])+')
_RELATIONS = re.compile(r'[=≈≠<>≤≥∈,;?:]|\\text\{[^{}]*\}')
_UNORDERED = ('sum', 'product')
# Characters of a problem that are looked at.
_LONGEST_CHARACTERS = 20_000
# Problems whose formulas are kept: every response to one asks for them.
_KEPT_PROBLEMS = 1024


def canonical(tree: latex_tree.Tree) -> latex_tree.Tree:
  """Returns a tree whose terms and factors are in one order."""
  parts = tuple(map(canonical, tree.parts))
  if tree.op in _UNORDERED:
    parts = tuple(sorted(parts, key=repr))
  return tree._replace(parts=parts)


@functools.lru_cache(_KEPT_PROBLEMS)
def formulas(problem: str) -> frozenset[latex_tree.Tree]:
  """Returns the formulas of a problem and their parts, all `canonical`.

  What is not set as mathematics counts too, if it stands between words.
  """
  problem = problem[:_LONGEST_CHARACTERS]
  texts = [next(filter(None, m.groups())) for m in _FORMULA.finditer(problem)]
  texts += _BETWEEN_WORDS.findall(_FORMULA.sub(' and ', problem))
  found = set()
  for text in texts:
    for side in _RELATIONS.split(answer_text.normalize(text)):
      tree = latex_parser.parse(side.strip(' .'))
      if tree is not None:
        found.update(_parts(canonical(tree)))
  return frozenset(found)


def _parts(tree: latex_tree.Tree) -> Iterator[latex_tree.Tree]:
  yield tree
  for part in tree.parts:
    yield from _parts(part)

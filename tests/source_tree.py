"""The Python files of the repository, and what each of them imports.

The rules of structure_test, build_file_test and config_use_test read the code
through this, as a mapping from path to text; so a test can plant a fault in a
mapping of its own.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]

Sources = Mapping[str, str]


class Imports(NamedTuple):
  """What a file imports.

  Attributes:
    ours: paths of files of this repository.
    theirs: names of third-party modules, without what follows the first dot.
    names: dotted names of ours that are no module: missing ones, or a thing
      in a module, which is to be reached through its module.
  """

  ours: frozenset[str]
  theirs: frozenset[str]
  names: frozenset[str]


def read() -> dict[str, str]:
  """Returns the text of every Python file, by path from the root, sorted."""
  folders = ('dapo_jax', 'configs', 'tests')
  paths = sorted(p for f in folders for p in (ROOT / f).rglob('*.py'))
  return {str(p.relative_to(ROOT)): p.read_text() for p in paths}


def imports(path: str, sources: Sources, *, deferred: bool = True) -> Imports:
  """Returns what `path` imports, with `deferred` inside functions as well."""
  ours, theirs, names = set(), set(), set()
  for dotted in _dotted_names(ast.parse(sources[path]), deferred):
    top = dotted.partition('.')[0]
    folder = 'tests/' if f'tests/{top}.py' in sources else ''
    if top not in ('dapo_jax', 'configs') and not folder:
      if top not in sys.stdlib_module_names:
        theirs.add(top)
      continue
    file, rest = _resolve(folder + dotted.replace('.', '/'), sources)
    if rest:
      names.add(dotted)
    if file:
      ours.add(file)
  return Imports(frozenset(ours), frozenset(theirs), frozenset(names))


def reached(path: str, sources: Sources) -> dict[str, tuple[str, ...]]:
  """Returns the third-party modules that importing `path` imports.

  Each with the chain of our files that leads to it, `path` first. Imports
  inside functions do not count.
  """
  found, seen, waiting = {}, set(), [(path,)]
  while waiting:
    chain = waiting.pop()
    if chain[-1] in seen:
      continue
    seen.add(chain[-1])
    here = imports(chain[-1], sources, deferred=False)
    for name in here.theirs:
      found.setdefault(name, chain)
    waiting += [(*chain, file) for file in sorted(here.ours)]
  return found


def _dotted_names(tree: ast.AST, deferred: bool) -> Iterator[str]:
  """Yields `a.b.c` for every import of a, a.b or a.b.c in a tree."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)
    elif deferred or not isinstance(
      node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    ):
      yield from _dotted_names(node, deferred)


def _resolve(path: str, sources: Sources) -> tuple[str, str]:
  """Returns the file of the longest part of `path` that has one, and the rest.

  A package is its `__init__.py`.
  """
  parts = path.split('/')
  for end in range(len(parts), 0, -1):
    stem, rest = '/'.join(parts[:end]), '/'.join(parts[end:])
    for file in (f'{stem}.py', f'{stem}/__init__.py'):
      if file in sources:
        return file, rest
  return '', path

"""The keys that a configuration has, their types, and the nearest to a typo.

`configs/base.py` is the one list of keys; everything here is read from it.
"""

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_collections

from configs import base

Tree = Mapping | ml_collections.ConfigDict


# Keys whose tuples are of pairs, where others are of texts: an empty default
# doesn't say.
_PAIRS = ('data.mixture',)


class Key(NamedTuple):
  """What `configs/base.py` says of a key.

  Attributes:
    kind: the type of its values.
    can_be_none: whether None, off, is among them: it is the default then.
    holds_pairs: whether a tuple is one of pairs of a text and a number.
  """

  kind: type
  can_be_none: bool
  holds_pairs: bool = False

  def __str__(self) -> str:
    words = {
      bool: 'true or false',
      int: 'a whole number',
      float: 'a finite number',
      str: 'text',
      tuple: "texts in brackets, as ('a', 'b')",
    }
    if self.holds_pairs:
      words[tuple] = "pairs in brackets, as (('a', 3), ('b', 1))"
    return words[self.kind] + (' or none' if self.can_be_none else '')

  def accepts(self, value: Any) -> bool:
    """Says whether `value` is of the key's type; a bool is no number.

    Where it is a tuple, the value may be a list.
    """
    if value is None:
      return self.can_be_none
    if isinstance(value, bool) or self.kind is bool:
      return isinstance(value, bool) and self.kind is bool
    if self.kind is float:
      return isinstance(value, int | float) and math.isfinite(value)
    if self.kind is tuple:
      fits = (
        _is_pair if self.holds_pairs else lambda item: isinstance(item, str)
      )
      return isinstance(value, tuple | list) and all(map(fits, value))
    return isinstance(value, self.kind)


def known_keys() -> dict[str, Key]:
  """Returns every key by its dotted path, in the order of `configs/base.py`."""
  config = base.get_config()
  found = {}
  for path, value in leaves(config):
    section, _, name = path.rpartition('.')
    holder = config[section] if section else config
    found[path] = Key(holder.get_type(name), value is None, path in _PAIRS)
  return found


def leaves(tree: Tree, prefix: str = '') -> Iterator[tuple[str, Any]]:
  """Yields the dotted path and the value of everything that is no section."""
  for name, value in tree.items():
    if isinstance(value, Tree):
      yield from leaves(value, f'{prefix}{name}.')
    else:
      yield f'{prefix}{name}', value


def no_such_key(path: str, *, prefix: str = '') -> str:
  """Returns one line for a user who set a key that does not exist.

  It names the same key in another section if there is one, else the keys that
  come nearest, else what the section holds.

  Args:
    path: the dotted path that was set.
    prefix: put before every path: `--config.` where flags are meant.
  """
  paths = list(known_keys())
  inside = [p for p in paths if p.startswith(f'{path}.')]
  if inside:
    return f'{prefix}{path} is a section; set {_either(inside, prefix)}'
  section, _, name = path.lower().replace('-', '_').rpartition('.')
  named_so = [p for p in paths if _name(p) == name]
  if named_so:
    return (
      f'{prefix}{path}: there is no such key; it is {_either(named_so, prefix)}'
    )
  siblings = [p for p in paths if p.rpartition('.')[0] == section]
  near = _nearest(path, name, siblings) or _nearest(path, name, paths)
  if near:
    return (
      f'{prefix}{path}: there is no such key; the nearest is '
      f'{_either(near, prefix)}'
    )
  sections = sorted({p.partition('.')[0] for p in paths if '.' in p})
  holds = siblings if section and siblings else sections
  return f'{prefix}{path}: there is no such key; there are {", ".join(holds)}'


def _nearest(path: str, name: str, candidates: list[str]) -> list[str]:
  """Returns those candidates that `path` may have been meant for, at most 3."""
  whole = difflib.get_close_matches(path, candidates, n=1, cutoff=0.8)
  if whole:
    return whole
  names = difflib.get_close_matches(name, map(_name, candidates), n=1)
  # A long name for a short one: learning_rate for lr.
  names = names or [''.join(word[0] for word in name.split('_') if word)]
  return [p for p in candidates if _name(p) in names][:3]


def _is_pair(item: Any) -> bool:
  """Says whether `item` is a text and a finite number."""
  if not isinstance(item, tuple | list) or len(item) != 2:
    return False
  text, number = item
  return (
    isinstance(text, str)
    and isinstance(number, int | float)
    and not isinstance(number, bool)
    and math.isfinite(number)
  )


def _name(path: str) -> str:
  """Returns the last part of a dotted path."""
  return path.rpartition('.')[2]


def _either(paths: list[str], prefix: str) -> str:
  """Returns the paths as flags, with `or` between them."""
  return ' or '.join(f'{prefix}{path}' for path in paths)

"""Named variants of a configuration, each a set of changes by dotted key.

A file with variants is asked for one of them as `FILE:NAME`.
"""

import difflib
from collections.abc import Mapping
from typing import Any

Changes = Mapping[str, Any]


class UnknownVariantError(ValueError):
  """There is no variant of that name; the text lists those there are."""


def one(name: str, variants: Mapping[str, Changes]) -> dict[str, Any]:
  """Returns the changes of a variant.

  Raises:
    UnknownVariantError: names the nearest variant, and all of them.
  """
  if name not in variants:
    near = difflib.get_close_matches(name, variants, n=1)
    hint = f'; the nearest is {near[0]}' if near else ''
    raise UnknownVariantError(
      f'there is no variant {name!r}{hint}; there are {", ".join(variants)}'
    )
  return dict(variants[name])


def up_to(name: str, rows: Mapping[str, Changes]) -> dict[str, Any]:
  """Returns the changes of a row of a ladder: its own and those before it.

  Raises:
    UnknownVariantError: names the nearest row, and all of them.
  """
  changes = {}
  own = one(name, rows)
  for row, more in rows.items():
    if row == name:
      break
    changes |= more
  return changes | own

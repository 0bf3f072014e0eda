"""Whether a file or folder can be written where the user wants it.

Host only. Asked before there is anything to write: reading takes minutes, and
a language model costs money.
"""

import os
import pathlib


def check_free(path: pathlib.Path) -> None:
  """Returns if `path` can be made, and the folders above it that are missing.

  Raises:
    ValueError: there is something, or no folder that can be written to.
  """
  if path.exists():
    raise ValueError(f'{path} exists already; remove it or change --out')
  above = next(folder for folder in path.parents if folder.exists())
  if not (above.is_dir() and os.access(above, os.W_OK)):
    raise ValueError(
      f'{above} must be a folder that can be written to; change --out'
    )

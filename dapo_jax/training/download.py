"""Model folders that lie on a hub or in a bucket, copied to this machine.

Only where the user allowed it, and only the files that a model needs: no
pickles, no code.
"""

import contextlib
import fnmatch
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

from etils import epath

_PATTERNS = (
  '*.json',
  '*.safetensors',
  '*.jinja',
  '*.model',
  'merges.txt',
  'LICENSE*',
)
_HUB_ID = re.compile(r'[\w.-]+/[\w.-]+')


def local_folder(
  path: str, *, copies: str | os.PathLike, allowed: bool, flag: str
) -> pathlib.Path:
  """Returns the folder itself where it is here, else a copy of it.

  Args:
    path: a folder, the id of a model on the Hugging Face hub (OWNER/NAME), or
      the address of a folder in a bucket (gs://...).
    copies: where copies are kept; what was copied once is not asked for again.
    allowed: whether anything may be downloaded.
    flag: what the user sets to allow it.

  Raises:
    ValueError: there is no such folder and downloading is not allowed or
      failed.
  """
  if os.path.isdir(path):
    return pathlib.Path(path)
  name = re.sub(r'[^\w.-]+', '--', path.rstrip('/'))
  copy = pathlib.Path(copies) / name
  if copy.is_dir():
    return copy
  in_bucket = '://' in path
  if not in_bucket and not _HUB_ID.fullmatch(path):
    raise ValueError(f'there is no folder {path} to take a model from')
  if not allowed:
    raise ValueError(
      f'there is no folder {path} on this machine; if it is '
      f'{"in a bucket" if in_bucket else "a model of the Hugging Face hub"}, '
      f'{flag} downloads it'
    )
  with _complete_or_absent(copy) as half:
    if in_bucket:
      _copy_bucket(path, half)
    else:
      _copy_from_hub(path, half)
  return copy


@contextlib.contextmanager
def _complete_or_absent(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a folder to fill; it gets its name once that is done."""
  half = folder.with_name(folder.name + '.half')
  shutil.rmtree(half, ignore_errors=True)
  half.mkdir(parents=True)
  yield half
  half.rename(folder)


def _copy_from_hub(name: str, folder: pathlib.Path) -> None:
  try:
    import huggingface_hub
  except ImportError as error:
    raise ValueError(
      f'{name} is downloaded with the package huggingface_hub, which is not '
      "installed; pip install 'dapo-jax[hub]'"
    ) from error
  try:
    huggingface_hub.snapshot_download(
      repo_id=name, local_dir=folder, allow_patterns=list(_PATTERNS)
    )
  except Exception as error:  # Of the network, of the hub, of its client.
    raise ValueError(f'{name} could not be downloaded: {error}') from error
  # What the client notes for itself.
  shutil.rmtree(folder / '.cache', ignore_errors=True)


def _copy_bucket(address: str, folder: pathlib.Path) -> None:
  # Kept as text until here: a pathlib.Path turns gs:// into gs:/.
  source = epath.Path(address)
  try:
    if not source.is_dir():
      raise FileNotFoundError(f'there is no folder {address}')
    _copy_tree(source, folder, patterns=_PATTERNS)
  except Exception as error:  # Of the network, of the file system's library.
    raise ValueError(f'{address} could not be copied: {error}') from error


def _copy_tree(
  source: epath.Path, folder: pathlib.Path, *, patterns: tuple[str, ...]
) -> None:
  for entry in source.iterdir():
    if entry.is_dir():
      # An Orbax checkpoint: all of it is needed.
      if entry.name == 'params' or patterns == ('*',):
        (folder / entry.name).mkdir()
        _copy_tree(entry, folder / entry.name, patterns=('*',))
    elif any(fnmatch.fnmatch(entry.name, p) for p in patterns):
      entry.copy(folder / entry.name)

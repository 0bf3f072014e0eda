"""A stand-in for a bucket: what is under gs://bucket/ lies in a folder."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from unittest import mock

from etils.epath import backend
from orbax.checkpoint._src.path import gcs_utils

ROOT = 'gs://bucket/'


class _Backend:
  """What epath asks of a file system, with local paths in place of gs://."""

  def __init__(self, folder: pathlib.Path):
    self._folder = str(folder) + '/'

  def __getattr__(self, name: str):
    function = getattr(backend.os_backend, name)

    def local(*args, **kwargs):
      args = [self.local(a) if _is_path(a) else a for a in args]
      found = function(*args, **kwargs)
      return [self.remote(p) for p in found] if name == 'glob' else found

    return local

  def local(self, path: str | os.PathLike[str]) -> str:
    return os.fspath(path).replace(ROOT, self._folder, 1)

  def remote(self, path: str) -> str:
    return path.replace(self._folder, ROOT, 1)


def _is_path(value) -> bool:
  return isinstance(value, os.PathLike | str) and os.fspath(value).startswith(
    ROOT
  )


@contextlib.contextmanager
def at(folder: pathlib.Path) -> Iterator[None]:
  """Makes gs://bucket/ mean the folder, to epath and to Orbax."""
  files = _Backend(folder)
  with (
    mock.patch.object(backend, 'tf_backend', files),
    mock.patch.object(backend, 'fsspec_backend', files),
    mock.patch.object(
      gcs_utils, 'is_hierarchical_namespace_enabled', lambda path: False
    ),
    mock.patch.object(
      gcs_utils,
      'get_kvstore_for_gcs',
      lambda path: {'driver': 'file', 'path': files.local(path)},
    ),
  ):
    yield

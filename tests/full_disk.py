"""A disk that is full, for any user: no file may grow beyond a size."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def at(file_bytes: int) -> Iterator[None]:
  """Refuses to this process what makes a file longer than `file_bytes`."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

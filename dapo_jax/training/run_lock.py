"""One process at a time writes to a folder.

The lock is the kernel's, of an open file: it ends with the process however
that ends, so that none is ever stale.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
from collections.abc import Iterator

from absl import logging

NAME = 'run.lock'
# What a file system without locks answers.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def held(folder: str | os.PathLike[str], *, flag: str) -> Iterator[None]:
  """Holds the lock of a folder, which is made if need be.

  Args:
    folder: of this machine.
    flag: what names it.

  Raises:
    ValueError: another process holds it, or the folder cannot be written to.
  """
  folder = pathlib.Path(folder)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / NAME, 'a+', encoding='utf-8')
  except OSError as error:
    raise ValueError(
      f'{folder} cannot be written to ({error.strerror}); change {flag}'
    ) from error
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      file.seek(0)
      raise ValueError(
        f'another process ({file.read().strip() or "of unknown number"}) works '
        f'in {folder}: wait for it or end it, or change {flag}'
      ) from error
    except OSError as error:
      if error.errno not in _NO_LOCKS:
        raise
      logging.warning(
        '%s is on a file system without locks: see to it that no other '
        'process works in it',
        folder,
      )
    # For whoever is refused. A disk that is full has no room for it.
    with contextlib.suppress(OSError):
      file.truncate(0)
      file.write(f'{os.getpid()} on {socket.gethostname()}\n')
      file.flush()
    yield

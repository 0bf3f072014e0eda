"""The rows of a file, whatever its format.

Host only. A file is JSON Lines or parquet, as its first bytes say; a folder
is a TFDS data set.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from dapo_jax.data import fields, tfds_folder

_PARQUET_MAGIC = b'PAR1'
# Of gzip, zstd, xz, zip and bzip2.
_PACKED_MAGICS = (
  b'\x1f\x8b',
  b'\x28\xb5\x2f\xfd',
  b'\xfd7zX',
  b'PK\x03',
  b'BZh',
)
Row = dict[str, Any]


def rows(path: pathlib.Path, *, flags: str) -> Iterator[tuple[str, Row]]:
  """Yields the place of each row and the row.

  Places read `file:line`, or `file, row 1` where there are no lines. Blank
  lines are skipped, but counted as lines.

  Args:
    path: a file, or the folder of a data set.
    flags: what to change where there is none.

  Raises:
    ValueError: there is no such file, or it cannot be read.
  """
  if path.is_dir():
    found = tfds_folder.read(path, flags=flags)
  elif not path.is_file():
    raise ValueError(f'there is no file {path}; change {flags}')
  else:
    magic = _magic(path)
    if magic.startswith(_PACKED_MAGICS):
      raise ValueError(
        f'{path} is compressed; unpack it first, then change {flags}'
      )
    if magic != _PARQUET_MAGIC:
      yield from _lines(path)
      return
    found = _parquet(path, flags)
  for number, row in enumerate(found, start=1):
    yield f'{path}, row {number}', row


def dataset_name(path: pathlib.Path, *, flags: str) -> str:
  """Returns a file's name without its ending, or the data set's of a folder."""
  if path.is_dir():
    return tfds_folder.name(path, flags=flags)
  return path.stem


def _magic(file: pathlib.Path) -> bytes:
  with file.open('rb') as stream:
    return stream.read(len(_PARQUET_MAGIC))


def _parquet(file: pathlib.Path, flags: str) -> Iterator[Row]:
  """Yields the rows of a parquet file."""
  # Half a second, which only who reads such a file waits for.
  import pyarrow
  from pyarrow import parquet

  try:
    # Read in pieces: a file often is a single group of rows.
    opened = parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
    for batch in opened.iter_batches(batch_size=4096):
      yield from batch.to_pylist()
  except (pyarrow.ArrowException, OSError) as error:
    raise ValueError(
      f'{file} cannot be read as parquet: {error}; change {flags}'
    ) from error


def _lines(file: pathlib.Path) -> Iterator[tuple[str, Row]]:
  """Yields place and object of each line that is not blank."""
  with file.open('rb') as stream:  # Bytes: only '\n' may end a line here.
    for number, line in enumerate(stream, start=1):
      if line.strip():
        where = f'{file}:{number}'
        yield where, _object(line, where)


def _object(line: bytes, where: str) -> Row:
  """Returns the JSON object of a line."""
  try:
    row = json.loads(line.decode('utf-8-sig'), object_pairs_hook=_once)
  except (ValueError, RecursionError) as error:  # Not UTF-8, or not JSON.
    raise ValueError(f'{where}: expected a JSON object; {error}') from error
  if not isinstance(row, dict):
    raise ValueError(
      f'{where}: expected a JSON object, got {fields.shown(row)}'
    )
  return row


def _once(pairs: list[tuple[str, Any]]) -> Row:
  """Returns an object whose fields are there once: which would be meant?"""
  row = dict(pairs)
  if len(row) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f'field `{twice}` is there twice')
  return row

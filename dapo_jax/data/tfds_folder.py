"""A TFDS data set on disk, in ArrayRecord.

Host only. Neither writing nor reading needs TensorFlow: records are read by
their place (`as_data_source`), not through tf.data. TFDS itself is imported
by the functions that need it.
"""

import contextlib
import io
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

VERSION = '1.0.0'
_INFO = 'dataset_info.json'


def path(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Returns where `write` puts a data set."""
  return folder / name / VERSION


def write(
  rows: Sequence[dict[str, Any]],
  folder: pathlib.Path,
  *,
  name: str,
  description: str,
) -> None:
  """Writes a data set, in the order of its rows, to `path(folder, name)`.

  Args:
    rows: with `messages`, a list of objects with `role` and `content`, and the
      texts `id`, `problem`, `answer`, `solution` and `source`.
    folder: may have other data sets, but not this one.
    name: in lower case, words joined by underscores.
    description: a sentence.
  """
  with (
    tempfile.TemporaryDirectory() as scratch,
    # Its progress is of a download that is none.
    contextlib.redirect_stdout(io.StringIO()),
    contextlib.redirect_stderr(io.StringIO()),
  ):
    _builder(rows, folder, name, description).download_and_prepare(
      download_dir=scratch
    )


def _builder(rows, folder: pathlib.Path, name: str, description: str):
  """Returns the TFDS builder of a table of problems."""
  import tensorflow_datasets as tfds

  text = tfds.features.Text()
  features = {
    'messages': tfds.features.Sequence({'role': text, 'content': text})
  } | {k: text for k in ('id', 'problem', 'answer', 'solution', 'source')}

  class Problems(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Any of the data sets: they differ in name, description and rows."""

    VERSION = tfds.core.Version(VERSION)
    # Where TFDS would look for the checksums of downloads; there are none.
    code_path = None

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        description=description,
        features=tfds.features.FeaturesDict(features),
        disable_shuffling=True,  # The order of the files is the order here.
      )

    def _split_generators(self, dl_manager):
      del dl_manager
      return {'train': enumerate(rows)}

    def _generate_examples(self):
      raise NotImplementedError('the split has its rows')

  Problems.name = name
  return Problems(data_dir=str(folder), file_format='array_record')


def read(folder: pathlib.Path, *, flags: str) -> Iterator[dict[str, Any]]:
  """Yields the rows of a data set, texts as strings, in its order.

  Args:
    folder: the data set's, or one that has no other below it.
    flags: what to change where it does not.

  Raises:
    ValueError: it is none, there are several, or it is not in ArrayRecord.
  """
  import tensorflow_datasets as tfds

  folder = _version_folder(folder, flags)
  try:
    builder = tfds.builder_from_directory(str(folder))
  except Exception as error:  # Of many types, for it reads two JSON files.
    raise ValueError(
      f'{folder} cannot be read as a data set: {error}; change {flags}'
    ) from error
  splits = list(builder.info.splits)
  if len(splits) != 1:
    raise ValueError(
      f'{folder} must have one split, got {sorted(splits)}; change {flags}'
    )
  try:
    source = builder.as_data_source(split=splits[0])
  except NotImplementedError as error:  # Another format of files.
    raise ValueError(
      f'{folder} must be in ArrayRecord: {error}; change {flags}'
    ) from error
  try:
    for row in source:
      yield _row(row)
  except RuntimeError as error:  # What ArrayRecord raises, whatever it is.
    raise ValueError(
      f'{folder} cannot be read: {error}; change {flags}'
    ) from error


def name(folder: pathlib.Path, *, flags: str) -> str:
  """Returns the name of the data set of a folder; raises as `read` does."""
  return _version_folder(folder, flags).parent.name


def _version_folder(folder: pathlib.Path, flags: str) -> pathlib.Path:
  """Returns the one folder with the files of a data set."""
  found = [
    p.parent
    for up in ('', '*/', '*/*/')
    for p in folder.glob(up + _INFO)
    # What TFDS leaves behind where it was killed.
    if not p.parent.name.startswith('incomplete.')
  ]
  if len(found) != 1:
    names = ', '.join(sorted(str(p.relative_to(folder)) for p in found))
    raise ValueError(
      f'{folder} must have one TFDS data set, a folder with {_INFO}, got '
      f'{names or "none"}; change {flags}'
    )
  return found[0].resolve()


def _row(example: dict[str, Any]) -> dict[str, Any]:
  """Returns an example as a row of a file would be.

  Its problem is given once: as messages only where it is more than a message
  of the user.
  """
  row = {key: _plain(value) for key, value in example.items()}
  turns = row.get('messages')
  if isinstance(turns, dict):
    row['messages'] = [
      {'role': role, 'content': content}
      for role, content in zip(turns['role'], turns['content'], strict=True)
    ]
  if 'messages' in row and 'problem' in row:
    del row['problem' if row['messages'] else 'messages']
  return row


def _plain(value: Any) -> Any:
  """Returns a value of TFDS as Python's own."""
  if isinstance(value, dict):
    return {key: _plain(v) for key, v in value.items()}
  if isinstance(value, list):
    return [_plain(v) for v in value]
  if isinstance(value, np.ndarray | np.generic):
    return _plain(value.tolist())
  return value.decode('utf-8') if isinstance(value, bytes) else value

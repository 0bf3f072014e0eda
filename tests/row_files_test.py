"""Tests of `dapo_jax.data.row_files`; more on JSON Lines is in sources_test."""

import gzip
import pathlib
import tempfile

import pyarrow
from absl.testing import absltest
from pyarrow import parquet

from dapo_jax.data import row_files, tfds_folder


class RowsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _rows(self, path):
    return list(row_files.rows(path, flags='--from'))

  def test_a_line_is_a_row_at_its_number(self):
    file = self.folder / 'a.jsonl'
    file.write_text('{"a": 1}\n\n{"a": 2}\n')
    self.assertEqual(
      self._rows(file), [(f'{file}:1', {'a': 1}), (f'{file}:3', {'a': 2})]
    )

  def test_parquet_is_known_by_its_bytes_not_its_name(self):
    rows = [
      {'prompt': [{'role': 'user', 'content': 'p'}], 'n': 1},
      {'prompt': [], 'n': None},
    ]
    file = self.folder / 'a.data'
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    self.assertEqual(
      self._rows(file),
      [(f'{file}, row 1', rows[0]), (f'{file}, row 2', rows[1])],
    )

  def test_a_damaged_file_is_an_error_that_names_it(self):
    file = self.folder / 'a.parquet'
    file.write_bytes(b'PAR1 and no more')
    with self.assertRaisesRegex(
      ValueError, r'a\.parquet cannot be read as parquet: .*; change --from'
    ):
      self._rows(file)

  def test_so_is_one_that_is_damaged_in_the_middle(self):
    file = self.folder / 'a.parquet'
    rows = [{'a': f'{number:032}'} for number in range(1000)]
    parquet.write_table(
      pyarrow.Table.from_pylist(rows), file, compression='zstd'
    )
    content = bytearray(file.read_bytes())
    content[100:200] = bytes(100)
    file.write_bytes(content)
    with self.assertRaisesRegex(
      ValueError, r'a\.parquet cannot be read as parquet: .*; change --from'
    ):
      self._rows(file)

  def test_a_compressed_file_is_told(self):
    file = self.folder / 'a.jsonl.gz'
    file.write_bytes(gzip.compress(b'{"a": 1}'))
    with self.assertRaisesRegex(
      ValueError, r'a\.jsonl\.gz is compressed; unpack it first, .*--from'
    ):
      self._rows(file)

  def test_brackets_without_end_are_an_error(self):
    file = self.folder / 'a.jsonl'
    file.write_text('[' * 100_000)
    with self.assertRaisesRegex(ValueError, 'a.jsonl:1: expected a JSON obj'):
      self._rows(file)

  def test_a_field_that_is_there_twice_is_an_error(self):
    file = self.folder / 'a.jsonl'
    file.write_text('{"b": 1, "a": {"c": 1}, "b": 1}\n')
    with self.assertRaisesRegex(
      ValueError, 'a.jsonl:1: expected a JSON object; field `b` is there twice'
    ):
      self._rows(file)

  def test_a_folder_is_a_data_set_with_its_own_name(self):
    row = dict.fromkeys(('id', 'problem', 'answer', 'solution', 'source'), 'x')
    tfds_folder.write(
      [row | {'messages': []}], self.folder, name='one_row', description='One.'
    )
    self.assertEqual(self._rows(self.folder), [(f'{self.folder}, row 1', row)])
    self.assertEqual(
      row_files.dataset_name(self.folder, flags='--from'), 'one_row'
    )

  def test_the_name_of_a_file_is_without_its_ending(self):
    file = self.folder / 'sums.v2.jsonl'
    self.assertEqual(row_files.dataset_name(file, flags='--from'), 'sums.v2')

  def test_a_missing_file_is_an_error(self):
    with self.assertRaisesRegex(ValueError, 'no file .*gone; change --from'):
      self._rows(self.folder / 'gone')


if __name__ == '__main__':
  absltest.main()

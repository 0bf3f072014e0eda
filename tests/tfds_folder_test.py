"""Tests of `dapo_jax.data.tfds_folder`."""

import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

import source_tree
from dapo_jax.data import tfds_folder

_TURNS = [
  {'role': 'system', 'content': 'Be brief.'},
  {'role': 'user', 'content': 'p'},
]
# More than the 26 that keys in the order of their text would show.
_COUNT = 200


def _row(i, **more):
  return {
    'id': f'{i:016x}',
    'problem': f'{i}+\u00e9=?',
    'messages': [],
    'answer': str(i),
    'solution': '',
    'source': 's',
  } | more


class FolderTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.rows = [_row(i) for i in range(_COUNT)] + [_row(7, messages=_TURNS)]
    tfds_folder.write(
      cls.rows, cls.folder / 'one', name='a_set', description='Sums.'
    )
    for name in ('a_set', 'b_set'):
      tfds_folder.write(
        cls.rows[:1], cls.folder / 'two', name=name, description='Sums.'
      )

  def test_rows_come_back_in_their_order(self):
    found = list(tfds_folder.read(self.folder / 'one', flags='--from'))
    without_turns = [
      {k: v for k, v in row.items() if k != 'messages'}
      for row in self.rows[:_COUNT]
    ]
    self.assertEqual(found[:_COUNT], without_turns)

  def test_a_conversation_stands_for_its_problem(self):
    *_, row = tfds_folder.read(self.folder / 'one', flags='--from')
    self.assertEqual(row['messages'], _TURNS)
    self.assertNotIn('problem', row)

  def test_is_found_from_any_folder_above_it(self):
    for folder in ('one', 'one/a_set', 'one/a_set/1.0.0'):
      self.assertEqual(
        tfds_folder.name(self.folder / folder, flags='--from'), 'a_set'
      )
    self.assertTrue(tfds_folder.path(self.folder / 'one', 'a_set').is_dir())

  def test_holds_array_records_and_what_describes_them_only(self):
    files = (self.folder / 'one').rglob('*')
    self.assertCountEqual(
      [f.name for f in files if f.is_file()],
      [
        'a_set-train.array_record-00000-of-00001',
        'dataset_info.json',
        'features.json',
      ],
    )

  def test_several_or_none_are_an_error(self):
    with self.assertRaisesRegex(
      ValueError, r'one TFDS .* got a_set/1\.0\.0, b_set/1\.0\.0; change --from'
    ):
      list(tfds_folder.read(self.folder / 'two', flags='--from'))
    with self.assertRaisesRegex(ValueError, 'got none; change --from'):
      tfds_folder.name(self.folder / 'one/a_set/none', flags='--from')

  def test_damaged_files_are_an_error_that_names_the_folder(self):
    folder = self.folder / 'damaged'
    tfds_folder.write(self.rows[:1], folder, name='d_set', description='Sums.')
    [records] = folder.rglob('*array_record*')
    [info] = folder.rglob('dataset_info.json')
    for file in (records, info):
      file.write_text('')
      with self.assertRaisesRegex(
        ValueError, r'd_set/1\.0\.0 cannot be read.*; change --from'
      ):
        list(tfds_folder.read(folder, flags='--from'))

  def test_needs_neither_tensorflow_nor_jax(self):
    code = (
      'import pathlib, sys\n'
      'from dapo_jax.data import tfds_folder\n'
      'assert "tensorflow_datasets" not in sys.modules\n'
      f'folder = pathlib.Path({str(self.folder)!r})\n'
      'rows = list(tfds_folder.read(folder / "one", flags=""))\n'
      'tfds_folder.write([{**rows[0], "messages": []}], folder / "three",\n'
      '  name="c_set", description="Sums.")\n'
      'print(len(rows), *{"jax", "tensorflow"} & set(sys.modules))\n'
    )
    done = subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      text=True,
      cwd=source_tree.ROOT,
    )
    self.assertEqual(done.stdout, f'{_COUNT + 1}\n', done.stderr)


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.data.output_files`."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from dapo_jax.data import output_files


class CheckFreeTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (self.folder / 'file').write_text('mine')

  @parameterized.parameters('new', 'a/b/c')
  def test_what_is_not_there_is_free_and_stays_so(self, name):
    output_files.check_free(self.folder / name)
    self.assertEqual([p.name for p in self.folder.iterdir()], ['file'])

  @parameterized.parameters('file', '.')
  def test_what_is_there_is_not_written_over(self, name):
    with self.assertRaisesRegex(ValueError, 'exists already; .* change --out'):
      output_files.check_free(self.folder / name)

  @parameterized.parameters('file/new', 'file/a/b')
  def test_nothing_can_be_below_a_file(self, name):
    with self.assertRaisesRegex(
      ValueError, '/file must be a folder that can be written to; .*--out'
    ):
      output_files.check_free(self.folder / name)

  def test_nor_in_a_folder_for_reading_only(self):
    with (
      mock.patch('os.access', return_value=False),
      self.assertRaisesRegex(ValueError, 'can be written to'),
    ):
      output_files.check_free(self.folder / 'new')


if __name__ == '__main__':
  absltest.main()

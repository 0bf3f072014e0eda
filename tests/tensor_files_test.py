"""Tests of `dapo_jax.model.tensor_files`."""

import json
import pathlib
import tempfile

import ml_dtypes
import numpy as np
from absl.testing import absltest

import full_disk
from dapo_jax.model import tensor_files


class TensorFilesTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _write(self, sizes, max_file_bytes):
    """Writes tensors a, b... of so many bytes; returns the names of files."""
    self.values = {
      name: np.arange(size, dtype=np.uint8)
      for name, size in zip('abcdef', sizes, strict=False)
    }
    tensors = (tensor_files.Tensor(n, v) for n, v in self.values.items())
    tensor_files.write(self.folder, tensors, max_file_bytes=max_file_bytes)
    return sorted(path.name for path in self.folder.iterdir())

  def _read(self):
    entries, faults = tensor_files.entries(self.folder)
    self.assertEmpty(faults)
    return entries

  def test_what_fits_is_one_file_without_an_index(self):
    self.assertEqual(self._write([6, 4], 10), ['model.safetensors'])

  def test_a_full_disk_is_told_with_the_file(self):
    with full_disk.at(100), self.assertRaisesRegex(
      ValueError, r'/part-0.safetensors could not be written \(.*too large.*'
    ):  # fmt: skip
      self._write([200], 1000)

  def test_one_byte_more_is_two_files_and_an_index(self):
    self.assertEqual(
      self._write([6, 5], 10),
      [
        'model-00001-of-00002.safetensors',
        'model-00002-of-00002.safetensors',
        'model.safetensors.index.json',
      ],
    )
    index = json.loads(
      (self.folder / 'model.safetensors.index.json').read_text()
    )
    self.assertEqual(
      index,
      {
        'metadata': {'total_size': 11},
        'weight_map': {
          'a': 'model-00001-of-00002.safetensors',
          'b': 'model-00002-of-00002.safetensors',
        },
      },
    )

  def test_a_tensor_too_large_has_a_file_of_its_own(self):
    self._write([2, 99, 3, 4], 10)
    files = [entry.file.name[6:11] for entry in self._read().values()]
    self.assertEqual(files, ['00001', '00002', '00003', '00003'])

  def test_values_come_back(self):
    self._write([2, 9, 3], 10)
    for name, entry in self._read().items():
      np.testing.assert_array_equal(entry.read(), self.values[name])

  def test_shape_and_kind_are_known_before_it_is_read(self):
    values = np.ones((2, 3), ml_dtypes.bfloat16).T
    tensor_files.write(
      self.folder, [tensor_files.Tensor('x', values)], max_file_bytes=1
    )
    self.assertEqual(
      self._read()['x'],
      (self.folder / 'model.safetensors', 'x', (3, 2), 'BF16'),
    )

  def test_tensors_are_asked_for_one_file_at_a_time(self):
    files_when_asked = []

    def tensors():
      for name in 'abc':
        files_when_asked.append(len([*self.folder.iterdir()]))
        yield tensor_files.Tensor(name, np.zeros(10, np.uint8))

    tensor_files.write(self.folder, tensors(), max_file_bytes=10)
    # c is asked for when a is on the disk and b is held.
    self.assertEqual(files_when_asked, [0, 0, 1])

  def test_an_empty_folder_is_a_fault(self):
    self.assertEqual(
      tensor_files.entries(self.folder),
      ({}, ['no model.safetensors and no model.safetensors.index.json']),
    )


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.training.download`; there is no network in them."""

import contextlib
import pathlib
import sys
import tempfile
import types
from unittest import mock

from absl.testing import absltest, parameterized
from etils import epath

from dapo_jax.training import download


class LocalFolderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.copies = self.folder / 'copies'
    self.enterContext(contextlib.chdir(self.folder))

  def _get(self, path, *, allowed=True):
    return download.local_folder(
      path, copies=self.copies, allowed=allowed, flag='--yes'
    )

  def _hub(self, act=None):
    """Puts a client in place that writes a file, and returns its function."""

    def snapshot_download(*, repo_id, local_dir, allow_patterns):
      (local_dir / 'config.json').write_text(repo_id)
      (local_dir / '.cache').mkdir()

    client = types.SimpleNamespace(
      snapshot_download=mock.Mock(side_effect=act or snapshot_download)
    )
    self.enterContext(mock.patch.dict(sys.modules, {'huggingface_hub': client}))
    return client.snapshot_download

  def _bucket(self, *files):
    """Puts a bucket in place, gs://b/, with files under model/."""
    bucket = self.folder / 'bucket'
    for file in files:
      path = bucket / 'model' / file
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(file)
    real = epath.Path
    self.enterContext(
      mock.patch.object(
        epath,
        'Path',
        lambda p: real(str(bucket / p.removeprefix('gs://b/'))),
      )
    )

  def test_a_folder_here_is_itself(self):
    (self.folder / 'a/b').mkdir(parents=True)
    self.assertEqual(self._get('a/b', allowed=False), pathlib.Path('a/b'))
    self.assertFalse(self.copies.exists())

  @parameterized.parameters('Owner/Name-1.5', 'gs://b/model')
  def test_nothing_is_downloaded_unless_allowed(self, path):
    hub = self._hub()
    with self.assertRaisesRegex(
      ValueError, f'no folder {path} on this machine; .*--yes downloads it'
    ):
      self._get(path, allowed=False)
    hub.assert_not_called()
    self.assertFalse(self.copies.exists())

  @parameterized.parameters('/no/such/folder', 'name', 'a/b/c', '../x/y')
  def test_a_path_that_can_only_be_local_is_not_asked_for(self, path):
    hub = self._hub()
    with self.assertRaisesRegex(ValueError, f'there is no folder {path}'):
      self._get(path)
    hub.assert_not_called()

  def test_a_model_of_the_hub_is_copied_once(self):
    hub = self._hub()
    first = self._get('Owner/Name')
    self.assertEqual(first, self._get('Owner/Name', allowed=False))
    hub.assert_called_once()
    self.assertEqual([p.name for p in first.iterdir()], ['config.json'])

  def test_no_pickles_are_asked_for(self):
    hub = self._hub()
    self._get('Owner/Name')
    patterns = hub.call_args.kwargs['allow_patterns']
    self.assertIn('*.safetensors', patterns)
    for name in ('pytorch_model.bin', 'x.pt', 'x.pkl', 'modeling.py'):
      self.assertFalse(
        any(pathlib.PurePath(name).match(p) for p in patterns), name
      )

  def test_a_failed_download_leaves_nothing_that_counts(self):
    self._hub(act=OSError('no route'))
    for _ in range(2):
      with self.assertRaisesRegex(ValueError, 'could not be .*: no route'):
        self._get('Owner/Name')

  def test_a_missing_client_is_named_with_its_remedy(self):
    with mock.patch.dict(sys.modules, {'huggingface_hub': None}):
      with self.assertRaisesRegex(ValueError, r'dapo-jax\[hub\]'):
        self._get('Owner/Name')

  @parameterized.parameters('gs://b/model', 'gs://b/model/')
  def test_a_bucket_is_copied_without_what_is_not_needed(self, path):
    self._bucket(
      'config.json',
      'model.safetensors',
      'pytorch_model.bin',
      'onnx/model.json',
      'params/_METADATA',
      'params/d/1',
    )
    copy = self._get(path)
    self.assertCountEqual(
      [str(p.relative_to(copy)) for p in copy.rglob('*') if p.is_file()],
      ['config.json', 'model.safetensors', 'params/_METADATA', 'params/d/1'],
    )
    # The address was never taken for a path.
    self.assertFalse((self.folder / 'gs:').exists())

  def test_an_empty_address_is_refused(self):
    self._bucket('config.json')
    with self.assertRaisesRegex(ValueError, 'there is no folder gs://b/other'):
      self._get('gs://b/other')


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.training.model_folder`."""

import pathlib
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
from dapo_jax.data import tokenizers
from dapo_jax.model import hf_weights, tensor_files
from dapo_jax.training import model_folder


class ModelFolderTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.place = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    path = self.place / 'tokenizer.model'
    # 4 special tokens, 256 bytes, '1+2=3': 265 pieces.
    tokenizers.train_sentencepiece(['1+2=3'], path, vocab_size=300)
    self.tokenizer = tokenizers.load(path)
    self.model = tiny_model.model(vocab_size=265, vocab_rows=320)
    self.params = tiny_model.params(self.model)
    self.folder = self.place / 'model'

  def _save(self, **options):
    model_folder.save(
      self.folder,
      self.model,
      self.params,
      tokenizer=self.tokenizer,
      **options,
    )

  @parameterized.parameters(*model_folder.FORMATS)
  def test_either_layout_gives_spec_tokenizer_and_weights_back(self, layout):
    self._save(layout=layout)
    tokenizer = tokenizers.load(self.folder)
    self.assertEqual(tokenizer.encode('1+2'), self.tokenizer.encode('1+2'))
    self.assertEqual(model_folder.spec(self.folder, tokenizer), self.model.spec)
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    loaded = model_folder.load(self.folder, self.model, shardings=where)
    jax.tree.map(np.testing.assert_array_equal, self.params, loaded)

  def test_only_tokens_of_the_tokenizer_exist(self):
    self._save()
    spec = model_folder.spec(self.folder, self.tokenizer)
    self.assertEqual((spec.vocab_size, spec.vocab_rows), (265, 320))

  def test_a_tokenizer_with_more_tokens_than_rows_is_refused(self):
    hf_weights.save_config(
      self.folder, tiny_model.spec(vocab_rows=264), eos_ids=(1,)
    )
    with self.assertRaisesRegex(ValueError, 'has 265 tokens, .* 264 rows'):
      model_folder.spec(self.folder, self.tokenizer)

  def test_what_was_there_is_replaced(self):
    self._save(layout='orbax')
    (self.folder / 'old').touch()
    self._save(layout='hf')
    self.assertFalse((self.folder / 'old').exists())
    self.assertFalse((self.folder / 'params').exists())

  def test_a_save_that_fails_leaves_what_was_there(self):
    self._save()
    files = sorted(self.folder.iterdir())
    with mock.patch.object(tensor_files, 'write', side_effect=OSError('full')):
      with self.assertRaisesRegex(OSError, 'full'):
        self._save(dtype='bfloat16')
    self.assertEqual(sorted(self.folder.iterdir()), files)
    config = hf_weights.read_config(self.folder)
    self.assertEqual(config['torch_dtype'], 'float32')
    # What the failed one left is no obstacle to the next.
    self._save(dtype='bfloat16')


if __name__ == '__main__':
  absltest.main()

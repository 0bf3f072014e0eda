"""Tests of `dapo_jax.data.tokenizer_config`."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from dapo_jax.data import tokenizer_config


class TokenizerConfigTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _write(self, name, **content):
    (self.folder / name).write_text(json.dumps(content))

  def test_ids_may_be_one_or_several(self):
    self._write('config.json', eos_token_id=3, pad_token_id=[4, 5])
    ids = tokenizer_config.configured_ids
    self.assertEqual(ids(self.folder, 'eos'), (3,))
    self.assertEqual(ids(self.folder, 'pad'), (4, 5))

  def test_generation_config_comes_first(self):
    self._write('config.json', eos_token_id=3, pad_token_id=4)
    self._write('generation_config.json', eos_token_id=[7, 8])
    ids = tokenizer_config.configured_ids
    self.assertEqual(ids(self.folder, 'eos'), (7, 8))
    self.assertEqual(ids(self.folder, 'pad'), (4,))

  def test_texts_may_be_in_an_object(self):
    self._write('special_tokens_map.json', bos_token={'content': '<s>'})
    self._write('tokenizer_config.json', eos_token='</s>', bos_token=None)
    text = tokenizer_config.token_text
    self.assertEqual(text(self.folder, 'bos'), '<s>')
    self.assertEqual(text(self.folder, 'eos'), '</s>')

  def test_an_empty_folder_names_nothing(self):
    self.assertEqual(tokenizer_config.configured_ids(self.folder, 'eos'), ())
    self.assertEqual(tokenizer_config.token_text(self.folder, 'eos'), '')

  def test_what_is_no_json_is_refused_by_name(self):
    (self.folder / 'config.json').write_text('{')
    with self.assertRaisesRegex(ValueError, 'config.json must be JSON'):
      tokenizer_config.configured_ids(self.folder, 'eos')


if __name__ == '__main__':
  absltest.main()

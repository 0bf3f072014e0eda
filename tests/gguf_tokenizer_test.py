"""Tests of `dapo_jax.data.gguf_tokenizer`."""

import json
import pathlib
import tempfile

import tokenizers as hf_tokenizers
from absl.testing import absltest

from dapo_jax.data import gguf_tokenizer, tokenizers

_BYTES = sorted(hf_tokenizers.pre_tokenizers.ByteLevel.alphabet())
_PIECES = ['<end>', '<begin>', *_BYTES, 'an', 'Ġ1', '12', 'ĊĊ']


def _fields(**changes):
  """Returns the metadata of a small tokenizer."""
  fields = {
    'model': 'gpt2',
    'pre': 'smollm',
    'tokens': _PIECES,
    # 3 = control, 1 = an ordinary piece.
    'token_type': [3, 3] + [1] * (len(_PIECES) - 2),
    'merges': ['a n', 'Ġ 1', '1 2', 'Ċ Ċ'],
    'bos_token_id': 1,
    'eos_token_id': 0,
    'padding_token_id': 0,
  } | changes
  return {f'tokenizer.ggml.{k}': v for k, v in fields.items()} | {
    'llama.context_length': 128
  }


class WriteTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _pieces(self, text):
    gguf_tokenizer.write(_fields(), self.folder)
    ids = tokenizers.load(self.folder).encode(text)
    return [_PIECES[i] for i in ids]

  def test_merges_are_used(self):
    self.assertEqual(self._pieces('and'), ['an', 'd'])

  def test_a_digit_stands_alone_and_takes_no_space(self):
    # The merges for ' 1' and '12' never apply.
    self.assertEqual(self._pieces('a  12'), ['a', 'Ġ', 'Ġ', '1', '2'])

  def test_line_breaks_before_a_digit_stay_together(self):
    # Cut by the byte-level rules alone, the last one would be cut off.
    self.assertEqual(self._pieces('\n\n12'), ['ĊĊ', '1', '2'])

  def test_control_pieces_in_a_text_are_one_token(self):
    self.assertEqual(self._pieces('<begin>a<end>'), ['<begin>', 'a', '<end>'])

  def test_special_tokens_are_named(self):
    gguf_tokenizer.write(_fields(), self.folder)
    for name in ('tokenizer_config.json', 'special_tokens_map.json'):
      content = json.loads((self.folder / name).read_text())
      self.assertEqual(content['bos_token'], '<begin>')
      self.assertEqual(content['eos_token'], '<end>')
      self.assertEqual(content['pad_token'], '<end>')
      self.assertNotIn('unk_token', content)
      self.assertNotIn('chat_template', content)
    self.assertEqual(tokenizers.load(self.folder).eos_ids, (0,))

  def test_the_chat_template_is_kept(self):
    fields = _fields() | {'tokenizer.chat_template': '{{ messages }}'}
    gguf_tokenizer.write(fields, self.folder)
    content = json.loads((self.folder / 'tokenizer_config.json').read_text())
    self.assertEqual(content['chat_template'], '{{ messages }}')

  def test_rules_that_are_not_known_are_refused(self):
    with self.assertRaisesRegex(ValueError, "cut by the rules 'llama-bpe'"):
      gguf_tokenizer.write(_fields(pre='llama-bpe'), self.folder)


if __name__ == '__main__':
  absltest.main()

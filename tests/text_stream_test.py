"""Tests of `data.text_stream`."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.data import text_stream, tokenizers


def _texts(decode, ids, *, at_once=1):
  """Returns the texts of tokens that come `at_once` at a time."""
  window, texts = text_stream.Window(), []
  parts = [ids[i : i + at_once] for i in range(0, len(ids), at_once)]
  for part in [*parts, []]:
    window, text = text_stream.extend(
      window, part, decode=decode, ended=not part
    )
    texts.append(text)
  return texts


def _llama(ids):
  """Decodes words with a space before them, and drops the first space."""
  return ''.join(f' w{i}' for i in ids)[1:]


class ExtendTest(parameterized.TestCase):
  def test_a_character_waits_for_its_last_byte(self):
    # The euro sign is E2 82 AC.
    decode = lambda ids: bytes(ids).decode('utf-8', 'replace')
    self.assertEqual(
      _texts(decode, [0x61, 0xE2, 0x82, 0xAC, 0x62]),
      ['a', '', '', '€', 'b', ''],
    )

  def test_what_is_left_at_the_end_is_given_as_it_is(self):
    decode = lambda ids: bytes(ids).decode('utf-8', 'replace')
    self.assertEqual(
      _texts(decode, [0x61, 0xE2, 0x82]), ['a', '', '', '\ufffd']
    )

  def test_bytes_of_no_character_come_with_the_next_one(self):
    decode = lambda ids: bytes(ids).decode('utf-8', 'replace')
    self.assertEqual(_texts(decode, [0xFF, 0x61]), ['', '\ufffda', ''])

  @parameterized.parameters(1, 2, 5)
  def test_a_space_that_only_the_first_token_loses_stays(self, at_once):
    texts = _texts(_llama, [1, 2, 3, 4], at_once=at_once)
    self.assertEqual(''.join(texts), 'w1 w2 w3 w4')

  def test_tokens_without_a_text_lose_no_space_either(self):
    decode = lambda ids: _llama([i for i in ids if i])
    self.assertEqual(
      _texts(decode, [1, 0, 0, 2, 0]), ['w1', '', '', ' w2', '', '']
    )

  def test_the_window_stays_small(self):
    window = text_stream.Window()
    for i in range(100):
      window, _ = text_stream.extend(window, [i], decode=_llama, ended=False)
    self.assertEqual(window, text_stream.Window((99,), 1))

  def test_all_texts_are_that_of_all_tokens_of_a_real_tokenizer(self):
    with tempfile.TemporaryDirectory() as folder:
      file = pathlib.Path(folder, 'tokenizer.model')
      tokenizers.train_sentencepiece(
        ['12 + 3 = 15', 'Grüße, 你好'], file, vocab_size=300
      )
      tokenizer = tokenizers.load(file)
    rng = np.random.default_rng(0)
    cases = [tokenizer.encode(' 你好  Grüße 😀 ')]
    cases += rng.integers(tokenizer.vocab_size, size=(50, 20)).tolist()
    for ids in cases:
      self.assertEqual(
        ''.join(_texts(tokenizer.decode, ids)), tokenizer.decode(ids)
      )


if __name__ == '__main__':
  absltest.main()

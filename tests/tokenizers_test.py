"""Tests of `dapo_jax.data.tokenizers`."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import tokenizers as hf_tokenizers
from absl.testing import absltest, parameterized

from dapo_jax.data import records, tokenizers

_SUMS = [
  f'{a}+{b}=?\nAnswer: {a + b}' for a in range(0, 100, 7) for b in range(60)
]
# Two special tokens, 256 bytes (in the library's own order), one merge.
_HF_EOS, _HF_PAD, _HF_VOCAB_SIZE = 0, 1, 259


def _write_json(folder, name, value):
  """Writes a JSON file."""
  (folder / name).write_text(json.dumps(value))


def _hf_tokenizer():
  """Returns a byte-level tokenizer: `<end>`, `<pad>`, bytes and 'An'."""
  alphabet = sorted(hf_tokenizers.pre_tokenizers.ByteLevel.alphabet())
  pieces = ['<end>', '<pad>', *alphabet, 'An']
  tokenizer = hf_tokenizers.Tokenizer(
    hf_tokenizers.models.BPE(
      vocab={piece: i for i, piece in enumerate(pieces)}, merges=[('A', 'n')]
    )
  )
  tokenizer.pre_tokenizer = hf_tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  tokenizer.decoder = hf_tokenizers.decoders.ByteLevel()
  tokenizer.add_special_tokens(['<end>', '<pad>'])
  return tokenizer


def _texts(seed):
  """Returns texts that are hard to keep, and random ones of such pieces."""
  pieces = [' ', '  ', '\n', '\t', '\r', '\0', '\x01', '\x7f', '\u2581']
  pieces += ['\u2585', '😀', 'e\u0301', '\u200b', '\ufeff', '\ufffd', '\xa0']
  pieces += ['√', 'Answer:', '12', '</s>', '<unk>', '<0x0A>', '\U0010ffff']
  source = random.Random(seed)
  texts = ['', 'a  b', '\n\n 12', *pieces, *(f' {p} ' for p in pieces)]
  for _ in range(300):
    length = source.randrange(1, 12)
    texts.append(''.join(source.choice(pieces) for _ in range(length)))
  for _ in range(300):
    # Any code point but the surrogates, which are no characters.
    points = [source.randrange(0x110000 - 0x800) for _ in range(4)]
    texts.append(''.join(chr(p + 0x800 * (p >= 0xD800)) for p in points))
  return texts


class _FolderTest(parameterized.TestCase):
  """Tests that each have a folder of their own."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _trained(self, texts=tuple(_SUMS), vocab_size=320):
    """Returns a tokenizer trained in the folder."""
    path = self.folder / 'tokenizer.model'
    tokenizers.train_sentencepiece(texts, path, vocab_size=vocab_size)
    return tokenizers.load(path)

  def _hf(self, **config):
    """Returns the HF tokenizer, its tokenizer_config.json as given."""
    _hf_tokenizer().save(str(self.folder / 'tokenizer.json'))
    _write_json(
      self.folder, 'tokenizer_config.json', {'eos_token': '<end>'} | config
    )
    return tokenizers.load(self.folder)


class TrainSentencepieceTest(_FolderTest):
  def test_any_text_comes_back_to_the_byte(self):
    tokenizer = self._trained()
    for text in _texts(seed=0):
      self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)

  def test_any_text_comes_back_when_trained_on_such(self):
    # The trainer reads U+2581 as a space, and leaves out texts with U+2585.
    tokenizer = self._trained(_texts(seed=1)[:90], vocab_size=400)
    for text in _texts(seed=2):
      self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)

  def test_pieces_of_a_text_are_its_bytes_or_more(self):
    tokenizer = self._trained()
    for text in _texts(seed=3):
      self.assertLessEqual(len(tokenizer.encode(text)), len(text.encode()))

  def test_learns_words_but_keeps_digits_single(self):
    tokenizer = self._trained()
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode('Answer: 1245')]
    self.assertEqual(pieces, ['Answer', ':', ' ', '1', '2', '4', '5'])

  def test_special_ids(self):
    tokenizer = self._trained()
    self.assertEqual(tokenizer.pad_id, 0)
    self.assertEqual(tokenizer.eos_ids, (1,))
    self.assertNoCommonElements(tokenizer.encode('<pad></s><s>'), range(4))

  def test_the_same_texts_give_the_same_file(self):
    files = [self.folder / 'a.model', self.folder / 'b.model']
    for file in files:
      tokenizers.train_sentencepiece(iter(_SUMS), file, vocab_size=320)
    self.assertEqual(files[0].read_bytes(), files[1].read_bytes())

  def test_the_vocabulary_is_at_most_what_was_asked_for(self):
    # 4 special tokens, 256 bytes; the characters 0-9 + = ? \n : space Answer
    # are 22; the rest are words, as many as there is room for.
    self.assertEqual(self._trained(vocab_size=282).vocab_size, 282)
    self.assertEqual(self._trained(vocab_size=284).vocab_size, 284)
    self.assertBetween(self._trained(vocab_size=4000).vocab_size, 285, 400)

  def test_a_vocabulary_too_small_for_the_characters_is_refused(self):
    # 'a', 'b', 'c': 4 + 256 + 3 = 263.
    self.assertEqual(self._trained(['abc'], 263).vocab_size, 263)
    with self.assertRaisesRegex(
      ValueError, r'\(262\).* 3 characters.*263.*--config\.tokenizer\.vocab'
    ):
      self._trained(['abc'], 262)

  def test_a_rare_character_has_a_piece_of_its_own(self):
    # One in 8,001; the trainer's default leaves out one in 2,000.
    tokenizer = self._trained(['1 + 2 = '] * 1000 + ['é'])
    self.assertLen(tokenizer.encode('é'), 1)

  def test_long_texts_are_learnt_from(self):
    # The trainer's default leaves out texts of more than 4192 bytes.
    tokenizer = self._trained(['tantivy ' * 1000], vocab_size=300)
    self.assertLen(tokenizer.encode('tantivy'), 1)

  def test_says_nothing(self):
    code = (
      'from dapo_jax.data import tokenizers as t\n'
      f't.train_sentencepiece(["1+1=?"] * 9, {str(self.folder / "m.model")!r},'
      ' vocab_size=300)'
    )
    run = subprocess.run(
      [sys.executable, '-c', code],
      check=True,
      capture_output=True,
      cwd=pathlib.Path(tokenizers.__file__).parents[2],
    )
    self.assertEqual(run.stdout + run.stderr, b'')


class DecodeTest(_FolderTest):
  def _both(self):
    """Returns a tokenizer of either kind, for the same texts."""
    trained = self._trained()
    (self.folder / 'tokenizer.model').unlink()
    return trained, self._hf(pad_token='<pad>')

  def test_special_tokens_are_left_out_wherever_they_stand(self):
    for tokenizer in self._both():
      ids = tokenizer.encode('12 é')
      pad, (eos,) = tokenizer.pad_id, tokenizer.eos_ids
      # Also between the two bytes of the last letter.
      ids = [pad, *ids[:2], pad, *ids[2:-1], pad, ids[-1], pad, eos]
      self.assertEqual(tokenizer.decode(ids), '12 é')

  def test_what_begins_a_text_or_is_unknown_is_left_out(self):
    tokenizer = self._trained()
    self.assertEqual(tokenizer.decode([2, *tokenizer.encode('12'), 3]), '12')

  def test_takes_arrays_and_numpy_integers(self):
    for tokenizer in self._both():
      ids = np.array(tokenizer.encode('1+2'), np.int32)
      self.assertEqual(tokenizer.decode(ids), '1+2')
      self.assertEqual(tokenizer.decode(list(ids)), '1+2')
      self.assertEqual(tokenizer.decode(ids[:0]), '')

  def test_bytes_that_are_no_character_are_replaced(self):
    for tokenizer in self._both():
      ids = tokenizer.encode('é')  # Two bytes, C3 A9.
      self.assertLen(ids, 2)
      self.assertEqual(tokenizer.decode(ids[:1]), '\ufffd')

  def test_every_id_of_the_vocabulary_decodes_and_no_other(self):
    for tokenizer in self._both():
      for i in range(tokenizer.vocab_size):
        self.assertIsInstance(tokenizer.decode([i]), str)
      for i in (-1, tokenizer.vocab_size):
        with self.assertRaises(AssertionError):
          tokenizer.decode([i])


class HuggingFaceTest(_FolderTest):
  def test_any_text_without_special_tokens_comes_back(self):
    tokenizer = self._hf()
    for text in _texts(seed=4):
      self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)

  def test_special_tokens_in_a_text_become_their_ids(self):
    # As chat templates need it.
    self.assertEqual(self._hf().encode('<end>'), [_HF_EOS])

  def test_the_vocabulary_counts_added_tokens(self):
    self.assertEqual(self._hf().vocab_size, _HF_VOCAB_SIZE)

  def test_the_vocabulary_reaches_over_holes_in_the_ids(self):
    path = self.folder / 'tokenizer.json'
    _hf_tokenizer().save(str(path))
    content = json.loads(path.read_text())
    content['added_tokens'].append(
      content['added_tokens'][1] | {'id': 300, 'content': '<turn>'}
    )
    content['model']['vocab']['<turn>'] = 300
    path.write_text(json.dumps(content))
    _write_json(self.folder, 'config.json', {'eos_token_id': 300})
    tokenizer = tokenizers.load(path)
    self.assertEqual(tokenizer.encode('<turn>'), [300])
    self.assertEqual(tokenizer.vocab_size, 301)
    self.assertEqual(tokenizer.decode([299]), '')

  def test_truncation_and_padding_in_the_file_are_off(self):
    tokenizer = _hf_tokenizer()
    tokenizer.enable_truncation(max_length=3)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(self.folder / 'tokenizer.json'))
    _write_json(self.folder, 'config.json', {'eos_token_id': _HF_EOS})
    tokenizer = tokenizers.load(self.folder)
    self.assertLen(tokenizer.encode('12345'), 5)
    self.assertLen(tokenizer.encode('12'), 2)

  def test_what_the_file_puts_before_every_text_is_there(self):
    tokenizer = _hf_tokenizer()
    tokenizer.post_processor = hf_tokenizers.processors.TemplateProcessing(
      single='<pad> $A', special_tokens=[('<pad>', _HF_PAD)]
    )
    tokenizer.save(str(self.folder / 'tokenizer.json'))
    _write_json(self.folder, 'config.json', {'eos_token_id': _HF_EOS})
    tokenizer = tokenizers.load(self.folder)
    self.assertEqual(tokenizer.encode('')[:1], [_HF_PAD])
    self.assertEqual(tokenizer.decode(tokenizer.encode('12')), '12')


class SpecialIdsTest(_FolderTest):
  @parameterized.named_parameters(
    ('own', None, None, (_HF_EOS,)),
    ('config', None, 7, (7,)),
    ('config_list', None, [7, 8], (7, 8)),
    ('generation', 9, None, (9,)),
    ('generation_over_config', [9, 7], 8, (9, 7)),
  )
  def test_what_ends_a_response(self, generation, config, expected):
    _write_json(
      self.folder, 'generation_config.json', {'eos_token_id': generation}
    )
    _write_json(self.folder, 'config.json', {'eos_token_id': config})
    self.assertEqual(self._hf().eos_ids, expected)

  def test_every_id_that_ends_a_response_is_left_out_of_the_text(self):
    _write_json(self.folder, 'generation_config.json', {'eos_token_id': [7, 8]})
    tokenizer = self._hf()
    ids = tokenizer.encode('12')
    for eos in (7, 8):
      self.assertNotIn(eos, ids)
      self.assertEqual(tokenizer.decode([*ids, eos]), '12')

  def test_configs_win_over_a_sentencepiece_file_too(self):
    _write_json(self.folder, 'config.json', {'eos_token_id': [2, 1]})
    self.assertEqual(self._trained().eos_ids, (2, 1))

  @parameterized.parameters(
    ('tokenizer_config.json', '<pad>'),
    ('tokenizer_config.json', {'content': '<pad>', 'lstrip': False}),
    ('special_tokens_map.json', '<pad>'),
    ('special_tokens_map.json', {'content': '<pad>'}),
  )
  def test_reads_a_token_given_by_its_text(self, name, token):
    _hf_tokenizer().save(str(self.folder / 'tokenizer.json'))
    _write_json(self.folder, name, {'eos_token': token})
    self.assertEqual(tokenizers.load(self.folder).eos_ids, (_HF_PAD,))

  def test_what_pads_is_the_configs_then_its_own_then_the_end(self):
    self.assertEqual(self._hf().pad_id, _HF_EOS)
    self.assertEqual(self._hf(pad_token='<pad>').pad_id, _HF_PAD)
    _write_json(self.folder, 'config.json', {'pad_token_id': 5})
    self.assertEqual(self._hf(pad_token='<pad>').pad_id, 5)

  @parameterized.parameters(-1, _HF_VOCAB_SIZE)
  def test_a_pad_that_is_no_id_means_none(self, pad_id):
    _write_json(self.folder, 'config.json', {'pad_token_id': pad_id})
    self.assertEqual(self._hf().pad_id, _HF_EOS)

  def test_a_word_that_a_config_pads_with_stays_in_the_text(self):
    (bang,) = self._hf().encode('!')
    _write_json(self.folder, 'config.json', {'pad_token_id': bang})
    tokenizer = self._hf()
    self.assertEqual(tokenizer.pad_id, bang)
    self.assertEqual(tokenizer.decode(tokenizer.encode('4!')), '4!')

  @parameterized.parameters(_HF_VOCAB_SIZE, -1, '<end>')
  def test_an_end_that_is_no_id_is_refused(self, eos_id):
    _write_json(self.folder, 'config.json', {'eos_token_id': [0, eos_id]})
    with self.assertRaisesRegex(
      ValueError, rf'{eos_id}.* less than 259; .*--config\.tokenizer\.path'
    ):
      self._hf()

  def test_no_end_at_all_is_refused(self):
    _hf_tokenizer().save(str(self.folder / 'tokenizer.json'))
    with self.assertRaisesRegex(
      ValueError, r'generation_config\.json.*--config\.tokenizer\.path'
    ):
      tokenizers.load(self.folder)


class LoadTest(_FolderTest):
  def test_takes_the_folder_or_the_file_as_text_or_path(self):
    expected = self._trained().encode('12')
    for path in (self.folder, self.folder / 'tokenizer.model'):
      self.assertEqual(tokenizers.load(path).encode('12'), expected)
      self.assertEqual(tokenizers.load(str(path)).encode('12'), expected)

  def test_takes_a_file_of_another_name(self):
    self._trained()
    os.rename(self.folder / 'tokenizer.model', self.folder / 'sums.model')
    self.assertEqual(tokenizers.load(self.folder / 'sums.model').eos_ids, (1,))

  def test_prefers_tokenizer_json(self):
    self._trained()
    self.assertEqual(self._hf().vocab_size, _HF_VOCAB_SIZE)

  def test_gives_what_the_protocol_names(self):
    self.assertIsInstance(self._trained(), tokenizers.ChatTokenizer)
    self.assertIsInstance(self._hf(), tokenizers.ChatTokenizer)

  @parameterized.parameters('', 'nowhere', 'readme.txt')
  def test_names_what_it_looked_for(self, name):
    (self.folder / 'readme.txt').write_text('')
    path = self.folder / name
    with self.assertRaisesRegex(
      ValueError,
      rf'{path}: .*tokenizer\.json or tokenizer\.model'
      r'.*\.json or \.model; .*--config\.tokenizer\.path',
    ):
      tokenizers.load(path)

  @parameterized.parameters('tokenizer.json', 'tokenizer.model')
  def test_names_a_file_that_cannot_be_read(self, name):
    (self.folder / name).write_text('{"model": 3}')
    with self.assertRaisesRegex(
      ValueError, rf'{name} cannot be read.*--config\.tokenizer\.path'
    ):
      tokenizers.load(self.folder)

  def test_names_a_broken_config(self):
    (self.folder / 'config.json').write_text('{')
    with self.assertRaisesRegex(ValueError, r'config\.json must be JSON'):
      self._trained()


class ChatTest(_FolderTest):
  def test_renders_the_template_beside_the_file(self):
    tokenizer = self._hf(
      chat_template='{{ messages[0].content }}{{ eos_token }}'
    )
    messages = [records.Message('user', 'Hi')]
    self.assertEqual(tokenizer.chat_text(messages), 'Hi<end>')

  def test_special_tokens_have_their_ids_and_none_are_put_around(self):
    # The file asks for a <pad> before every text.
    self._hf()
    path = self.folder / 'tokenizer.json'
    file = hf_tokenizers.Tokenizer.from_file(str(path))
    file.post_processor = hf_tokenizers.processors.TemplateProcessing(
      single='<pad> $A', special_tokens=[('<pad>', _HF_PAD)]
    )
    file.save(str(path))
    tokenizer = tokenizers.load(self.folder)
    an = tokenizer.encode_chat('An')
    self.assertLen(an, 1)
    self.assertEqual(tokenizer.encode('An'), [_HF_PAD, *an])
    self.assertEqual(
      tokenizer.encode_chat('<pad>An<end>An'), [_HF_PAD, *an, _HF_EOS, *an]
    )

  def test_control_pieces_of_sentencepiece_have_theirs_in_a_chat_alone(self):
    tokenizer = self._trained()
    one = tokenizer.encode('1')
    # 2 begins, 1 ends.
    self.assertEqual(tokenizer.encode_chat('<s>1</s>1'), [2, *one, 1, *one])
    self.assertNoCommonElements(tokenizer.encode('<s>1</s>1'), range(4))

  def test_a_chat_without_special_tokens_is_a_text(self):
    tokenizer = self._trained()
    for text in ('', 'Answer: 12', ' a\n'):
      self.assertEqual(tokenizer.encode_chat(text), tokenizer.encode(text))


class SaveTest(_FolderTest):
  def _reloaded(self, tokenizer):
    """Returns what comes back from another folder, the first one gone."""
    target = self.folder / 'run' / 'tokenizer'
    tokenizers.save(tokenizer, target)
    for file in self.folder.iterdir():
      if file.is_file():
        file.unlink()
    return tokenizers.load(target)

  def _assert_same(self, first, second):
    for name in ('vocab_size', 'eos_ids', 'pad_id'):
      self.assertEqual(getattr(first, name), getattr(second, name))
    self.assertEqual(first.encode('Answer: 12'), second.encode('Answer: 12'))

  def test_gives_a_trained_tokenizer_back(self):
    tokenizer = self._trained()
    self._assert_same(self._reloaded(tokenizer), tokenizer)

  def test_gives_a_file_of_another_name_back(self):
    tokenizers.train_sentencepiece(
      _SUMS, self.folder / 'sums.model', vocab_size=320
    )
    tokenizer = tokenizers.load(self.folder / 'sums.model')
    self._assert_same(self._reloaded(tokenizer), tokenizer)

  def test_gives_ids_that_came_from_a_models_config_back(self):
    _write_json(
      self.folder, 'config.json', {'eos_token_id': [7, 8], 'pad_token_id': 9}
    )
    tokenizer = self._hf()
    self._assert_same(self._reloaded(tokenizer), tokenizer)
    self.assertEqual(tokenizer.eos_ids, (7, 8))

  def test_keeps_what_else_the_generation_config_says(self):
    _write_json(self.folder, 'generation_config.json', {'temperature': 0.7})
    self._reloaded(self._hf())
    saved = self.folder / 'run' / 'tokenizer' / 'generation_config.json'
    self.assertEqual(
      json.loads(saved.read_text()),
      {'temperature': 0.7, 'eos_token_id': [_HF_EOS], 'pad_token_id': _HF_EOS},
    )

  def test_keeps_all_that_stood_beside_it(self):
    tokenizer = self._hf(bos_token='<pad>')
    names = ('special_tokens_map.json', 'added_tokens.json', 'vocab.json')
    for name in names:
      _write_json(self.folder, name, {'of': name})
    for name in ('chat_template.jinja', 'merges.txt', 'tokenizer.model'):
      (self.folder / name).write_text(name)
    (self.folder / 'pytorch_model.bin').touch()
    before = {p.name: p.read_bytes() for p in self.folder.iterdir()}
    del before['pytorch_model.bin']
    self._reloaded(tokenizer)
    saved = self.folder / 'run' / 'tokenizer'
    found = {p.name: p.read_bytes() for p in saved.iterdir()}
    del found['generation_config.json']
    self.assertEqual(found, before)

  def test_saving_where_it_came_from_changes_nothing(self):
    tokenizer = self._trained()
    tokenizers.save(tokenizer, self.folder)
    self.assertEqual(
      [file.name for file in self.folder.iterdir()], ['tokenizer.model']
    )
    self._assert_same(tokenizers.load(self.folder), tokenizer)


if __name__ == '__main__':
  absltest.main()

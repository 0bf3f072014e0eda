"""Tests of `dapo_jax.model.gguf_weights`."""

import json
import pathlib
import tempfile

import ml_dtypes
import numpy as np
import safetensors.numpy
import tokenizers as hf_tokenizers
from absl.testing import absltest

from dapo_jax.model import gguf_weights, hf_weights
from dapo_jax.model import spec as spec_lib

try:
  import gguf
except ImportError:
  gguf = None

_PIECES = ['<end>', *sorted(hf_tokenizers.pre_tokenizers.ByteLevel.alphabet())]
_FIELDS = {
  'general.architecture': 'llama',
  'llama.block_count': 2,
  'llama.context_length': 128,
  'llama.embedding_length': 24,
  'llama.feed_forward_length': 40,
  'llama.attention.head_count': 6,
  'llama.attention.head_count_kv': 2,
  'llama.attention.layer_norm_rms_epsilon': float(np.float32(1e-5)),
  'llama.rope.freq_base': 5000.0,
  'llama.vocab_size': len(_PIECES),
  'tokenizer.ggml.model': 'gpt2',
  'tokenizer.ggml.pre': 'smollm',
  'tokenizer.ggml.tokens': _PIECES,
  'tokenizer.ggml.token_type': [3] + [1] * (len(_PIECES) - 1),
  'tokenizer.ggml.merges': [],
  'tokenizer.ggml.bos_token_id': 0,
  'tokenizer.ggml.eos_token_id': 0,
  'tokenizer.ggml.padding_token_id': 0,
}


def _tensors(**changes):
  """Returns random weights of that model: heads of 4, so NH = 24, KH = 8."""
  inner = {
    'attn_norm': (24,),
    'attn_q': (24, 24),
    'attn_k': (8, 24),
    'attn_v': (8, 24),
    'attn_output': (24, 24),
    'ffn_norm': (24,),
    'ffn_gate': (40, 24),
    'ffn_up': (40, 24),
    'ffn_down': (24, 40),
  }
  shapes = {
    'token_embd.weight': (len(_PIECES), 24),
    'output_norm.weight': (24,),
  }
  for i in range(2):
    shapes |= {f'blk.{i}.{n}.weight': s for n, s in inner.items()}
  rng = np.random.default_rng(0)
  return {
    name: rng.standard_normal(shape).astype(np.float32)
    for name, shape in shapes.items()
  } | changes


class HalvesFromPairsTest(absltest.TestCase):
  def test_pairs_of_a_head_come_to_lie_half_a_head_apart(self):
    # Two heads of size 4; a row is named head, pair, which of the pair.
    rows = ['0a1', '0a2', '0b1', '0b2', '1a1', '1a2', '1b1', '1b2']
    weight = np.arange(8, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    found = gguf_weights.halves_from_pairs(weight, heads=2)
    self.assertEqual(
      [rows[int(i)] for i in found[:, 0]],
      ['0a1', '0b1', '0a2', '0b2', '1a1', '1b1', '1a2', '1b2'],
    )


class WriteFolderTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def _write(self, fields=_FIELDS, **tensors):
    gguf_weights.write_folder(fields, _tensors(**tensors).items(), self.folder)
    return safetensors.numpy.load_file(self.folder / 'model.safetensors')

  def test_weights_are_rounded_to_bfloat16(self):
    # 1 + 2^-8 lies between two neighbours, 1 the even one; 1 + 2^-8 + 2^-16
    # is nearer to the upper, 1 + 2^-7.
    norm = np.ones(24, np.float32)
    norm[:2] = 1 + 2**-8, 1 + 2**-8 + 2**-16
    weights = self._write(**{'output_norm.weight': norm})
    self.assertEqual(
      {t.dtype for t in weights.values()}, {np.dtype(ml_dtypes.bfloat16)}
    )
    self.assertEqual(
      weights['model.norm.weight'][:3].astype(float).tolist(),
      [1.0, 1.0078125, 1.0],
    )

  def test_only_queries_and_keys_are_turned(self):
    theirs, ours = _tensors(), self._write()
    rounded = lambda w: w.astype(ml_dtypes.bfloat16)
    layer = 'model.layers.1.self_attn'
    for name, heads in (('q', 6), ('k', 2)):
      np.testing.assert_array_equal(
        ours[f'{layer}.{name}_proj.weight'],
        rounded(
          gguf_weights.halves_from_pairs(
            theirs[f'blk.1.attn_{name}.weight'], heads=heads
          )
        ),
      )
    for name in ('v', 'o'):
      np.testing.assert_array_equal(
        ours[f'{layer}.{name}_proj.weight'],
        rounded(
          theirs[f'blk.1.attn_{"output" if name == "o" else name}.weight']
        ),
      )

  def test_config_has_the_shape_and_the_numbers_as_written(self):
    self._write()
    config = hf_weights.read_config(self.folder)
    self.assertEqual(config['rms_norm_eps'], 1e-5)
    spec = spec_lib.from_hf(config)
    self.assertEqual(
      (spec.layers, spec.embed_dim, spec.heads, spec.kv_heads, spec.head_dim),
      (2, 24, 6, 2, 4),
    )
    self.assertEqual((spec.ffw_dim, spec.vocab_rows), (40, len(_PIECES)))
    self.assertEqual((spec.rope_theta, spec.context_tokens), (5000.0, 128))

  def test_the_head_is_tied_unless_there_is_one(self):
    self._write()
    self.assertTrue(hf_weights.read_config(self.folder)['tie_word_embeddings'])
    head = np.ones((len(_PIECES), 24), np.float32)
    weights = self._write(**{'output.weight': head})
    self.assertIn('lm_head.weight', weights)
    self.assertFalse(hf_weights.read_config(self.folder)['tie_word_embeddings'])

  def test_end_and_padding_are_in_both_files(self):
    self._write()
    for name in ('config.json', 'generation_config.json'):
      content = json.loads((self.folder / name).read_text())
      self.assertEqual(content['eos_token_id'], 0)
      self.assertEqual(content['pad_token_id'], 0)

  def test_another_architecture_is_refused(self):
    with self.assertRaisesRegex(ValueError, "architecture 'gemma'"):
      self._write(_FIELDS | {'general.architecture': 'gemma'})

  def test_a_tensor_of_no_llama_is_refused(self):
    for name in (
      'blk.0.attn_q.bias',
      'blk.0.ssm_a.weight',
      'rope_freqs.weight',
    ):
      with self.assertRaisesRegex(ValueError, name):
        self._write(**{name: np.ones((4, 4), np.float32)})


class ReadTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  @absltest.skipIf(gguf is None, 'needs gguf')
  def test_gives_what_was_written(self):
    path = self.folder / 'x.gguf'
    # Blocks of 32 with one scale: multiples of 1/127 are kept.
    blocks = np.arange(-127, 129, 4, dtype=np.float32).reshape(2, 32) / 127
    blocks[:, -1] = 1.0
    writer = gguf.GGUFWriter(path, 'llama')
    writer.add_tokenizer_model('gpt2')
    writer.add_token_list(['a', 'b'])
    writer.add_tensor('output_norm.weight', np.float32([1.5, -2.0]))
    quantized = gguf.quantize(blocks, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(
      'token_embd.weight',
      quantized,
      raw_dtype=gguf.GGMLQuantizationType.Q8_0,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields, tensors = gguf_weights.read(path)
    self.assertEqual(fields['general.architecture'], 'llama')
    self.assertEqual(fields['tokenizer.ggml.tokens'], ['a', 'b'])
    tensors = dict(tensors)
    np.testing.assert_array_equal(tensors['output_norm.weight'], [1.5, -2.0])
    # The scale is stored as a float16.
    np.testing.assert_allclose(tensors['token_embd.weight'], blocks, atol=1e-3)

  def test_a_missing_library_is_named_with_its_remedy(self):
    with absltest.mock.patch.dict('sys.modules', {'gguf': None}):
      with self.assertRaisesRegex(ValueError, r'dapo-jax\[smollm2\]'):
        gguf_weights.read(self.folder / 'x.gguf')


if __name__ == '__main__':
  absltest.main()

"""The model against transformers' Qwen2ForCausalLM, through a folder."""

import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
import tolerances
from dapo_jax.model import decoder, hf_weights
from dapo_jax.model import spec as spec_lib

try:
  import torch
  import transformers

  torch.set_num_threads(1)
except ImportError:
  torch = transformers = None


@absltest.skipIf(torch is None, 'needs torch and transformers')
class TransformersTest(parameterized.TestCase):
  """Weights have no zeros: biases count."""

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def _save(self, model, params, *, eos_ids=(1,)):
    hf_weights.save(self.folder, model, params, eos_ids=eos_ids)

  def _theirs(self, model, tokens, positions):
    with torch.no_grad():
      logits = model(
        input_ids=torch.tensor(tokens), position_ids=torch.tensor(positions)
      ).logits
    return logits.numpy()

  def _ours(self, model, params, tokens, positions):
    hidden = tiny_model.hidden(model, params, tokens, positions=positions)
    return np.asarray(tiny_model.module(model, params).logits(hidden))

  def _tokens_and_positions(self, first):
    tokens = np.random.default_rng(0).integers(61, size=(2, 300))
    return tokens, np.broadcast_to(first + np.arange(300), (2, 300)).copy()

  def _read_back(self):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
      self.folder, output_loading_info=True, dtype=torch.float32
    )
    for fault in ('missing_keys', 'unexpected_keys', 'mismatched_keys'):
      self.assertEmpty(report[fault], fault)
    return model.eval()

  @parameterized.parameters((True, 0), (False, 0), (False, 4000))
  def test_what_we_save_gives_our_logits_there(self, tied_head, first_position):
    model = tiny_model.model(tied_head=tied_head)
    params = tiny_model.params(model)
    self._save(model, params)
    inputs = self._tokens_and_positions(first_position)
    ours = self._ours(model, params, *inputs)
    self.assertGreater(ours.std(), 0.5)
    np.testing.assert_allclose(
      ours,
      self._theirs(self._read_back(), *inputs),
      atol=tolerances.PARITY_F32,
      rtol=0,
    )

  @parameterized.parameters((True, 1), (False, 3))
  def test_what_they_save_gives_their_logits_here(self, tied_head, shards):
    torch.manual_seed(0)
    theirs = transformers.Qwen2ForCausalLM(
      transformers.Qwen2Config(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_parameters={'rope_type': 'default', 'rope_theta': 5000.0},
        tie_word_embeddings=tied_head,
        initializer_range=0.2,
      )
    ).eval()
    with torch.no_grad():
      for name, weight in theirs.named_parameters():
        if name.endswith('bias'):
          weight.normal_()
    size = sum(w.numel() for w in theirs.parameters()) * 4
    theirs.save_pretrained(self.folder, max_shard_size=size // shards + 4096)
    self.assertEqual(
      (self.folder / 'model.safetensors.index.json').exists(), shards > 1
    )
    spec = spec_lib.from_hf(hf_weights.read_config(self.folder))
    model = decoder.abstract(spec, compute_dtype='float32', remat='none')
    params = hf_weights.load(self.folder, model, shardings=None)
    inputs = self._tokens_and_positions(0)
    np.testing.assert_allclose(
      self._ours(model, params, *inputs),
      self._theirs(theirs, *inputs),
      atol=tolerances.PARITY_F32,
      rtol=0,
    )

  def test_the_biases_matter(self):
    model = tiny_model.model()
    params = tiny_model.params(model)
    inputs = self._tokens_and_positions(0)
    with_biases = self._ours(model, params, *inputs)
    for name in ('q_bias', 'k_bias', 'v_bias'):
      block = params['block'] | {name: jnp.zeros_like(params['block'][name])}
      without = self._ours(model, params | {'block': block}, *inputs)
      self.assertGreater(np.abs(with_biases - without).max(), 0.1, name)

  def test_their_generation_stops_at_our_end_tokens(self):
    model = tiny_model.model()
    self._save(model, tiny_model.params(model), eos_ids=(7, 9))
    config = transformers.GenerationConfig.from_pretrained(self.folder)
    self.assertEqual(config.eos_token_id, [7, 9])


if __name__ == '__main__':
  absltest.main()

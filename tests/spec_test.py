"""Tests of `model.spec`."""

from absl.testing import absltest, parameterized

import tiny_model
from dapo_jax.model import spec as spec_lib

# Qwen2.5-0.5B-Instruct's config.json, less what decides nothing here.
_QWEN_HALF_B = {
  'architectures': ['Qwen2ForCausalLM'],
  'hidden_act': 'silu',
  'hidden_size': 896,
  'initializer_range': 0.02,
  'intermediate_size': 4864,
  'max_position_embeddings': 32768,
  'max_window_layers': 21,
  'num_attention_heads': 14,
  'num_hidden_layers': 24,
  'num_key_value_heads': 2,
  'rms_norm_eps': 1e-06,
  'rope_theta': 1000000.0,
  'sliding_window': 32768,
  'tie_word_embeddings': True,
  'use_sliding_window': False,
  'vocab_size': 151936,
}


class FromHfTest(parameterized.TestCase):
  def test_qwen2_half_b_is_read_whole(self):
    self.assertEqual(
      spec_lib.from_hf(_QWEN_HALF_B),
      spec_lib.Spec(
        vocab_size=151936,
        vocab_rows=151936,
        layers=24,
        embed_dim=896,
        heads=14,
        kv_heads=2,
        head_dim=64,  # 896 / 14
        ffw_dim=4864,
        qkv_bias=True,
        tied_head=True,
        rope_theta=1e6,
        norm_eps=1e-6,
        init_std=0.02,
        context_tokens=32768,
      ),
    )

  def test_rope_theta_may_stand_in_rope_parameters(self):
    config = dict(_QWEN_HALF_B)
    del config['rope_theta']
    config['rope_parameters'] = {'rope_theta': 5e5, 'rope_type': 'default'}
    self.assertEqual(spec_lib.from_hf(config).rope_theta, 5e5)

  def test_kv_heads_default_to_heads(self):
    config = _QWEN_HALF_B | {'num_key_value_heads': None}
    self.assertEqual(spec_lib.from_hf(config).kv_heads, 14)

  @parameterized.parameters(['LlamaForCausalLM'], ['Qwen2MoeForCausalLM'])
  def test_another_architecture_is_refused_by_name(self, name):
    config = _QWEN_HALF_B | {'architectures': [name]}
    with self.assertRaisesRegex(
      ValueError, f'{name} is not supported.*Qwen2ForCausalLM'
    ):
      spec_lib.from_hf(config)

  def test_no_architecture_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'none is not supported'):
      spec_lib.from_hf({})

  def test_sliding_window_is_refused(self):
    config = _QWEN_HALF_B | {'use_sliding_window': True}
    with self.assertRaisesRegex(ValueError, 'use_sliding_window'):
      spec_lib.from_hf(config)

  # The three ways in which configs have named it.
  @parameterized.parameters(
    dict(rope_scaling={'type': 'yarn', 'factor': 4.0}),
    dict(rope_scaling={'rope_type': 'yarn', 'factor': 4.0}),
    dict(rope_parameters={'rope_type': 'yarn', 'rope_theta': 1e6}),
  )
  def test_rope_scaling_is_refused(self, **change):
    with self.assertRaisesRegex(ValueError, "'yarn' is not supported"):
      spec_lib.from_hf(_QWEN_HALF_B | change)

  def test_another_activation_is_refused(self):
    with self.assertRaisesRegex(ValueError, "hidden_act 'gelu'"):
      spec_lib.from_hf(_QWEN_HALF_B | {'hidden_act': 'gelu'})


class ToHfTest(parameterized.TestCase):
  @parameterized.parameters(True, False)
  def test_from_hf_inverts_it(self, tied_head):
    spec = tiny_model.spec(tied_head=tied_head)
    config = spec_lib.to_hf(spec, eos_ids=(1,))
    self.assertEqual(spec_lib.from_hf(config), spec)

  def test_padded_rows_of_the_vocabulary_are_kept(self):
    spec = tiny_model.spec(vocab_size=151665, vocab_rows=152064)
    config = spec_lib.to_hf(spec, eos_ids=(1,))
    self.assertEqual(config['vocab_size'], 152064)

  def test_every_end_token_is_listed(self):
    config = spec_lib.to_hf(tiny_model.spec(), eos_ids=(7, 9))
    self.assertEqual(config['eos_token_id'], [7, 9])


if __name__ == '__main__':
  absltest.main()

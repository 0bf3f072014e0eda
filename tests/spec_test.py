"""Tests of `model.spec`."""

import dataclasses
import math

import jax
from absl.testing import absltest, parameterized

import published_configs
import tiny_model
from dapo_jax.model import decoder
from dapo_jax.model import spec as spec_lib

_CONFIGS = published_configs.CONFIGS
_QWEN_HALF_B = _CONFIGS['Qwen2.5-0.5B']
_LLAMA_1B = _CONFIGS['Llama-3.2-1B']


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
        qk_norm=False,
        rope_scaling=None,
        window_tokens=None,
        architecture='Qwen2ForCausalLM',
      ),
    )

  def test_llama_1b_is_read_whole(self):
    self.assertEqual(
      spec_lib.from_hf(_LLAMA_1B),
      spec_lib.Spec(
        vocab_size=128256,
        vocab_rows=128256,
        layers=16,
        embed_dim=2048,
        heads=32,
        kv_heads=8,
        head_dim=64,
        ffw_dim=8192,
        qkv_bias=False,
        tied_head=True,
        rope_theta=5e5,
        norm_eps=1e-5,
        init_std=0.02,
        context_tokens=131072,
        qk_norm=False,
        rope_scaling=spec_lib.RopeScaling(
          factor=32.0,
          low_freq_factor=1.0,
          high_freq_factor=4.0,
          original_context_tokens=8192,
        ),
        window_tokens=None,
        architecture='LlamaForCausalLM',
      ),
    )

  @parameterized.parameters(
    ('Qwen2.5-Math-7B', dict(rope_theta=1e4, context_tokens=4096)),
    ('Qwen2.5-32B', dict(head_dim=128, qkv_bias=True, tied_head=False)),
    # Not 1024 / 16.
    ('Qwen3-0.6B', dict(head_dim=128, qk_norm=True, qkv_bias=False)),
    ('SmolLM2-135M', dict(head_dim=64, rope_theta=1e5, rope_scaling=None)),
    ('SmolLM2-135M', dict(qkv_bias=False, norm_eps=1e-5)),
    ('Mistral-7B-v0.1', dict(window_tokens=4096, rope_theta=1e4)),
    ('Mistral-7B-v0.3', dict(window_tokens=None, rope_theta=1e6)),
  )
  def test_a_family_reads_what_is_its_own(self, name, expected):
    spec = spec_lib.from_hf(_CONFIGS[name])
    self.assertEqual({key: getattr(spec, key) for key in expected}, expected)

  @parameterized.parameters(sorted(_CONFIGS))
  def test_a_decoder_has_the_published_number_of_parameters(self, name):
    model = decoder.abstract(
      spec_lib.from_hf(_CONFIGS[name]), compute_dtype='bfloat16', remat='none'
    )
    leaves = jax.tree.leaves(model.shapes)
    self.assertEqual(
      sum(math.prod(leaf.shape) for leaf in leaves),
      published_configs.PARAMETER_COUNTS[name],
    )

  def test_kv_heads_default_to_heads(self):
    config = _QWEN_HALF_B | {'num_key_value_heads': None}
    self.assertEqual(spec_lib.from_hf(config).kv_heads, 14)

  # What transformers takes where a config is silent.
  @parameterized.parameters(
    ('Qwen3-0.6B', 'head_dim', dict(head_dim=128)),
    ('Mistral-7B-v0.1', 'sliding_window', dict(window_tokens=4096)),
    ('SmolLM2-135M', 'max_position_embeddings', dict(context_tokens=2048)),
    ('SmolLM2-135M', 'rope_theta', dict(rope_theta=1e4)),
    ('Qwen3-0.6B', 'tie_word_embeddings', dict(tied_head=False)),
  )
  def test_silence_means_what_transformers_means(self, name, key, expected):
    config = dict(_CONFIGS[name])
    del config[key]
    spec = spec_lib.from_hf(config)
    self.assertEqual({key: getattr(spec, key) for key in expected}, expected)

  @parameterized.parameters(
    ['Qwen2MoeForCausalLM'],
    ['Qwen3MoeForCausalLM'],
    ['MixtralForCausalLM'],
    ['GemmaForCausalLM'],
  )
  def test_another_architecture_is_refused_by_name(self, name):
    config = _QWEN_HALF_B | {'architectures': [name]}
    with self.assertRaisesRegex(
      ValueError,
      f'{name} is not supported; supported: LlamaForCausalLM, '
      'MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM$',
    ):
      spec_lib.from_hf(config)

  def test_no_architecture_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'none is not supported'):
      spec_lib.from_hf({})

  @parameterized.parameters(
    ('Qwen2.5-7B', 'hidden_act', 'gelu'),
    ('Qwen2.5-7B', 'use_sliding_window', True),
    ('Qwen3-8B', 'use_sliding_window', True),
    ('Qwen3-8B', 'attention_bias', True),
    ('Llama-3.1-8B', 'attention_bias', True),
    ('Llama-3.1-8B', 'mlp_bias', True),
    # transformers goes by this one.
    ('Mistral-7B-v0.1', 'model_type', 'mixtral'),
  )
  def test_what_the_decoder_lacks_is_refused(self, name, key, value):
    with self.assertRaisesRegex(
      ValueError, f'^{key} {value!r} is not supported'
    ):
      spec_lib.from_hf(_CONFIGS[name] | {key: value})

  def test_layers_that_differ_are_refused(self):
    kinds = ['full_attention'] * 14
    spec_lib.from_hf(_CONFIGS['Qwen3-0.6B'] | {'layer_types': kinds * 2})
    mixed = kinds + ['sliding_attention'] * 14
    with self.assertRaisesRegex(ValueError, "layer_types.*'sliding_attention'"):
      spec_lib.from_hf(_CONFIGS['Qwen3-0.6B'] | {'layer_types': mixed})

  def test_what_it_lacks_is_named(self):
    config = dict(_QWEN_HALF_B)
    del config['hidden_size'], config['vocab_size']
    with self.assertRaisesRegex(ValueError, 'lacks vocab_size, hidden_size$'):
      spec_lib.from_hf(config)


class RopeScalingTest(parameterized.TestCase):
  def test_the_base_may_stand_in_rope_parameters(self):
    config = dict(_QWEN_HALF_B)
    del config['rope_theta']
    config['rope_parameters'] = {'rope_theta': 5e5, 'rope_type': 'default'}
    self.assertEqual(spec_lib.from_hf(config).rope_theta, 5e5)

  def test_it_may_stand_in_rope_parameters(self):
    config = dict(_LLAMA_1B)
    theta, scaling = config.pop('rope_theta'), config.pop('rope_scaling')
    config['rope_parameters'] = scaling | {'rope_theta': theta}
    self.assertEqual(spec_lib.from_hf(config), spec_lib.from_hf(_LLAMA_1B))

  # The three ways in which configs have named it.
  @parameterized.parameters(
    dict(rope_scaling={'type': 'yarn', 'factor': 4.0}),
    dict(rope_scaling={'rope_type': 'yarn', 'factor': 4.0}),
    dict(rope_parameters={'rope_type': 'yarn', 'rope_theta': 1e6}),
  )
  def test_another_kind_is_refused(self, **change):
    with self.assertRaisesRegex(
      ValueError, "'yarn' is not supported; supported: default, llama3"
    ):
      spec_lib.from_hf(_QWEN_HALF_B | change)

  @parameterized.parameters(
    dict(partial_rotary_factor=0.5),
    dict(rope_parameters={'rope_theta': 1e4, 'partial_rotary_factor': 0.5}),
  )
  def test_turning_a_part_of_a_head_is_refused(self, **change):
    with self.assertRaisesRegex(ValueError, 'partial_rotary_factor 0.5'):
      spec_lib.from_hf(_QWEN_HALF_B | change)

  def test_a_part_that_is_missing_is_named(self):
    scaling = dict(_LLAMA_1B['rope_scaling'])
    del scaling['low_freq_factor']
    with self.assertRaisesRegex(ValueError, "'llama3' lacks low_freq_factor$"):
      spec_lib.from_hf(_LLAMA_1B | {'rope_scaling': scaling})

  def test_low_must_be_below_high(self):
    scaling = _LLAMA_1B['rope_scaling'] | {'low_freq_factor': 4.0}
    with self.assertRaisesRegex(ValueError, r'\(4.0\) must be below .*\(4.0\)'):
      spec_lib.from_hf(_LLAMA_1B | {'rope_scaling': scaling})


class ToHfTest(parameterized.TestCase):
  @parameterized.parameters(sorted(tiny_model.FAMILIES))
  def test_from_hf_inverts_it(self, family):
    for tied_head in (True, False):
      changes = tiny_model.FAMILIES[family] | {'tied_head': tied_head}
      spec = tiny_model.spec(**changes)
      config = spec_lib.to_hf(spec, eos_ids=(1,))
      self.assertEqual(spec_lib.from_hf(config), spec)

  @parameterized.parameters(sorted(_CONFIGS))
  def test_it_says_what_was_published(self, name):
    published = _CONFIGS[name]
    config = spec_lib.to_hf(spec_lib.from_hf(published), eos_ids=(1,))
    self.assertEqual(spec_lib.from_hf(config), spec_lib.from_hf(published))
    for key in published.keys() & config.keys():
      self.assertEqual(config[key], published[key], key)

  def test_no_window_is_said_aloud(self):
    spec = spec_lib.from_hf(_CONFIGS['Mistral-7B-v0.3'])
    config = spec_lib.to_hf(spec, eos_ids=(2,))
    self.assertIsNone(config['sliding_window'])

  @parameterized.parameters(
    ('Qwen2ForCausalLM', dict(qkv_bias=False)),
    ('Qwen2ForCausalLM', dict(qkv_bias=True, window_tokens=8)),
    ('LlamaForCausalLM', dict(qkv_bias=True)),
    ('MistralForCausalLM', dict(qkv_bias=False, qk_norm=True)),
  )
  def test_what_the_config_cannot_say_is_refused(self, name, changes):
    key, value = list(changes.items())[-1]
    spec = tiny_model.spec(architecture=name, **changes)
    with self.assertRaisesRegex(
      ValueError, f"config of {name} can't say {key}={value}$"
    ):
      spec_lib.to_hf(spec, eos_ids=(1,))

  def test_another_architecture_is_refused(self):
    spec = dataclasses.replace(tiny_model.spec(), architecture='GPT2LMHead')
    with self.assertRaisesRegex(ValueError, 'GPT2LMHead is not supported'):
      spec_lib.to_hf(spec, eos_ids=(1,))

  def test_padded_rows_of_the_vocabulary_are_kept(self):
    spec = tiny_model.spec(vocab_size=151665, vocab_rows=152064)
    config = spec_lib.to_hf(spec, eos_ids=(1,))
    self.assertEqual(config['vocab_size'], 152064)

  def test_every_end_token_is_listed(self):
    config = spec_lib.to_hf(tiny_model.spec(), eos_ids=(7, 9))
    self.assertEqual(config['eos_token_id'], [7, 9])


if __name__ == '__main__':
  absltest.main()

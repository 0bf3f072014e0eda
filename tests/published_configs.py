"""What models say in their config.json, and their published sizes.

Less what decides nothing here.
"""

_QWEN2 = {
  'architectures': ['Qwen2ForCausalLM'],
  'attention_dropout': 0.0,
  'hidden_act': 'silu',
  'initializer_range': 0.02,
  'model_type': 'qwen2',
  'rms_norm_eps': 1e-06,
  'rope_theta': 1000000.0,
  'use_sliding_window': False,
}
_QWEN2_7B = _QWEN2 | {
  'hidden_size': 3584,
  'intermediate_size': 18944,
  'max_position_embeddings': 131072,
  'max_window_layers': 28,
  'num_attention_heads': 28,
  'num_hidden_layers': 28,
  'num_key_value_heads': 4,
  'sliding_window': 131072,
  'tie_word_embeddings': False,
  'vocab_size': 152064,
}
_QWEN3 = {
  'architectures': ['Qwen3ForCausalLM'],
  'attention_bias': False,
  'attention_dropout': 0.0,
  'head_dim': 128,
  'hidden_act': 'silu',
  'initializer_range': 0.02,
  'max_position_embeddings': 40960,
  'model_type': 'qwen3',
  'num_key_value_heads': 8,
  'rms_norm_eps': 1e-06,
  'rope_scaling': None,
  'rope_theta': 1000000,
  'sliding_window': None,
  'use_sliding_window': False,
  'vocab_size': 151936,
}
_LLAMA3 = {
  'architectures': ['LlamaForCausalLM'],
  'attention_bias': False,
  'attention_dropout': 0.0,
  'hidden_act': 'silu',
  'initializer_range': 0.02,
  'max_position_embeddings': 131072,
  'mlp_bias': False,
  'model_type': 'llama',
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'pretraining_tp': 1,
  'rms_norm_eps': 1e-05,
  'rope_theta': 500000.0,
  'vocab_size': 128256,
}
_LLAMA3_SCALING = {
  'factor': 8.0,
  'high_freq_factor': 4.0,
  'low_freq_factor': 1.0,
  'original_max_position_embeddings': 8192,
  'rope_type': 'llama3',
}
_MISTRAL_7B = {
  'architectures': ['MistralForCausalLM'],
  'hidden_act': 'silu',
  'hidden_size': 4096,
  'initializer_range': 0.02,
  'intermediate_size': 14336,
  'max_position_embeddings': 32768,
  'model_type': 'mistral',
  'num_attention_heads': 32,
  'num_hidden_layers': 32,
  'num_key_value_heads': 8,
  'rms_norm_eps': 1e-05,
  'rope_theta': 10000.0,
  'sliding_window': 4096,
  'tie_word_embeddings': False,
  'vocab_size': 32000,
}

CONFIGS = {
  'Qwen2.5-0.5B': _QWEN2
  | {
    'hidden_size': 896,
    'intermediate_size': 4864,
    'max_position_embeddings': 32768,
    'max_window_layers': 24,
    'num_attention_heads': 14,
    'num_hidden_layers': 24,
    'num_key_value_heads': 2,
    'sliding_window': 32768,
    'tie_word_embeddings': True,
    'vocab_size': 151936,
  },
  'Qwen2.5-7B': _QWEN2_7B,
  'Qwen2.5-Math-7B': _QWEN2_7B
  | {
    'max_position_embeddings': 4096,
    'rope_theta': 10000,
    'sliding_window': 4096,
  },
  'Qwen2.5-32B': _QWEN2_7B
  | {
    'hidden_size': 5120,
    'intermediate_size': 27648,
    'max_window_layers': 64,
    'num_attention_heads': 40,
    'num_hidden_layers': 64,
    'num_key_value_heads': 8,
  },
  'Qwen3-0.6B': _QWEN3
  | {
    'hidden_size': 1024,
    'intermediate_size': 3072,
    'max_window_layers': 28,
    'num_attention_heads': 16,
    'num_hidden_layers': 28,
    'tie_word_embeddings': True,
  },
  'Qwen3-8B': _QWEN3
  | {
    'hidden_size': 4096,
    'intermediate_size': 12288,
    'max_window_layers': 36,
    'num_attention_heads': 32,
    'num_hidden_layers': 36,
    'tie_word_embeddings': False,
  },
  'Llama-3.1-8B': _LLAMA3
  | {
    'hidden_size': 4096,
    'intermediate_size': 14336,
    'num_hidden_layers': 32,
    'rope_scaling': _LLAMA3_SCALING,
    'tie_word_embeddings': False,
  },
  'Llama-3.2-1B': _LLAMA3
  | {
    'head_dim': 64,
    'hidden_size': 2048,
    'intermediate_size': 8192,
    'num_hidden_layers': 16,
    'rope_scaling': _LLAMA3_SCALING | {'factor': 32.0},
    'tie_word_embeddings': True,
  },
  'SmolLM2-135M': {
    'architectures': ['LlamaForCausalLM'],
    'attention_bias': False,
    'attention_dropout': 0.0,
    'hidden_act': 'silu',
    'hidden_size': 576,
    'initializer_range': 0.041666666666666664,
    'intermediate_size': 1536,
    'is_llama_config': True,
    'max_position_embeddings': 8192,
    'model_type': 'llama',
    'num_attention_heads': 9,
    'num_hidden_layers': 30,
    'num_key_value_heads': 3,
    'pretraining_tp': 1,
    'rms_norm_eps': 1e-05,
    'rope_interleaved': False,
    'rope_scaling': None,
    'rope_theta': 100000,
    'tie_word_embeddings': True,
    'vocab_size': 49152,
  },
  'Mistral-7B-v0.1': _MISTRAL_7B,
  'Mistral-7B-v0.3': _MISTRAL_7B
  | {'rope_theta': 1000000.0, 'sliding_window': None, 'vocab_size': 32768},
}

# A tied head is counted once.
PARAMETER_COUNTS = {
  'Qwen2.5-0.5B': 494_032_768,
  'Qwen2.5-7B': 7_615_616_512,
  'Qwen2.5-Math-7B': 7_615_616_512,
  'Qwen2.5-32B': 32_763_876_352,
  'Qwen3-0.6B': 596_049_920,
  'Qwen3-8B': 8_190_735_360,
  'Llama-3.1-8B': 8_030_261_248,
  'Llama-3.2-1B': 1_235_814_400,
  'SmolLM2-135M': 134_515_008,
  'Mistral-7B-v0.1': 7_241_732_096,
  'Mistral-7B-v0.3': 7_248_023_552,
}

"""What transformers is measured with: a model of random weights or a folder's.

Limits torch to the cores.
"""

import argparse

import torch
import transformers


def made(args: argparse.Namespace) -> transformers.PreTrainedModel:
  """Returns the model of the folder, or one of random weights."""
  torch.set_num_threads(args.threads)
  torch.manual_seed(0)
  transformers.logging.set_verbosity_error()
  if args.model:
    return transformers.AutoModelForCausalLM.from_pretrained(
      args.model, dtype=torch.float32
    )
  return transformers.Qwen3ForCausalLM(
    transformers.Qwen3Config(
      num_hidden_layers=args.layers,
      vocab_size=args.vocab,
      hidden_size=args.embed,
      intermediate_size=args.ffw,
      num_attention_heads=args.heads,
      num_key_value_heads=args.kv_heads,
      head_dim=args.head_dim,
      max_position_embeddings=4096,
      tie_word_embeddings=True,
      rms_norm_eps=1e-6,
      bos_token_id=None,
      eos_token_id=None,
      pad_token_id=0,
    )
  ).float()

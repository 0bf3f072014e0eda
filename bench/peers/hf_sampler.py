"""Transformers' `generate`, on the line that `bench/rollout.py` sends."""

from importlib import metadata

import worker

args = worker.flags()

import torch  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(args.threads)
torch.manual_seed(0)
transformers.logging.set_verbosity_error()


def made() -> transformers.PreTrainedModel:
  """Returns the model of the folder, or one of random weights."""
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


model = made().eval()
# A folder's own would end responses, or filter their tokens.
model.generation_config = transformers.GenerationConfig(pad_token_id=0)
vocab = model.config.vocab_size
prompts = torch.randint(1, vocab, (args.batch, args.prompt))


@torch.no_grad()
def go() -> int:
  """Samples one batch, with the log-prob of each token."""
  out = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=args.tokens,
    min_new_tokens=args.tokens,
    do_sample=True,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    pad_token_id=0,
    eos_token_id=None,
    use_cache=True,
    return_dict_in_generate=True,
    output_logits=True,
  )
  new = out.sequences[:, args.prompt :]
  # Step by step: all logits side by side would be a second copy of them.
  for step, logits in enumerate(out.logits):
    logits.gather(-1, new[:, step, None])[:, 0] - logits.logsumexp(-1)
  return new.numel()


worker.serve(
  go,
  {
    'tool': 'transformers',
    'version': metadata.version('transformers'),
    'torch': metadata.version('torch'),
    'parameters': sum(p.numel() for p in model.parameters()),
  },
)

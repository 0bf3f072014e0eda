"""Transformers' `generate`, on the line that `bench/rollout.py` sends."""

from importlib import metadata

import worker

args = worker.flags()

import hf_model  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

model = hf_model.made(args).eval()
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

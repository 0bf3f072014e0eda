"""A plain update of a transformers model, on `bench/update.py`'s line.

    uniform    16 responses of one length, one step of the optimizer
    ragged N   the first N of the ragged set, one step; groups of 16 at a time
    sorted N   the same sorted by length first, so that little is padded

A batch is padded to its own longest response. Padding stands behind, where no
token sees it: so there is no mask, and torch takes its causal kernel.
"""

from importlib import metadata

import worker

args = worker.flags()

import hf_model  # noqa: E402
import ragged  # noqa: E402
import torch  # noqa: E402

model = hf_model.made(args).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.1)


def loss_of(batch: ragged.Batch, tokens_count: int) -> torch.Tensor:
  """Returns a batch's part of the clipped loss, a mean over all tokens."""
  of = torch.from_numpy
  responses, mask = of(batch.responses).long(), of(batch.mask)
  ids = torch.cat([of(batch.prompts).long(), responses], 1)
  logits = model(
    input_ids=ids, logits_to_keep=responses.shape[1] + 1, use_cache=False
  ).logits[:, :-1]
  logp = torch.gather(logits, -1, responses[..., None])[..., 0]
  logp = logp - torch.logsumexp(logits, -1)
  ratio = (logp - of(batch.logp_old)).clamp(-20, 20).exp()
  gain = of(batch.advantages)[:, None]
  loss = torch.maximum(-gain * ratio, -gain * ratio.clamp(0.8, 1.28))
  return (loss * mask).sum() / tokens_count


def update(batches: list[ragged.Batch]) -> int:
  """Makes one step of the optimizer; returns the useful tokens."""
  tokens_count = sum(int(b.mask.sum()) for b in batches)
  optimizer.zero_grad(set_to_none=True)
  for batch in batches:
    loss_of(batch, tokens_count).backward()
  torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
  optimizer.step()
  return sum(b.useful_tokens for b in batches)


def answer(question: str) -> dict[str, float]:
  """Returns what one update took."""
  lengths = (
    [args.tokens] * args.batch
    if question == 'uniform'
    else ragged.asked(question)
  )
  batches = ragged.batches(
    lengths, prompt_tokens=args.prompt, vocab=args.vocab, pad_to=None
  )
  return worker.timed(lambda: update(batches))


worker.answer_lines(
  answer,
  warm_up=['uniform', 'ragged 32'],
  about={
    'tool': 'transformers',
    'version': metadata.version('transformers'),
    'torch': metadata.version('torch'),
    'parameters': sum(p.numel() for p in model.parameters()),
  },
)

"""SmolLM2-135M-Instruct trained on one-digit sums by DAPO, on a laptop's CPU.

dapo-jax fetch smollm2 runs/smollm2
dapo-jax train --config=configs/smollm2_addition.py \
      --workdir=runs/smollm2_addition --config.model.path=runs/smollm2
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration of the run."""
  c = base.get_config()
  # Sums of two and three one-digit numbers behind four solved ones.
  c.data.arithmetic.min_terms = 2
  c.data.arithmetic.terms = 3
  c.data.arithmetic.digits = 1
  # As many of one kind as of the other; a quarter is never trained on.
  c.data.arithmetic.max_per_terms = 100
  c.data.arithmetic.held_out_frac = 0.25
  c.data.arithmetic.in_words = True
  c.data.arithmetic.worked_frac = 0.0
  c.data.shots = 4
  c.data.max_prompt_tokens = 96
  # The base model goes on talking after its answer: eight tokens are enough,
  # and being cut off is no fault.
  c.rollout.max_response_tokens = 8
  c.overlong.enabled = False
  c.rollout.prompts_per_step = 16
  c.rollout.responses_per_prompt = 8
  c.rollout.oversample = 1.5
  c.filter.max_rounds = 6
  c.filter.on_limit = 'train_partial'
  c.sampler.slots = 192
  # Two updates of eight groups, each group behind one copy of its prompt.
  c.learner.minibatch_prompts = 8
  c.learner.pack_tokens = 152
  c.learner.micro_batch_rows = 2
  c.model.logits_chunk_tokens = 64
  c.optim.lr = 1e-5
  c.optim.warmup_steps = 2
  c.optim.weight_decay = 0.0
  c.eval.prompts = 40
  c.eval.samples_per_prompt = 8
  c.train.steps = 20
  return c

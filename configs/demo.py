"""The demo: a small policy learns to add by DAPO, on a laptop's CPU.

  make demo

which runs

  dapo-jax sft --config=configs/demo.py --workdir=runs/demo/sft
  dapo-jax train --config=configs/demo.py --workdir=runs/demo/dapo \
      --config.model.path=runs/demo/sft/model
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration of the demo."""
  c = base.get_config()
  # 8,100 sums of two-digit numbers; a tenth is never trained on. Four in ten
  # of the supervised solutions show their working, so the policy begins by
  # guessing more often than it works a sum out.
  c.data.arithmetic.worked_frac = 0.4
  c.data.max_prompt_tokens = 16
  # 1 M parameters. Qwen2's deviation of 0.02 suits widths of thousands.
  c.model.init_std = 0.08
  c.sft.lr = 2e-3
  c.sft.stop_accuracy = 0.42
  # 32 prompts x 16 responses a step, in 4 updates of 8 whole groups.
  c.rollout.prompts_per_step = 32
  c.rollout.responses_per_prompt = 16
  c.rollout.oversample = 1.25
  c.rollout.max_response_tokens = 40
  c.overlong.cache_tokens = 8
  c.learner.micro_batch_rows = 8
  c.learner.minibatch_prompts = 8
  c.learner.pack_tokens = 128
  c.optim.lr = 2e-4
  c.optim.warmup_steps = 5
  c.optim.weight_decay = 0.0
  c.train.steps = 60
  return c

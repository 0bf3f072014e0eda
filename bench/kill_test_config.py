"""The runs that `bench/kill_test.py` kills: twelve steps of a tiny policy.

  --config=bench/kill_test_config.py:CASE

CASE is what has to survive: `sas`, the rewards of earlier visits, over the end
of an epoch; `refill`, dynamic sampling in several rounds a step; `ppo`, a
critic with layers of its own.
"""

import ml_collections

from configs import base

CASES = {
  'sas': {'advantage.estimator': 'smooth', 'filter.enabled': False},
  # Few prompts a round, so that most steps need several.
  'refill': {'rollout.oversample': 0.5, 'filter.max_rounds': 20},
  'ppo': {
    'advantage.estimator': 'gae',
    'filter.enabled': False,
    'critic.lr': 1e-3,
    'critic.warmup_steps': 2,
  },
}


def get_config(case: str = 'sas') -> ml_collections.ConfigDict:
  """Returns the configuration of a case."""
  c = base.get_config()
  c.model.layers = 2
  c.model.embed_dim = 32
  c.model.heads = 4
  c.model.kv_heads = 2
  c.model.head_dim = 8
  c.model.ffw_dim = 64
  c.model.init_std = 0.1
  c.model.logits_chunk_tokens = 64
  c.tokenizer.vocab_size = 300
  # About 40 sums to train on: twelve steps go round them.
  c.data.max_prompt_tokens = 8
  c.data.arithmetic.digits = 1
  c.data.arithmetic.worked_frac = 0.0
  c.data.arithmetic.held_out_frac = 0.6
  c.eval.prompts = 16
  c.eval.samples_per_prompt = 4
  c.eval.every_steps = 3
  c.rollout.prompts_per_step = 4
  c.rollout.responses_per_prompt = 4
  c.rollout.max_response_tokens = 8
  c.overlong.cache_tokens = 4
  c.sampler.slots = 8
  c.sampler.chunk_tokens = 4
  c.filter.on_limit = 'train_partial'
  c.optim.lr = 1e-3
  c.optim.warmup_steps = 4
  c.learner.minibatch_prompts = 2
  c.learner.epochs = 2
  c.learner.pack_tokens = 32
  c.learner.micro_batch_rows = 8
  c.checkpoint.every_steps = 2
  c.train.steps = 12
  c.train.samples_logged = 16
  c.sft.steps = 150
  c.sft.examples_per_step = 32
  c.sft.lr = 1e-2
  c.sft.warmup_steps = 5
  c.sft.eval_every_steps = 150
  c.update_from_flattened_dict(CASES[case])
  return c

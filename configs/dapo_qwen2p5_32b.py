"""DAPO's Table 1: from naive GRPO to DAPO on Qwen2.5-32B, a row at a time.

  dapo-jax train --config=configs/dapo_qwen2p5_32b.py:ROW --workdir=DIR \
      --config.model.path=FOLDER \
      --config.data.source=FILE --config.eval.source=FILE

A row is its technique and those of the rows before it (arXiv 2503.14476,
section 4). The paper's result of each, AIME 2024 avg@32 in percent:

  naive_grpo          30
  overlong_filtering  36
  clip_higher         38
  soft_overlong       41
  token_loss          42
  dapo                50   dynamic sampling; what is meant without a ROW

FOLDER is Qwen2.5-32B, the base model; where it is not given,
--config.model.allow_download=true fetches it from the hub. The paper trains
on DAPO-Math-17k (17,917 problems with integer answers) and evaluates on the
30 problems of AIME 2024: folders that `dapo-jax data build` makes of the
published files, dapo_math_17k and aime24, or JSONL files with `problem` and
`answer`.

Hardware: parameters and moments in float32 are 366 GiB, their gradient 122
and the sampler's copy of the parameters comes to it; so a slice of a pod. What
is set here is for v5p, 16 chips or more. What fits another one, and what
fits it better, is asked before it is rented, docs/planning.md:

  dapo-jax plan --config=configs/dapo_qwen2p5_32b.py --topology=v5p-256

Each of its machines runs the same command with --distributed, see
docs/scaling.md and docs/tpu.md. No run of this size has been made; the
published script asks for 128 GPUs. 400 rollout steps are 6,400 updates; the
curves of the paper end at 5,000 to 8,000.
"""

import ml_collections

from configs import base, variants

# What each row changes, by the flag that changes it; the first row also says
# what the defaults, which are the last row, have more.
ROWS = {
  'naive_grpo': {
    'objective.clip_high': 0.2,
    'objective.aggregation': 'sequence_mean',
    'filter.enabled': False,
    'overlong.enabled': False,
    'overlong.truncated': 'wrong',
  },
  'overlong_filtering': {'overlong.truncated': 'masked'},
  'clip_higher': {'objective.clip_high': 0.28},
  # Instead of the filtering: the recipe that was published with the paper has
  # the punishment alone, and what is masked out cannot be punished.
  'soft_overlong': {
    'overlong.enabled': True,
    'overlong.truncated': 'as_graded',
  },
  'token_loss': {'objective.aggregation': 'token_mean'},
  'dapo': {'filter.enabled': True},
}


def get_config(row: str = 'dapo') -> ml_collections.ConfigDict:
  """Returns the configuration of a row of the table."""
  c = base.get_config()
  c.model.path = 'Qwen/Qwen2.5-32B'
  c.model.compute_dtype = 'bfloat16'
  c.model.remat = 'full'
  # The user's files.
  c.data.source = ''
  c.eval.source = ''
  # The published script's chat and scorer.
  c.data.template = 'chat_dapo'
  c.reward.grader = 'dapo'
  c.data.max_prompt_tokens = 2048
  # avg@32 of AIME's 30 problems.
  c.eval.prompts = 30
  c.eval.samples_per_prompt = 32
  c.eval.top_p = 0.7
  c.eval.every_steps = 5
  # Section 4.1: 512 prompts x 16, in 16 updates of 32 whole groups.
  c.rollout.prompts_per_step = 512
  c.rollout.responses_per_prompt = 16
  c.rollout.oversample = 3.0  # the published script; only with the filter
  c.rollout.max_response_tokens = 16_384 + 4096
  c.overlong.cache_tokens = 4096
  c.learner.minibatch_prompts = 32
  # Of 40 query and 8 key heads; an engine is a host, with its four chips.
  c.mesh.tensor = 4
  c.sampler.tensor = 4
  # Beside 15.3 GiB of weights and a share of the state.
  c.sampler.cache_gib = 60.0
  c.objective.clip_low = 0.2
  # No row has a divergence from the first policy: section 2.3.
  c.objective.kl_coef = 0.0
  c.optim.lr = 1e-6
  c.optim.warmup_steps = 20
  c.checkpoint.every_steps = 5
  c.train.steps = 400
  c.update_from_flattened_dict(variants.up_to(row, ROWS))
  return c

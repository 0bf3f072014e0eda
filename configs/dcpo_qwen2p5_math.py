"""DCPO's tables: its methods and baselines on four models of Qwen2.5.

  dapo-jax train --config=configs/dcpo_qwen2p5_math.py:METHOD_SIZE \
      --workdir=DIR --config.model.path=FOLDER \
      --config.data.source=FILE --config.eval.source=FILE

METHOD is grpo, dapo, gspo or dcpo, or GRPO with one of DCPO's techniques: dac
(dynamic-adaptive clipping), sas (smooth advantage standardization) or otm
(only-token-mean loss). SIZE is the model, FOLDER, which
--config.model.allow_download=true fetches where it is not given:

  1.5b  Qwen2.5-Math-1.5B-Instruct      7b   Qwen2.5-Math-7B
  3b    Qwen2.5-3B                      14b  Qwen2.5-14B

What is meant without an argument is dcpo_7b. The paper (arXiv 2509.02333)
gives of its Table 1 in the abstract, greedy and avg@32 accuracy in percent:

  AIME 2024, 7b    grpo 36.7, 32.1   gspo 40.0, 34.9   dapo 36.7, 31.6
                   dcpo 46.7, 38.8
  AIME 2025, 14b   grpo 13.3, 10.5   gspo 16.7,  9.9   dapo 20.0, 15.3
                   dcpo 23.3, 19.0

The other cells are in its Table 1 and the ablation of dac, sas and otm in its
Figure 3. The shares of responses with an advantage are in its Table 2: on
average 43.8 % for GRPO, and about 28 points more for DCPO. docs/fidelity.md
says where these do not agree with each other.

Training data are DAPO-Math-17k and the levels 3 to 5 of MATH, about 25,000
problems; evaluation is on AIME 2024 and 2025 (30 problems each), AMC 2023 and
MATH-500 (--config.eval.prompts=40 and =500), one at a time: folders that
`dapo-jax data build` makes of the published files, dcpo_train, aime24, aime25,
amc23 and math500, or JSONL files with `problem` and `answer`.

Hardware: the paper had 32 H20 GPUs. Parameters and moments in float32 are 17
GiB (1.5b), 34 (3b), 85 (7b) and 165 GiB (14b), their gradient a third more;
grpo, dac, sas and otm hold the first policy besides. One v5p host (four chips
of 95 GiB) or v6e host (eight of 32 GiB) for 7b, with

  --config.mesh.fsdp=-1 --config.sampler.tensor=4

None of these runs has been made.
"""

import ml_collections

from configs import base, variants

MODELS = {
  '1.5b': 'Qwen/Qwen2.5-Math-1.5B-Instruct',
  '3b': 'Qwen/Qwen2.5-3B',
  '7b': 'Qwen/Qwen2.5-Math-7B',
  '14b': 'Qwen/Qwen2.5-14B',
}

# What all methods have in common.
_GRPO = {
  'objective.clip_low': 0.2,
  'objective.clip_high': 0.2,
  'objective.aggregation': 'sequence_mean',
  'objective.kl_coef': 0.001,
  'filter.enabled': False,
  'overlong.enabled': False,
  # Eq. 15: right, wrong, and no answer in the form asked for.
  'reward.right': 1.0,
  'reward.wrong': 0.0,
  'reward.no_answer': -1.0,
  # The population's deviation (A.7) for all, so that the first visit of SAS
  # is GRPO.
  'advantage.ddof': 0,
}
# Appendix A.9; the largest ratio is 10 whatever the advantage's sign.
_DAC = {
  'objective.bounds': 'dac',
  'objective.clip_low': 0.16,
  'objective.clip_high': 0.2,
  'objective.ratio_max': 10.0,
  'objective.dual_clip': 10.0,
}
_SAS = {'advantage.estimator': 'smooth'}
_OTM = {'objective.aggregation': 'only_token_mean'}
_NO_KL = {'objective.kl_coef': 0.0}

# What each method sets, by the flag that sets it.
METHODS = {
  'grpo': _GRPO,
  'gspo': _GRPO
  | _NO_KL
  | {
    'objective.ratio': 'sequence',
    'objective.clip_low': 3e-4,
    'objective.clip_high': 4e-4,
  },
  'dapo': _GRPO
  | _NO_KL
  | {
    'objective.clip_high': 0.28,
    'objective.dual_clip': 10.0,
    'objective.aggregation': 'token_mean',
    'filter.enabled': True,
    'overlong.enabled': True,
    'overlong.cache_tokens': 512,
  },
  'dcpo': _GRPO | _DAC | _SAS | _OTM | _NO_KL,
  'dac': _GRPO | _DAC,
  'sas': _GRPO | _SAS,
  'otm': _GRPO | _OTM,
}
_VARIANTS = {
  f'{method}_{size}': changes | {'model.path': path}
  for method, changes in METHODS.items()
  for size, path in MODELS.items()
}


def get_config(variant: str = 'dcpo_7b') -> ml_collections.ConfigDict:
  """Returns the configuration of a method on a model."""
  c = base.get_config()
  c.model.compute_dtype = 'bfloat16'
  c.model.remat = 'full'
  # The user's files.
  c.data.source = ''
  c.eval.source = ''
  # The paper asks for a boxed answer, and pays less than a wrong one without.
  c.data.template = 'chat_boxed'
  c.reward.grader = 'equivalence_box'
  c.data.max_prompt_tokens = 1024
  c.eval.prompts = 30
  c.eval.samples_per_prompt = 32
  c.eval.every_steps = 5
  # Appendix A.9: 512 prompts x 16, in 16 updates of 32 whole groups.
  c.rollout.prompts_per_step = 512
  c.rollout.responses_per_prompt = 16
  c.rollout.oversample = 1.25  # ours; only with the filter
  c.rollout.max_response_tokens = 3072
  c.learner.minibatch_prompts = 32
  # Neither is in the paper: the published script's.
  c.optim.lr = 1e-6
  c.optim.warmup_steps = 10
  c.train.steps = 400
  c.update_from_flattened_dict(variants.one(variant, _VARIANTS))
  return c

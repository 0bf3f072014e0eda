"""The rules that the values of a configuration keep, each alone.

A rule is checked only where it matters: the options of a feature that is off
are not looked at, nor is a key whose value is None. `validate` needs no file
and no device, so it can judge a run for machines that are not at hand.
"""

import ml_collections

from dapo_jax import config_data_relations, config_fault, config_relations

_CHOICES = {
  'model.compute_dtype': ('float32', 'bfloat16'),
  'model.remat': ('none', 'dots', 'attention', 'full', 'offload'),
  'model.attention': ('auto', 'dense', 'chunked', 'splash'),
  'sampler.cache': ('auto', 'dense', 'dense_int8', 'paged'),
  'data.template': (
    'plain',
    'dapo',
    'boxed',
    'chat',
    'chat_dapo',
    'chat_boxed',
  ),
  'data.overlong': ('error', 'drop'),
  'data.unwinnable': ('drop', 'keep'),
  'data.tail': ('keep', 'drop'),
  'filter.on_limit': ('error', 'train_partial', 'accept_uniform'),
  'overlong.truncated': ('as_graded', 'wrong', 'masked'),
  'advantage.estimator': ('group', 'smooth', 'gae'),
  'advantage.ddof': (0, 1),
  'advantage.scale': ('group', 'batch', 'none'),
  'advantage.baseline': ('mean', 'leave_one_out'),
  'objective.ratio': ('token', 'sequence'),
  'objective.bounds': ('fixed', 'dac'),
  'objective.surrogate': ('clipped', 'cispo'),
  'objective.aggregation': (
    'token_mean',
    'group_token_mean',
    'sequence_mean',
    'only_token_mean',
    'constant',
  ),
  'objective.kl_estimator': ('k1', 'k2', 'k3'),
  'objective.kl_place': ('loss', 'reward'),
  'objective.sampler_correction': (
    'none',
    'token_truncate',
    'token_mask',
    'sequence_truncate',
    'sequence_mask',
  ),
}

_MODEL_SHAPE = (
  'model.layers',
  'model.embed_dim',
  'model.heads',
  'model.kv_heads',
  'model.head_dim',
  'model.ffw_dim',
)
_MODEL_CONSTANTS = ('model.rope_theta', 'model.norm_eps', 'model.init_std')

_AT_LEAST_1 = (
  *_MODEL_SHAPE,
  'model.logits_chunk_tokens',
  'tokenizer.vocab_size',
  'data.max_prompt_tokens',
  'data.arithmetic.digits',
  'data.arithmetic.max_per_terms',
  'data.task.problems',
  'eval.prompts',
  'eval.samples_per_prompt',
  'eval.every_steps',
  'rollout.prompts_per_step',
  'rollout.responses_per_prompt',
  'rollout.max_response_tokens',
  'sampler.slots',
  'sampler.chunk_tokens',
  'sampler.tensor',
  'sampler.engine_chips',
  'sampler.prefill_tokens',
  'sampler.page_tokens',
  'reward.verify_processes',
  'profile.first_step',
  'profile.steps',
  'filter.max_rounds',
  'advantage.history_window_visits',
  'objective.sampler_correction_limit',
  'overlong.cache_tokens',
  'critic.warmup_steps',
  'optim.warmup_steps',
  'optim.max_skipped_updates',
  'learner.minibatch_prompts',
  'learner.epochs',
  'learner.pack_tokens',
  'learner.micro_batch_rows',
  'checkpoint.every_steps',
  'checkpoint.keep',
  'checkpoint.keep_every_steps',
  'train.steps',
  'plan.prompt_tokens_mean',
  'plan.response_tokens_mean',
  'sft.steps',
  'sft.examples_per_step',
  'sft.warmup_steps',
  'sft.eval_every_steps',
)
_ABOVE_0 = (
  *_MODEL_CONSTANTS,
  'rollout.oversample',
  'sampler.cache_gib',
  'sampler.max_gap_nats',
  'reward.wait_s',
  'reward.verify_s',
  'reward.verify_memory_gib',
  'rollout.temperature',
  'critic.coef',
  'critic.value_clip',
  'critic.lr',
  'critic.max_grad_norm',
  'optim.lr',
  'optim.eps',
  'optim.max_grad_norm',
  'objective.log_ratio_clamp',
  'sft.lr',
  'train.grace_s',
  'train.wait_warn_s',
)
_AT_LEAST_0 = (
  'data.shots',
  'eval.temperature',
  'overlong.factor',
  'objective.clip_high',
  'objective.kl_coef',
  'objective.entropy_coef',
  'optim.weight_decay',
  'train.samples_logged',
  'plan.response_tokens_sigma',
)
_FROM_0_BELOW_1 = (
  'data.arithmetic.held_out_frac',
  'data.task.held_out_frac',
  'optim.b1',
  'optim.b2',
)
_ABOVE_0_TO_1 = (
  'advantage.history_decay',
  'advantage.gamma',
  'eval.top_p',
  'sft.stop_accuracy',
  'plan.kept_frac',
)
_FROM_0_TO_1 = (
  'data.arithmetic.worked_frac',
  'advantage.gae_lambda',
  'eval.min_p',
  'objective.clip_low',
)
_GAE = ('advantage.gamma', 'advantage.gae_lambda')
_OWN_CRITIC = ('critic.lr', 'critic.warmup_steps', 'critic.max_grad_norm')
_GROUP_ADVANTAGE = ('advantage.scale', 'advantage.baseline')
_AT_LEAST_2 = (
  'data.arithmetic.min_terms',
  'data.arithmetic.terms',
)
_BOUNDS = (
  (_AT_LEAST_1, lambda value: value >= 1, 'at least 1'),
  (_AT_LEAST_2, lambda value: value >= 2, 'at least 2'),
  (_ABOVE_0, lambda value: value > 0, 'above 0'),
  (_AT_LEAST_0, lambda value: value >= 0, 'at least 0'),
  (_FROM_0_BELOW_1, lambda value: 0 <= value < 1, 'at least 0 and below 1'),
  (_FROM_0_TO_1, lambda value: 0 <= value <= 1, 'from 0 to 1'),
  (_ABOVE_0_TO_1, lambda value: 0 < value <= 1, 'above 0, at most 1'),
  (('eval.top_k',), lambda value: value >= -1, 'at least 0, or -1'),
  (('objective.ratio_max',), lambda value: value > 1, 'above 1'),
  (
    ('seed', 'data.task.seed'),
    lambda value: 0 <= value < 2**32,
    'from 0 to 2**32 - 1',
  ),
)


def validate(config: ml_collections.ConfigDict) -> None:
  """Checks every rule.

  Raises:
    ConfigError: names the rule, the values and the flags to change.
  """
  _check_alone(config)
  config_relations.check(config)


def _unused(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns how the paths of keys begin that have no effect as things are."""
  sources = config_data_relations.sources(config)
  groups = (
    (config.model.path, (*_MODEL_SHAPE, *_MODEL_CONSTANTS)),
    (config.model.path or config.tokenizer.path, ('tokenizer.vocab_size',)),
    ('arithmetic' not in sources, ('data.arithmetic.',)),
    (not any(s.startswith('task:') for s in sources), ('data.task.',)),
    (not config.filter.enabled, ('filter.',)),
    (not config.overlong.enabled, ('overlong.cache_', 'overlong.factor')),
    (config.advantage.estimator != 'group', _GROUP_ADVANTAGE),
    (config.advantage.estimator != 'smooth', ('advantage.history_',)),
    (config.advantage.estimator != 'gae', ('critic.', *_GAE)),
    (not config.critic.shares_layers, ('critic.coef',)),
    (config.critic.shares_layers, _OWN_CRITIC),
    (config.objective.bounds != 'dac', ('objective.ratio_max',)),
    (config.objective.kl_coef == 0, ('objective.kl_',)),
    (
      config.objective.sampler_correction == 'none',
      ('objective.sampler_correction_',),
    ),
  )
  return tuple(path for unused, paths in groups if unused for path in paths)


def _check_alone(config: ml_collections.ConfigDict) -> None:
  """Checks the values that can be judged one by one."""
  unused = _unused(config)
  for path, choices in _CHOICES.items():
    words = ', '.join(str(choice) for choice in choices)
    config_fault.require(
      path.startswith(unused) or config[path] in choices,
      f'{path} ({config[path]}) must be one of {words}',
      path,
    )
  config_fault.require(
    '' not in config.rollout.stop_strings,
    f'rollout.stop_strings ({tuple(config.rollout.stop_strings)}) must hold '
    'no empty text: every response has it from the start',
    'rollout.stop_strings',
  )
  for source, weight in config.data.mixture:
    config_fault.require(
      weight > 0,
      f'the weight of {source!r} in data.mixture ({weight}) must be above 0',
      'data.mixture',
    )
  for paths, holds, words in _BOUNDS:
    for path in paths:
      value = config[path]
      config_fault.require(
        value is None or path.startswith(unused) or holds(value),
        f'{path} ({value}) must be {words}',
        path,
      )

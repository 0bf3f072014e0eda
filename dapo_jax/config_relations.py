"""The rules that the values of a configuration keep together."""

import ml_collections

from dapo_jax import config_data_relations, config_fault


def check(config: ml_collections.ConfigDict) -> None:
  """Checks what one value says of another.

  Raises:
    ConfigError: names the rule, the values and the flags to change.
  """
  _check_mesh(config)
  _check_model(config)
  _check_attention(config)
  config_data_relations.check(config)
  _check_lengths(config)
  _check_objective(config)
  _check_update(config)


def _check_mesh(config: ml_collections.ConfigDict) -> None:
  """Checks what can be said of the mesh before the devices are counted."""
  paths = ('mesh.data', 'mesh.fsdp', 'mesh.tensor')
  for path in paths:
    config_fault.require(
      config[path] == -1 or config[path] >= 1,
      f'{path} ({config[path]}) must be at least 1, or -1 for what is left',
      path,
    )
  free = [path for path in paths if config[path] == -1]
  config_fault.require(
    len(free) <= 1,
    f'at most one mesh axis can be -1, not {" and ".join(free)}',
    *free,
  )


def _check_model(config: ml_collections.ConfigDict) -> None:
  """Checks the shape of a model with random weights."""
  if config.model.path:
    return
  model = config.model
  config_fault.require(
    model.heads % model.kv_heads == 0,
    f'model.heads ({model.heads}) must be divisible by model.kv_heads '
    f'({model.kv_heads})',
    'model.heads',
    'model.kv_heads',
  )
  config_fault.require(
    model.head_dim % 2 == 0,
    f'model.head_dim ({model.head_dim}) must be even: rotary embeddings turn '
    'pairs',
    'model.head_dim',
  )
  splits = (
    ('mesh.fsdp', ('model.embed_dim',)),
    ('mesh.tensor', ('model.heads', 'model.kv_heads', 'model.ffw_dim')),
    ('sampler.tensor', ('model.heads', 'model.kv_heads', 'model.ffw_dim')),
  )
  for shards, sizes in splits:
    for size in sizes:
      config_fault.require(
        config[shards] == -1 or config[size] % config[shards] == 0,
        f'{size} ({config[size]}) must be divisible by {shards} '
        f'({config[shards]}), which can be {_divisors(config[size])}',
        shards,
        size,
      )


def _check_attention(config: ml_collections.ConfigDict) -> None:
  """Checks that the way attention is computed can express the rows."""
  config_fault.require(
    not (config.model.attention == 'splash' and config.learner.share_prompts),
    'learner.share_prompts (True) is beyond model.attention (splash), which '
    'knows segments but no prompt that several of them see: it must be false '
    'or none, or model.attention dense or chunked',
    'learner.share_prompts',
    'model.attention',
  )


def _check_lengths(config: ml_collections.ConfigDict) -> None:
  """Checks the lengths, in tokens, against each other."""
  response = config.rollout.max_response_tokens
  cache = config.overlong.cache_tokens
  config_fault.require(
    not config.overlong.enabled or cache <= response,
    f'overlong.cache_tokens ({cache}) must be at most '
    f'rollout.max_response_tokens ({response})',
    'overlong.cache_tokens',
    'rollout.max_response_tokens',
  )
  longest = config.data.max_prompt_tokens + response
  pack = config.learner.pack_tokens
  config_fault.require(
    pack is None or pack >= longest,
    f'learner.pack_tokens ({pack}) must be at least data.max_prompt_tokens + '
    f'rollout.max_response_tokens ({config.data.max_prompt_tokens} + '
    f'{response} = {longest})',
    'learner.pack_tokens',
  )


def _check_objective(config: ml_collections.ConfigDict) -> None:
  """Checks the rewards and the bounds on the ratio."""
  right, wrong = config.reward.right, config.reward.wrong
  config_fault.require(
    right > wrong,
    f'reward.right ({right}) must be above reward.wrong ({wrong})',
    'reward.right',
    'reward.wrong',
  )
  no_answer = config.reward.no_answer
  config_fault.require(
    no_answer is None or no_answer <= wrong,
    f'reward.no_answer ({no_answer}) must be at most reward.wrong ({wrong}), '
    'or none',
    'reward.no_answer',
  )
  _check_dual_clip(config.objective)
  _check_combinations(config)
  _check_group_advantage(config.advantage)


def _check_dual_clip(c: ml_collections.ConfigDict) -> None:
  """Checks that the dual clip is further out than the upper bound.

  Dynamic bounds are a token's own, up to `ratio_max` and without an order to
  it: there it only has to leave a ratio of 1 alone.
  """
  if c.dual_clip is None:
    return
  fixed = c.bounds == 'fixed'
  config_fault.require(
    c.dual_clip > 1 + (c.clip_high if fixed else 0),
    f'objective.dual_clip ({c.dual_clip}) must be above '
    + (f'1 + objective.clip_high (1 + {c.clip_high})' if fixed else '1')
    + ', or none',
    'objective.dual_clip',
  )


def _check_combinations(config: ml_collections.ConfigDict) -> None:
  """Checks that what is asked for has the effect that is meant.

  Refused is an option that is switched on by its own value while another
  choice makes it idle. The values of a feature that is off as a whole
  (`advantage.gamma` without a critic, say) are not looked at.
  """
  c = config.objective
  config_fault.require(
    c.surrogate == 'clipped' or c.dual_clip is None,
    f'objective.dual_clip ({c.dual_clip}) bounds the clipped surrogate: it '
    f'must be none where objective.surrogate is {c.surrogate}',
    'objective.dual_clip',
    'objective.surrogate',
  )
  group_size = config.rollout.responses_per_prompt
  config_fault.require(
    group_size >= 2
    or (config.advantage.estimator == 'gae' and not config.filter.enabled),
    f'rollout.responses_per_prompt ({group_size}) must be at least 2: one '
    'response has no group to compare with, unless advantage.estimator is gae '
    'and filter.enabled is false',
    'rollout.responses_per_prompt',
    'advantage.estimator',
    'filter.enabled',
  )
  config_fault.require(
    c.ratio == 'token' or c.log_ratio_clamp is None,
    f'objective.log_ratio_clamp ({c.log_ratio_clamp}) bounds the ratio of a '
    f'token: it must be none where objective.ratio is {c.ratio}',
    'objective.log_ratio_clamp',
    'objective.ratio',
  )
  config_fault.require(
    not (c.kl_straight_through and c.kl_coef > 0 and c.kl_place == 'reward'),
    'objective.kl_straight_through (True) chooses a gradient, and a divergence '
    'taken off the reward has none: it must be false where objective.kl_place '
    'is reward',
    'objective.kl_straight_through',
    'objective.kl_place',
  )
  truncated = config.overlong.truncated
  config_fault.require(
    not c.count_masked or truncated == 'masked',
    'objective.count_masked (True) counts responses that are left out of the '
    f'loss: it must be false where overlong.truncated is {truncated}, not '
    'masked',
    'objective.count_masked',
    'overlong.truncated',
  )


def _check_group_advantage(c: ml_collections.ConfigDict) -> None:
  """Checks that what only `group` looks at is not given to other estimators."""
  for key, default in (('scale', 'group'), ('baseline', 'mean')):
    config_fault.require(
      c.estimator == 'group' or c[key] == default,
      f'advantage.{key} ({c[key]}) is of the estimator group: it must be '
      f'{default} where advantage.estimator is {c.estimator}',
      f'advantage.{key}',
      'advantage.estimator',
    )


def _check_update(config: ml_collections.ConfigDict) -> None:
  """Checks that prompts are cut into whole minibatches, rows into shards."""
  prompts = config.rollout.prompts_per_step
  minibatch = config.learner.minibatch_prompts
  config_fault.require(
    prompts % minibatch == 0,
    f'rollout.prompts_per_step ({prompts}) must be divisible by '
    f'learner.minibatch_prompts ({minibatch} prompts = '
    f'{minibatch * config.rollout.responses_per_prompt} responses), so it can '
    f'be {_divisors(prompts)}',
    'learner.minibatch_prompts',
    'rollout.prompts_per_step',
  )
  rows = config.learner.micro_batch_rows
  data, fsdp = config.mesh.data, config.mesh.fsdp
  if rows is None or -1 in (data, fsdp):
    return  # so many as there are shards, or as there are devices
  config_fault.require(
    rows % (data * fsdp) == 0,
    f'learner.micro_batch_rows ({rows}) must be divisible by mesh.data x '
    f'mesh.fsdp ({data} x {fsdp} = {data * fsdp}), which can be '
    f'{_divisors(rows)}',
    'learner.micro_batch_rows',
  )


def _divisors(number: int) -> str:
  return ', '.join(str(d) for d in range(1, number + 1) if number % d == 0)

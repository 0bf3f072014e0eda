"""The rules that the values of a configuration keep, alone and together.

A rule is checked only where it matters: the options of a feature that is off
are not looked at, nor is a key whose value is None. `validate` needs no file
and no device, so it can judge a run for machines that are not at hand.
"""

import ml_collections


class ConfigError(ValueError):
  """A fault in what the user set; its text is one line that says the remedy."""


_CHOICES = {
  'model.compute_dtype': ('float32', 'bfloat16'),
  'model.remat': ('none', 'dots', 'full'),
  'data.template': ('plain', 'dapo', 'chat'),
  'filter.on_limit': ('error', 'train_partial', 'accept_uniform'),
  'advantage.ddof': (0, 1),
  'advantage.scale': ('group', 'none'),
  'objective.aggregation': (
    'token_mean',
    'group_token_mean',
    'sequence_mean',
    'only_token_mean',
    'constant',
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
  'eval.prompts',
  'eval.samples_per_prompt',
  'eval.every_steps',
  'rollout.prompts_per_step',
  'rollout.max_response_tokens',
  'sampler.slots',
  'sampler.chunk_tokens',
  'sampler.tensor',
  'filter.max_rounds',
  'overlong.cache_tokens',
  'optim.warmup_steps',
  'learner.minibatch_prompts',
  'learner.epochs',
  'learner.pack_tokens',
  'learner.micro_batch_rows',
  'checkpoint.every_steps',
  'checkpoint.keep',
  'train.steps',
  'sft.steps',
  'sft.examples_per_step',
  'sft.warmup_steps',
  'sft.eval_every_steps',
)
_ABOVE_0 = (
  *_MODEL_CONSTANTS,
  'rollout.oversample',
  'rollout.temperature',
  'optim.lr',
  'optim.eps',
  'optim.max_grad_norm',
  'sft.lr',
)
_AT_LEAST_0 = (
  'data.shots',
  'eval.temperature',
  'overlong.factor',
  'objective.clip_high',
  'optim.weight_decay',
  'train.samples_logged',
)
_FROM_0_BELOW_1 = (
  'data.arithmetic.held_out_frac',
  'objective.clip_low',
  'optim.b1',
  'optim.b2',
)
_FROM_0_TO_1 = ('data.arithmetic.worked_frac',)
_AT_LEAST_2 = (
  'data.arithmetic.min_terms',
  'data.arithmetic.terms',
  'rollout.responses_per_prompt',
)
_BOUNDS = (
  (_AT_LEAST_1, lambda value: value >= 1, 'at least 1'),
  (_AT_LEAST_2, lambda value: value >= 2, 'at least 2'),
  (_ABOVE_0, lambda value: value > 0, 'above 0'),
  (_AT_LEAST_0, lambda value: value >= 0, 'at least 0'),
  (_FROM_0_BELOW_1, lambda value: 0 <= value < 1, 'at least 0 and below 1'),
  (_FROM_0_TO_1, lambda value: 0 <= value <= 1, 'from 0 to 1'),
  (('sft.stop_accuracy',), lambda value: 0 < value <= 1, 'above 0, at most 1'),
  (('seed',), lambda value: 0 <= value < 2**32, 'from 0 to 2**32 - 1'),
)


def validate(config: ml_collections.ConfigDict) -> None:
  """Checks every rule.

  Raises:
    ConfigError: names the rule, the values and the flags to change.
  """
  _check_alone(config)
  _check_mesh(config)
  _check_model(config)
  _check_arithmetic(config)
  _check_template(config)
  _check_eval(config)
  _check_lengths(config)
  _check_objective(config)
  _check_update(config)


def _require(holds: bool, rule: str, *paths: str) -> None:
  """Raises a ConfigError of `rule` and the flags that change `paths`."""
  if not holds:
    flags = ' or '.join(f'--config.{path}' for path in paths)
    raise ConfigError(f'{rule}; change {flags}')


def _unused(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns how the paths of keys begin that have no effect as things are."""
  groups = (
    (config.model.path, (*_MODEL_SHAPE, *_MODEL_CONSTANTS)),
    (config.model.path or config.tokenizer.path, ('tokenizer.vocab_size',)),
    (config.data.source != 'arithmetic', ('data.arithmetic.',)),
    (not config.filter.enabled, ('filter.',)),
    (not config.overlong.enabled, ('overlong.',)),
  )
  return tuple(path for unused, paths in groups if unused for path in paths)


def _check_alone(config: ml_collections.ConfigDict) -> None:
  """Checks the values that can be judged one by one."""
  unused = _unused(config)
  for path, choices in _CHOICES.items():
    words = ', '.join(str(choice) for choice in choices)
    _require(
      path.startswith(unused) or config[path] in choices,
      f'{path} ({config[path]}) must be one of {words}',
      path,
    )
  for paths, holds, words in _BOUNDS:
    for path in paths:
      value = config[path]
      _require(
        value is None or path.startswith(unused) or holds(value),
        f'{path} ({value}) must be {words}',
        path,
      )


def _check_mesh(config: ml_collections.ConfigDict) -> None:
  """Checks what can be said of the mesh before the devices are counted."""
  paths = ('mesh.data', 'mesh.fsdp', 'mesh.tensor')
  for path in paths:
    _require(
      config[path] == -1 or config[path] >= 1,
      f'{path} ({config[path]}) must be at least 1, or -1 for what is left',
      path,
    )
  free = [path for path in paths if config[path] == -1]
  _require(
    len(free) <= 1,
    f'at most one mesh axis can be -1, not {" and ".join(free)}',
    *free,
  )


def _check_model(config: ml_collections.ConfigDict) -> None:
  """Checks the shape of a model with random weights."""
  if config.model.path:
    return
  model = config.model
  _require(
    model.heads % model.kv_heads == 0,
    f'model.heads ({model.heads}) must be divisible by model.kv_heads '
    f'({model.kv_heads})',
    'model.heads',
    'model.kv_heads',
  )
  _require(
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
      _require(
        config[shards] == -1 or config[size] % config[shards] == 0,
        f'{size} ({config[size]}) must be divisible by {shards} '
        f'({config[shards]})',
        shards,
        size,
      )


def _check_arithmetic(config: ml_collections.ConfigDict) -> None:
  """Checks that there are sums to make."""
  c = config.data.arithmetic
  _require(
    config.data.source != 'arithmetic' or c.min_terms <= c.terms,
    f'data.arithmetic.min_terms ({c.min_terms}) must be at most '
    f'data.arithmetic.terms ({c.terms})',
    'data.arithmetic.min_terms',
    'data.arithmetic.terms',
  )


def _check_template(config: ml_collections.ConfigDict) -> None:
  """Checks that a chat has a form."""
  _require(
    config.data.template != 'chat'
    or bool(config.model.path or config.tokenizer.path),
    'data.template chat is the form of a model that exists: it needs '
    'model.path, or a tokenizer.path',
    'data.template',
    'model.path',
    'tokenizer.path',
  )


def _check_eval(config: ml_collections.ConfigDict) -> None:
  """Checks that there are problems to evaluate and that samples differ."""
  if not config.eval.source:
    _require(
      config.data.source == 'arithmetic',
      f'eval.source must name a JSONL file: data.source ({config.data.source}) '
      'holds no problems out for evaluation',
      'eval.source',
    )
    _require(
      config.data.arithmetic.held_out_frac > 0,
      'data.arithmetic.held_out_frac (0.0) must be above 0, or eval.source '
      'name a JSONL file',
      'data.arithmetic.held_out_frac',
      'eval.source',
    )
  samples = config.eval.samples_per_prompt
  _require(
    config.eval.temperature > 0 or samples == 1,
    f'eval.samples_per_prompt ({samples}) must be 1 at eval.temperature 0: '
    'greedy samples of a problem are all the same',
    'eval.samples_per_prompt',
    'eval.temperature',
  )


def _check_lengths(config: ml_collections.ConfigDict) -> None:
  """Checks the lengths, in tokens, against each other."""
  response = config.rollout.max_response_tokens
  cache = config.overlong.cache_tokens
  _require(
    not config.overlong.enabled or cache <= response,
    f'overlong.cache_tokens ({cache}) must be at most '
    f'rollout.max_response_tokens ({response})',
    'overlong.cache_tokens',
    'rollout.max_response_tokens',
  )
  longest = config.data.max_prompt_tokens + response
  pack = config.learner.pack_tokens
  _require(
    pack is None or pack >= longest,
    f'learner.pack_tokens ({pack}) must be at least data.max_prompt_tokens + '
    f'rollout.max_response_tokens ({config.data.max_prompt_tokens} + '
    f'{response} = {longest})',
    'learner.pack_tokens',
  )


def _check_objective(config: ml_collections.ConfigDict) -> None:
  """Checks the rewards and the bounds on the ratio."""
  right, wrong = config.reward.right, config.reward.wrong
  _require(
    right > wrong,
    f'reward.right ({right}) must be above reward.wrong ({wrong})',
    'reward.right',
    'reward.wrong',
  )
  dual, high = config.objective.dual_clip, config.objective.clip_high
  _require(
    dual is None or dual > 1 + high,
    f'objective.dual_clip ({dual}) must be above 1 + objective.clip_high '
    f'(1 + {high}), or none',
    'objective.dual_clip',
  )


def _check_update(config: ml_collections.ConfigDict) -> None:
  """Checks that prompts are cut into whole minibatches, rows into shards."""
  prompts = config.rollout.prompts_per_step
  minibatch = config.learner.minibatch_prompts
  divisors = [str(d) for d in range(1, prompts + 1) if prompts % d == 0]
  _require(
    prompts % minibatch == 0,
    f'rollout.prompts_per_step ({prompts}) must be divisible by '
    f'learner.minibatch_prompts ({minibatch} prompts = '
    f'{minibatch * config.rollout.responses_per_prompt} responses), so it can '
    f'be {", ".join(divisors)}',
    'learner.minibatch_prompts',
    'rollout.prompts_per_step',
  )
  rows = config.learner.micro_batch_rows
  data, fsdp = config.mesh.data, config.mesh.fsdp
  _require(
    -1 in (data, fsdp) or rows % (data * fsdp) == 0,
    f'learner.micro_batch_rows ({rows}) must be divisible by mesh.data x '
    f'mesh.fsdp ({data} x {fsdp} = {data * fsdp})',
    'learner.micro_batch_rows',
  )

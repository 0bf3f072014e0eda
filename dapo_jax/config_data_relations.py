"""The rules between where prompts come from, their form and their grading."""

import ml_collections

from dapo_jax import config_fault

# What `rewards.graders` has; that module is not imported, for rules are told
# before anything is.
_GRADERS = ('equivalence', 'equivalence_box', 'dapo', 'dapo_strict_box')


def check(config: ml_collections.ConfigDict) -> None:
  """Checks what is said of the data, the grader and the evaluation.

  Raises:
    ConfigError: names the rule, the values and the flags to change.
  """
  _check_source(config)
  _check_arithmetic(config)
  _check_template(config)
  _check_grader(config)
  _check_eval(config)


def sources(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns all that names where prompts come from, '' left out."""
  mixed = (source for source, _ in config.data.mixture)
  named = (config.data.source, *mixed, config.eval.source)
  return tuple(source for source in named if source)


def _check_source(config: ml_collections.ConfigDict) -> None:
  """Checks that prompts are named: the papers' configs leave that open."""
  source = config.data.source
  mixed = [name for name, _ in config.data.mixture]
  config_fault.require(
    bool(source or mixed),
    "data.source ('') must name a file of problems, or be arithmetic",
    'data.source',
  )
  config_fault.require(
    not (source and mixed),
    f"data.source ({source}) must be '' where data.mixture names the sources",
    'data.source',
    'data.mixture',
  )
  config_fault.require(
    '' not in mixed, "data.mixture must not name the source ''", 'data.mixture'
  )
  twice = [name for name in mixed if mixed.count(name) > 1]
  config_fault.require(
    not twice,
    f'data.mixture must name each source once, not '
    f'{next(iter(twice), "")!r} {len(twice)} times',
    'data.mixture',
  )
  config_fault.require(
    not mixed or config.data.tail == 'keep',
    f'data.tail ({config.data.tail}) must be keep where data.mixture is '
    'given: the epochs of its sources do not end together',
    'data.tail',
    'data.mixture',
  )


def _check_arithmetic(config: ml_collections.ConfigDict) -> None:
  """Checks that there are sums to make."""
  c = config.data.arithmetic
  config_fault.require(
    'arithmetic' not in sources(config) or c.min_terms <= c.terms,
    f'data.arithmetic.min_terms ({c.min_terms}) must be at most '
    f'data.arithmetic.terms ({c.terms})',
    'data.arithmetic.min_terms',
    'data.arithmetic.terms',
  )


def _check_template(config: ml_collections.ConfigDict) -> None:
  """Checks that a chat has a form."""
  config_fault.require(
    not config.data.template.startswith('chat')
    or bool(config.model.path or config.tokenizer.path),
    f'data.template {config.data.template} is the form of a model that exists: '
    'it needs model.path, or a tokenizer.path',
    'data.template',
    'model.path',
    'tokenizer.path',
  )


def _check_grader(config: ml_collections.ConfigDict) -> None:
  """Checks that answers are looked for where they are asked for."""
  grader, template = config.reward.grader, config.data.template
  config_fault.require(
    grader in _GRADERS or ':' in grader,
    f'reward.grader ({grader}) must be one of {", ".join(_GRADERS)}, '
    'MODULE:FUNCTION or FILE.py:FUNCTION',
    'reward.grader',
  )
  config_fault.require(
    template not in ('dapo', 'chat_dapo') or not grader.endswith('_box'),
    f'data.template {template} asks for a line `Answer:`, and reward.grader '
    f'{grader} reads boxes alone',
    'data.template',
    'reward.grader',
  )
  config_fault.require(
    template != 'chat_boxed' or grader != 'dapo',
    f'data.template {template} asks for a box, and reward.grader {grader} '
    'reads the line `Answer:` alone',
    'data.template',
    'reward.grader',
  )
  no_answer = config.reward.no_answer
  config_fault.require(
    ':' not in grader or no_answer is None,
    f'reward.no_answer ({no_answer}) must be none where reward.grader is a '
    f"function of yours ({grader}): its score is the reward, whether there's "
    'an answer or not',
    'reward.no_answer',
    'reward.grader',
  )


def _check_eval(config: ml_collections.ConfigDict) -> None:
  """Checks that there are problems to evaluate and that samples differ."""
  _check_held_out(config)
  samples = config.eval.samples_per_prompt
  config_fault.require(
    config.eval.temperature > 0 or samples == 1,
    f'eval.samples_per_prompt ({samples}) must be 1 at eval.temperature 0: '
    'greedy samples of a problem are all the same',
    'eval.samples_per_prompt',
    'eval.temperature',
  )


def _check_held_out(config: ml_collections.ConfigDict) -> None:
  """Checks that something is held out of what is generated, or named."""
  evaluated = [config.eval.source] if config.eval.source else sources(config)
  sections = {
    'data.arithmetic': 'arithmetic' in evaluated,
    'data.task': any(name.startswith('task:') for name in evaluated),
  }
  generated = [path for path, used in sections.items() if used]
  if not config.eval.source:
    named = ', '.join(evaluated)
    config_fault.require(
      bool(generated),
      'eval.source must name a file of problems: '
      f'{"data.mixture" if config.data.mixture else "data.source"} ({named}) '
      'holds no problems out for evaluation',
      'eval.source',
    )
  paths = [f'{section}.held_out_frac' for section in generated]
  config_fault.require(
    not paths or any(config[path] > 0 for path in paths),
    f'{" or ".join(paths)} (0.0) must be above 0, or eval.source '
    'name a file of problems',
    *paths,
    'eval.source',
  )

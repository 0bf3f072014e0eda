"""Tests of config_rules.py: which values are refused, and in what words."""

from absl.testing import absltest, parameterized

from configs import base
from dapo_jax import config_fault, config_keys, config_rules
from dapo_jax.data import templates


def _config(changes):
  """Returns the defaults with `changes`, which no parser has looked at."""
  config = base.get_config()
  config.update_from_flattened_dict(changes)
  return config


class RulesCase(parameterized.TestCase):
  def assert_refused(self, changes, message):
    """Checks that the changed defaults are refused in these words."""
    with self.assertRaises(config_fault.ConfigError) as caught:
      config_rules.validate(_config(changes))
    self.assertEqual(str(caught.exception), message)


class AloneTest(RulesCase):
  def test_defaults_are_valid(self):
    config_rules.validate(base.get_config())

  def test_every_number_has_a_rule(self):
    together = {
      'mesh.data',
      'mesh.fsdp',
      'mesh.tensor',
      'objective.dual_clip',
      'reward.right',
      'reward.wrong',
      'reward.no_answer',
    }
    alone = {'advantage.ddof'}.union(*(b[0] for b in config_rules._BOUNDS))
    numbers = {
      path
      for path, key in config_keys.known_keys().items()
      if key.kind in (int, float)
    }
    self.assertSetEqual(alone | together, numbers)
    self.assertEmpty(alone & together)

  def test_every_choice_is_a_key(self):
    self.assertContainsSubset(config_rules._CHOICES, config_keys.known_keys())

  def test_the_choices_of_a_template_are_those_that_there_are(self):
    self.assertEqual(config_rules._CHOICES['data.template'], templates.NAMES)

  @parameterized.parameters(
    ('model.layers', 0, 'at least 1'),
    ('sampler.slots', 0, 'at least 1'),
    ('filter.max_rounds', 0, 'at least 1'),
    ('overlong.cache_tokens', 0, 'at least 1'),
    ('learner.pack_tokens', 0, 'at least 1'),
    ('eval.samples_per_prompt', 0, 'at least 1'),
    ('optim.warmup_steps', 0, 'at least 1'),
    ('data.arithmetic.terms', 1, 'at least 2'),
    ('data.arithmetic.min_terms', 1, 'at least 2'),
    ('data.shots', -1, 'at least 0'),
    ('rollout.temperature', 0.0, 'above 0'),
    ('rollout.oversample', 0.0, 'above 0'),
    ('reward.wait_s', 0.0, 'above 0'),
    ('train.grace_s', 0.0, 'above 0'),
    ('optim.lr', 0.0, 'above 0'),
    ('optim.lr', float('nan'), 'above 0'),
    ('eval.temperature', -0.5, 'at least 0'),
    ('eval.top_k', -2, 'at least 0, or -1'),
    ('eval.top_p', 0.0, 'above 0, at most 1'),
    ('eval.top_p', 1.1, 'above 0, at most 1'),
    ('eval.min_p', -0.1, 'from 0 to 1'),
    ('eval.min_p', 1.1, 'from 0 to 1'),
    ('objective.clip_high', -0.1, 'at least 0'),
    ('objective.clip_low', 1.1, 'from 0 to 1'),
    ('objective.clip_low', -0.1, 'from 0 to 1'),
    ('rollout.responses_per_prompt', 0, 'at least 1'),
    ('data.arithmetic.held_out_frac', 1.0, 'at least 0 and below 1'),
    ('data.arithmetic.worked_frac', 1.1, 'from 0 to 1'),
    ('sft.stop_accuracy', 1.5, 'above 0, at most 1'),
    ('seed', -1, 'from 0 to 2**32 - 1'),
    ('seed', 2**32, 'from 0 to 2**32 - 1'),
  )
  def test_number_out_of_range(self, path, value, rule):
    self.assert_refused(
      {path: value},
      f'{path} ({value}) must be {rule}; change --config.{path}',
    )

  @parameterized.parameters(
    ('data.task.problems', 0, 'at least 1'),
    ('data.task.seed', -1, 'from 0 to 2**32 - 1'),
    ('data.task.held_out_frac', 1.0, 'at least 0 and below 1'),
  )
  def test_number_of_tasks_out_of_range(self, path, value, rule):
    message = f'{path} ({value}) must be {rule}; change --config.{path}'
    for key in ('data.source', 'eval.source'):
      self.assert_refused({path: value, key: 'task:gcd'}, message)
    mixed = {'data.source': '', 'data.mixture': (('task:gcd', 1),)}
    self.assert_refused({path: value, **mixed}, message)
    config_rules.validate(_config({path: value}))  # there are no tasks

  @parameterized.parameters(0, -1.5)
  def test_weight_out_of_range(self, weight):
    mixed = (('arithmetic', 1), ('task:gcd', weight))
    self.assert_refused(
      {'data.source': '', 'data.mixture': mixed},
      f"the weight of 'task:gcd' in data.mixture ({weight}) must be above 0; "
      'change --config.data.mixture',
    )

  @parameterized.parameters(
    ('objective.clip_low', 0.0),
    ('objective.clip_high', 0.0),
    ('optim.weight_decay', 0.0),
    ('train.samples_logged', 0),
    ('sft.stop_accuracy', 1.0),
    ('rollout.oversample', 0.001),
    ('eval.top_k', -1),
    ('eval.top_k', 0),
    ('eval.top_p', 1.0),
    ('eval.min_p', 1.0),
    ('rollout.stop_strings', ('\n\n', 'Q:')),
    ('seed', 2**32 - 1),
  )
  def test_end_of_a_range_is_accepted(self, path, value):
    config_rules.validate(_config({path: value}))

  def test_an_empty_stop_string_is_refused(self):
    self.assert_refused(
      {'rollout.stop_strings': ('Q:', '')},
      "rollout.stop_strings (('Q:', '')) must hold no empty text: every "
      'response has it from the start; change --config.rollout.stop_strings',
    )

  @parameterized.parameters(
    ('filter.on_limit', 'stop', 'error, train_partial, accept_uniform'),
    ('advantage.scale', 'mean', 'group, batch, none'),
    ('advantage.ddof', 2, '0, 1'),
    (
      'objective.aggregation',
      'mean',
      'token_mean, group_token_mean, sequence_mean, only_token_mean, constant',
    ),
    (
      'data.template',
      'words',
      'plain, dapo, boxed, chat, chat_dapo, chat_boxed',
    ),
    ('data.unwinnable', 'lose', 'drop, keep'),
    ('data.overlong', 'cut', 'error, drop'),
    ('data.tail', 'cut', 'keep, drop'),
    ('model.compute_dtype', 'float16', 'float32, bfloat16'),
    ('model.remat', 'all', 'none, dots, attention, full, offload'),
    ('model.attention', 'flash', 'auto, dense, chunked, splash'),
  )
  def test_choice_lists_the_choices(self, path, value, choices):
    self.assert_refused(
      {path: value},
      f'{path} ({value}) must be one of {choices}; change --config.{path}',
    )

  @parameterized.parameters(
    {'filter.enabled': False, 'filter.max_rounds': 0},
    {'filter.enabled': False, 'filter.on_limit': ''},
    {'overlong.enabled': False, 'overlong.cache_tokens': 0},
    {'overlong.enabled': False, 'overlong.cache_tokens': 99_999},
    {'model.path': 'folder', 'model.heads': 0},
    {'model.path': 'folder', 'model.heads': 3},
    {'tokenizer.path': 'folder', 'tokenizer.vocab_size': 0},
    {
      'data.source': 'a.jsonl',
      'eval.source': 'b.jsonl',
      'data.arithmetic.terms': 0,
    },
  )
  def test_options_of_what_is_off_are_not_looked_at(self, **changes):
    config_rules.validate(_config(changes))


if __name__ == '__main__':
  absltest.main()

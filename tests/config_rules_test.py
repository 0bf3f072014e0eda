"""Tests of config_rules.py: which values are refused, and in what words."""

from absl.testing import absltest, parameterized

from configs import base
from dapo_jax import config_keys, config_rules


def _config(changes):
  """Returns the defaults with `changes`, which no parser has looked at."""
  config = base.get_config()
  config.update_from_flattened_dict(changes)
  return config


class RulesCase(parameterized.TestCase):
  def assert_refused(self, changes, message):
    """Checks that the changed defaults are refused in these words."""
    with self.assertRaises(config_rules.ConfigError) as caught:
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

  @parameterized.parameters(
    ('model.layers', 0, 'at least 1'),
    ('sampler.slots', 0, 'at least 1'),
    ('filter.max_rounds', 0, 'at least 1'),
    ('overlong.cache_tokens', 0, 'at least 1'),
    ('learner.pack_tokens', 0, 'at least 1'),
    ('eval.samples_per_prompt', 0, 'at least 1'),
    ('optim.warmup_steps', 0, 'at least 1'),
    ('rollout.responses_per_prompt', 1, 'at least 2'),
    ('data.arithmetic.terms', 1, 'at least 2'),
    ('data.arithmetic.min_terms', 1, 'at least 2'),
    ('data.shots', -1, 'at least 0'),
    ('rollout.temperature', 0.0, 'above 0'),
    ('rollout.oversample', 0.0, 'above 0'),
    ('optim.lr', 0.0, 'above 0'),
    ('optim.lr', float('nan'), 'above 0'),
    ('eval.temperature', -0.5, 'at least 0'),
    ('objective.clip_high', -0.1, 'at least 0'),
    ('objective.clip_low', 1.0, 'at least 0 and below 1'),
    ('objective.clip_low', -0.1, 'at least 0 and below 1'),
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
    ('objective.clip_low', 0.0),
    ('objective.clip_high', 0.0),
    ('optim.weight_decay', 0.0),
    ('train.samples_logged', 0),
    ('sft.stop_accuracy', 1.0),
    ('rollout.oversample', 0.001),
    ('seed', 2**32 - 1),
  )
  def test_end_of_a_range_is_accepted(self, path, value):
    config_rules.validate(_config({path: value}))

  @parameterized.parameters(
    ('filter.on_limit', 'stop', 'error, train_partial, accept_uniform'),
    ('advantage.scale', 'batch', 'group, none'),
    ('advantage.ddof', 2, '0, 1'),
    (
      'objective.aggregation',
      'mean',
      'token_mean, group_token_mean, sequence_mean, only_token_mean, constant',
    ),
    ('data.template', 'words', 'plain, dapo, chat'),
    ('model.compute_dtype', 'float16', 'float32, bfloat16'),
    ('model.remat', 'all', 'none, dots, full'),
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


class TogetherTest(RulesCase):
  def test_minibatches_divide_the_rollout(self):
    self.assert_refused(
      {
        'rollout.prompts_per_step': 32,
        'rollout.responses_per_prompt': 8,
        'learner.minibatch_prompts': 5,
      },
      'rollout.prompts_per_step (32) must be divisible by '
      'learner.minibatch_prompts (5 prompts = 40 responses), so it can be '
      '1, 2, 4, 8, 16, 32; change --config.learner.minibatch_prompts or '
      '--config.rollout.prompts_per_step',
    )

  @parameterized.parameters(1, 8, 32)
  def test_divisors_of_the_rollout_are_accepted(self, minibatch):
    config_rules.validate(
      _config(
        {
          'rollout.prompts_per_step': 32,
          'learner.minibatch_prompts': minibatch,
        }
      )
    )

  def test_micro_batch_is_split_over_the_row_axes(self):
    changes = {
      'mesh.data': 2,
      'mesh.fsdp': 4,
      'learner.micro_batch_rows': 12,
    }
    self.assert_refused(
      changes,
      'learner.micro_batch_rows (12) must be divisible by mesh.data x '
      'mesh.fsdp (2 x 4 = 8); change --config.learner.micro_batch_rows',
    )
    config_rules.validate(_config(changes | {'learner.micro_batch_rows': 16}))
    # Nothing to check while an axis is unknown.
    config_rules.validate(_config(changes | {'mesh.fsdp': -1}))

  def test_one_mesh_axis_may_be_free(self):
    self.assert_refused(
      {'mesh.data': -1},
      'at most one mesh axis can be -1, not mesh.data and mesh.fsdp; change '
      '--config.mesh.data or --config.mesh.fsdp',
    )

  @parameterized.parameters(0, -2)
  def test_mesh_axis_has_devices(self, size):
    self.assert_refused(
      {'mesh.tensor': size},
      f'mesh.tensor ({size}) must be at least 1, or -1 for what is left; '
      'change --config.mesh.tensor',
    )

  def test_query_heads_share_key_heads_evenly(self):
    self.assert_refused(
      {'model.heads': 5},
      'model.heads (5) must be divisible by model.kv_heads (2); change '
      '--config.model.heads or --config.model.kv_heads',
    )

  def test_rotary_embedding_needs_pairs(self):
    self.assert_refused(
      {'model.head_dim': 33},
      'model.head_dim (33) must be even: rotary embeddings turn pairs; change '
      '--config.model.head_dim',
    )

  @parameterized.parameters(
    ('mesh.tensor', 8, 'model.heads', 4),
    ('mesh.tensor', 4, 'model.kv_heads', 2),
    ('sampler.tensor', 4, 'model.kv_heads', 2),
    ('mesh.fsdp', 3, 'model.embed_dim', 128),
  )
  def test_model_is_split_evenly(self, axis, shards, size, value):
    self.assert_refused(
      {axis: shards},
      f'{size} ({value}) must be divisible by {axis} ({shards}); change '
      f'--config.{axis} or --config.{size}',
    )

  def test_feed_forward_is_split_evenly(self):
    self.assert_refused(
      {'mesh.tensor': 2, 'model.ffw_dim': 511},
      'model.ffw_dim (511) must be divisible by mesh.tensor (2); change '
      '--config.mesh.tensor or --config.model.ffw_dim',
    )

  def test_overlong_interval_fits_the_response(self):
    changes = {
      'rollout.max_response_tokens': 64,
      'overlong.cache_tokens': 65,
    }
    self.assert_refused(
      changes,
      'overlong.cache_tokens (65) must be at most '
      'rollout.max_response_tokens (64); change '
      '--config.overlong.cache_tokens or '
      '--config.rollout.max_response_tokens',
    )
    config_rules.validate(_config(changes | {'overlong.cache_tokens': 64}))

  def test_row_holds_the_longest_sequence(self):
    changes = {
      'data.max_prompt_tokens': 64,
      'rollout.max_response_tokens': 5000,
      'learner.pack_tokens': 5063,
    }
    self.assert_refused(
      changes,
      'learner.pack_tokens (5063) must be at least data.max_prompt_tokens + '
      'rollout.max_response_tokens (64 + 5000 = 5064); change '
      '--config.learner.pack_tokens',
    )
    config_rules.validate(_config(changes | {'learner.pack_tokens': 5064}))

  def test_right_pays_more_than_wrong(self):
    self.assert_refused(
      {'reward.right': 0.0, 'reward.wrong': 0.0},
      'reward.right (0.0) must be above reward.wrong (0.0); change '
      '--config.reward.right or --config.reward.wrong',
    )

  def test_dual_clip_leaves_the_upper_bound_alone(self):
    self.assert_refused(
      {'objective.dual_clip': 1.28},
      'objective.dual_clip (1.28) must be above 1 + objective.clip_high '
      '(1 + 0.28), or none; change --config.objective.dual_clip',
    )
    config_rules.validate(_config({'objective.dual_clip': 1.3}))

  def test_greedy_samples_are_all_the_same(self):
    changes = {'eval.temperature': 0.0}
    self.assert_refused(
      changes,
      'eval.samples_per_prompt (8) must be 1 at eval.temperature 0: greedy '
      'samples of a problem are all the same; change '
      '--config.eval.samples_per_prompt or --config.eval.temperature',
    )
    config_rules.validate(_config(changes | {'eval.samples_per_prompt': 1}))

  def test_the_fewest_terms_are_at_most_the_most(self):
    self.assert_refused(
      {'data.arithmetic.min_terms': 3},
      'data.arithmetic.min_terms (3) must be at most data.arithmetic.terms '
      '(2); change --config.data.arithmetic.min_terms or '
      '--config.data.arithmetic.terms',
    )

  def test_chat_is_the_form_of_a_model_that_exists(self):
    changes = {'data.template': 'chat'}
    self.assert_refused(
      changes,
      'data.template chat is the form of a model that exists: it needs '
      'model.path, or a tokenizer.path; change --config.data.template or '
      '--config.model.path or --config.tokenizer.path',
    )
    for path in ('model.path', 'tokenizer.path'):
      config_rules.validate(_config(changes | {path: 'folder'}))

  def test_file_of_prompts_needs_a_file_to_evaluate_on(self):
    self.assert_refused(
      {'data.source': 'train.jsonl'},
      'eval.source must name a JSONL file: data.source (train.jsonl) holds no '
      'problems out for evaluation; change --config.eval.source',
    )

  def test_arithmetic_must_hold_problems_out(self):
    self.assert_refused(
      {'data.arithmetic.held_out_frac': 0.0},
      'data.arithmetic.held_out_frac (0.0) must be above 0, or eval.source '
      'name a JSONL file; change --config.data.arithmetic.held_out_frac or '
      '--config.eval.source',
    )


if __name__ == '__main__':
  absltest.main()

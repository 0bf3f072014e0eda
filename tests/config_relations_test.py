"""Tests of config_relations.py: values that do not go together."""

from absl.testing import absltest, parameterized

from configs import base
from dapo_jax import config_fault, config_relations, config_rules


def _config(changes):
  """Returns the defaults with `changes`, which no parser has looked at."""
  config = base.get_config()
  config.update_from_flattened_dict(changes)
  return config


class RulesCase(parameterized.TestCase):
  def assert_refused(self, changes, message):
    """Checks that the changed defaults are refused in these words."""
    with self.assertRaises(config_fault.ConfigError) as caught:
      config_relations.check(_config(changes))
    self.assertEqual(str(caught.exception), message)


class TogetherTest(RulesCase):
  @parameterized.parameters(
    ({'filter.enabled': False},),
    ({'advantage.estimator': 'gae'},),
  )
  def test_one_response_has_no_group(self, changes):
    changes = changes | {'rollout.responses_per_prompt': 1}
    self.assert_refused(
      changes,
      'rollout.responses_per_prompt (1) must be at least 2: one response has '
      'no group to compare with, unless advantage.estimator is gae and '
      'filter.enabled is false; change --config.rollout.responses_per_prompt '
      'or --config.advantage.estimator or --config.filter.enabled',
    )

  def test_splash_and_shared_prompts_exclude_each_other(self):
    for share in (None, False):
      config_rules.validate(
        _config({'model.attention': 'splash', 'learner.share_prompts': share})
      )
    self.assert_refused(
      {'model.attention': 'splash', 'learner.share_prompts': True},
      'learner.share_prompts (True) is beyond model.attention (splash), which '
      'knows segments but no prompt that several of them see: it must be false '
      'or none, or model.attention dense or chunked; change '
      '--config.learner.share_prompts or --config.model.attention',
    )

  def test_a_critic_needs_no_group(self):
    config_rules.validate(
      _config(
        {
          'rollout.responses_per_prompt': 1,
          'filter.enabled': False,
          'advantage.estimator': 'gae',
        }
      )
    )

  def test_no_answer_earns_no_more_than_a_wrong_one(self):
    config_rules.validate(_config({'reward.no_answer': -1.0}))
    self.assert_refused(
      {'reward.no_answer': 0.0},
      'reward.no_answer (0.0) must be at most reward.wrong (-1.0), or none; '
      'change --config.reward.no_answer',
    )

  def test_what_another_setting_makes_idle_is_refused(self):
    self.assert_refused(
      {'objective.surrogate': 'cispo', 'objective.dual_clip': 3.0},
      'objective.dual_clip (3.0) bounds the clipped surrogate: it must be '
      'none where objective.surrogate is cispo; change '
      '--config.objective.dual_clip or --config.objective.surrogate',
    )
    self.assert_refused(
      {'objective.ratio': 'sequence', 'objective.log_ratio_clamp': 20.0},
      'objective.log_ratio_clamp (20.0) bounds the ratio of a token: it must '
      'be none where objective.ratio is sequence; change '
      '--config.objective.log_ratio_clamp or --config.objective.ratio',
    )

  @parameterized.product(
    estimator=('smooth', 'gae'),
    # The key, what it is set to, and what it must be.
    setting=(
      ('scale', 'none', 'group'),
      ('scale', 'batch', 'group'),
      ('baseline', 'leave_one_out', 'mean'),
    ),
  )
  def test_other_estimators_have_no_options_of_a_group(
    self, estimator, setting
  ):
    key, value, default = setting
    changes = {f'advantage.{key}': value}
    config_rules.validate(_config(changes))
    self.assert_refused(
      changes | {'advantage.estimator': estimator},
      f'advantage.{key} ({value}) is of the estimator group: it must be '
      f'{default} where advantage.estimator is {estimator}; change '
      f'--config.advantage.{key} or --config.advantage.estimator',
    )

  def test_a_reward_passes_no_gradient(self):
    changes = {
      'objective.kl_place': 'reward',
      'objective.kl_straight_through': True,
    }
    config_rules.validate(_config(changes))  # there is no divergence
    self.assert_refused(
      changes | {'objective.kl_coef': 0.1},
      'objective.kl_straight_through (True) chooses a gradient, and a '
      'divergence taken off the reward has none: it must be false where '
      'objective.kl_place is reward; change '
      '--config.objective.kl_straight_through or --config.objective.kl_place',
    )

  def test_what_is_counted_must_be_masked(self):
    changes = {'objective.count_masked': True}
    self.assert_refused(
      changes,
      'objective.count_masked (True) counts responses that are left out of the '
      'loss: it must be false where overlong.truncated is as_graded, not '
      'masked; change --config.objective.count_masked or '
      '--config.overlong.truncated',
    )
    config_rules.validate(_config(changes | {'overlong.truncated': 'masked'}))

  @parameterized.parameters(
    ('objective.ratio_max', 0.5, {'objective.bounds': 'dac'}),
    ('objective.kl_estimator', 'k9', {'objective.kl_coef': 0.1}),
    ('critic.lr', 0.0, {'advantage.estimator': 'gae'}),
    ('advantage.gamma', 0.0, {'advantage.estimator': 'gae'}),
    ('advantage.history_decay', 0.0, {'advantage.estimator': 'smooth'}),
    (
      'objective.sampler_correction_limit',
      0.5,
      {'objective.sampler_correction': 'token_mask'},
    ),
  )
  def test_an_option_counts_where_its_feature_is_on(self, path, value, on):
    config_rules.validate(_config({path: value}))
    with self.assertRaises(config_fault.ConfigError):
      config_rules.validate(_config({path: value, **on}))

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
      'mesh.fsdp (2 x 4 = 8), which can be 1, 2, 3, 4, 6, 12; change '
      '--config.learner.micro_batch_rows',
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
    ('mesh.tensor', 8, 'model.heads', 4, '1, 2, 4'),
    ('mesh.tensor', 4, 'model.kv_heads', 2, '1, 2'),
    ('sampler.tensor', 4, 'model.kv_heads', 2, '1, 2'),
    ('mesh.fsdp', 3, 'model.embed_dim', 128, '1, 2, 4, 8, 16, 32, 64, 128'),
  )
  def test_model_is_split_evenly(self, axis, shards, size, value, fit):
    self.assert_refused(
      {axis: shards},
      f'{size} ({value}) must be divisible by {axis} ({shards}), which can be '
      f'{fit}; change --config.{axis} or --config.{size}',
    )

  def test_feed_forward_is_split_evenly(self):
    self.assert_refused(
      {'mesh.tensor': 2, 'model.ffw_dim': 511},
      'model.ffw_dim (511) must be divisible by mesh.tensor (2), which can be '
      '1, 7, 73, 511; change --config.mesh.tensor or --config.model.ffw_dim',
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

  def test_dual_clip_of_dynamic_bounds_is_above_1(self):
    # There clip_high is no ratio: 20 allows the bound to be ratio_max always.
    changes = {'objective.bounds': 'dac', 'objective.clip_high': 20.0}
    config_rules.validate(_config(changes | {'objective.dual_clip': 10.0}))
    self.assert_refused(
      changes | {'objective.dual_clip': 1.0},
      'objective.dual_clip (1.0) must be above 1, or none; change '
      '--config.objective.dual_clip',
    )


if __name__ == '__main__':
  absltest.main()

"""Tests of `training.setting_changes`."""

import copy

from absl.testing import absltest, parameterized

import tiny_run
from configs import base
from dapo_jax.training import setting_changes


class BetweenTest(parameterized.TestCase):
  def _changed(self, path, value):
    config = tiny_run.config().to_dict()
    *sections, key = path.split('.')
    here = changed = copy.deepcopy(config)
    for section in sections:
      here = here[section]
    self.assertIn(key, here)
    here[key] = value
    return config, changed

  @parameterized.parameters(
    ('optim.lr', 0.5),
    ('train.steps', 99),
    ('checkpoint.keep', 9),
    ('eval.prompts', 5),
    ('sampler.slots', 16),
    ('mesh.tensor', 2),
    ('model.remat', 'full'),
    ('model.attention', 'chunked'),
    ('learner.share_prompts', True),
    ('learner.pack_tokens', 77),
    ('learner.micro_batch_rows', 4),
    ('filter.on_limit', 'error'),
    ('filter.max_rounds', 77),
    ('sft.lr', 0.5),
    ('sft.steps', 9),
    ('reward.verify_processes', 9),
    # What they name is compared by `origin`.
    ('tokenizer.path', 'moved'),
    ('model.path', 'moved'),
  )
  def test_what_may_change_is_told(self, path, value):
    saved, now = self._changed(path, value)
    [found] = setting_changes.between(saved, now)
    self.assertStartsWith(found, f'{path}: ')
    self.assertEndsWith(found, f' -> {value!r}')

  @parameterized.parameters(
    ('seed', 1),
    ('optim.b1', 0.5),
    ('optim.warmup_steps', 7),
    ('model.layers', 3),
    ('model.compute_dtype', 'bfloat16'),
    ('data.source', 'other.jsonl'),
    ('data.shuffle', False),
    ('data.arithmetic.digits', 2),
    ('data.mixture', (('a.jsonl', 3), ('arithmetic', 1))),
    ('data.tail', 'drop'),
    ('data.task.seed', 1),
    ('rollout.prompts_per_step', 8),
    ('rollout.temperature', 0.5),
    ('rollout.stop_strings', ('Q:',)),
    ('filter.enabled', False),
    ('objective.clip_high', 0.2),
    ('objective.dual_clip', 10.0),
    ('learner.minibatch_prompts', 1),
    ('overlong.factor', 2.0),
    ('sft.examples_per_step', 9),
  )
  def test_what_the_state_depends_on_may_not(self, path, value):
    saved, now = self._changed(path, value)
    with self.assertRaises(ValueError) as caught:
      setting_changes.between(saved, now)
    self.assertIn(f'{path}: ', str(caught.exception))
    self.assertIn(f' -> {value!r}', str(caught.exception))
    self.assertIn('--workdir', str(caught.exception))

  def test_no_change_is_none(self):
    config = tiny_run.config().to_dict()
    self.assertEqual(setting_changes.between(config, config), [])

  def test_all_that_may_not_are_told_at_once(self):
    saved = {'seed': 0, 'optim': {'b1': 0.9, 'lr': 1.0}}
    now = {'seed': 1, 'optim': {'b1': 0.8, 'lr': 2.0}}
    with self.assertRaisesRegex(
      ValueError, r'\(optim\.b1: 0\.9 -> 0\.8; seed: 0 -> 1\)'
    ):
      setting_changes.between(saved, now)

  def test_a_key_that_came_or_went_is_a_change(self):
    for saved, now, text in (
      ({'a': 1}, {}, 'a: 1 -> no such key'),
      ({}, {'a': 1}, 'a: no such key -> 1'),
      ({'a': None}, {}, 'a: None -> no such key'),
    ):
      with self.assertRaisesRegex(ValueError, text):
        setting_changes.between(saved, now)


class WithDefaultsTest(absltest.TestCase):
  def test_keys_that_came_later_have_their_defaults(self):
    whole = base.get_config().to_dict()
    whole['optim']['lr'] = 0.5
    older = copy.deepcopy(whole)
    del older['checkpoint']['folder'], older['sft']
    self.assertEqual(setting_changes.with_defaults(older), whole)
    # It is the saved value that counts, and the argument stays as it is.
    self.assertNotIn('sft', older)

  def test_a_later_key_that_is_set_is_a_change(self):
    older = base.get_config().to_dict()
    del older['data']['tail']
    now = base.get_config().to_dict()
    saved = setting_changes.with_defaults(older)
    self.assertEqual(setting_changes.between(saved, now), [])
    now['data']['tail'] = 'drop'
    with self.assertRaisesRegex(ValueError, "data.tail: 'keep' -> 'drop'"):
      setting_changes.between(saved, now)

  def test_a_key_that_is_gone_is_a_change(self):
    older = base.get_config().to_dict()
    older['objective']['gone'] = 0
    with self.assertRaisesRegex(ValueError, 'objective.gone: 0 -> no such key'):
      setting_changes.between(
        setting_changes.with_defaults(older), base.get_config().to_dict()
      )


if __name__ == '__main__':
  absltest.main()

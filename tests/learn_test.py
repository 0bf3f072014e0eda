"""Tests of `training.learn`: one step's learning, whole, on a tiny policy."""

import tempfile
from unittest import mock

import jax
import numpy as np
import safetensors
from absl.testing import absltest, parameterized

import tiny_engine
import tiny_groups
import tiny_run
import tolerances
from dapo_jax.monitor import catalogue, timers
from dapo_jax.parallel import job as job_lib
from dapo_jax.training import (
  assemble,
  checkpoint,
  learn,
  losses,
  minibatches,
  packing,
  trainer,
)

_PPO = {'advantage.estimator': 'gae', 'filter.enabled': False}
_SHARED = {**_PPO, 'critic.shares_layers': True}
_KL = {'objective.kl_coef': 0.1}
_DCPO = {
  'advantage.estimator': 'smooth',
  'advantage.ddof': 0,
  'objective.bounds': 'dac',
  'objective.clip_low': 0.16,
  'objective.clip_high': 0.2,
  'objective.dual_clip': 10.0,
  'objective.aggregation': 'only_token_mean',
  'filter.enabled': False,
}
_EVERY_TERM = {
  'objective.ratio': 'sequence',
  'objective.kl_coef': 0.1,
  'objective.entropy_coef': 0.1,
  'objective.sampler_correction': 'sequence_truncate',
}


def _groups():
  return [
    tiny_groups.group((1, 0, 0, 0), ordinal=0, lengths=[2, 6, 4, 3]),
    tiny_groups.group((1, 1, 0, 1), ordinal=1, lengths=[5, 1, 7, 2]),
    tiny_groups.group((0, 0, 1, 0), ordinal=2, lengths=[3, 3, 2, 6]),
    tiny_groups.group((0, 1, 1, 0), ordinal=3, lengths=[4, 8, 1, 5]),
  ]


class _Test(parameterized.TestCase):
  def start(self, changes, *, devices=1):
    """Returns (trainer, its first state)."""
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    config = tiny_run.policy_config(changes)
    with tiny_run.devices(devices):
      parts = assemble.build(config, folder.name)
    made = trainer.make_trainer(
      config,
      parts,
      losses.policy_loss(config),
      temperature=config.rollout.temperature,
      with_critic=config.advantage.estimator == 'gae',
    )
    made = trainer.with_reference(made)
    with checkpoint.open_store(folder.name, keep=1) as store:
      state, _ = trainer.start_or_resume(made, store)
    return made, state

  def learn(self, changes=None, *, steps=1, devices=1, known=None, groups=None):
    """Returns what the last of some steps over the same groups leaves."""
    groups = _groups() if groups is None else groups
    made, state = self.start(changes or {}, devices=devices)
    known = known or {}
    for step in range(1, steps + 1):
      found = learn.learn(
        made, state, groups, known, timers.Timers(), step=step
      )
      state, known = found.state, found.advantages.history
      catalogue.check(found.metrics)
    return found

  def distance(self, a, b):
    """Returns how far two policies are from each other."""
    gaps = jax.tree.map(
      lambda x, y: float(np.abs(np.asarray(x) - np.asarray(y)).max()), a, b
    )
    return max(jax.tree.leaves(gaps))


class EveryObjectiveTest(_Test):
  """What `losses_test` takes apart, whole and on many devices."""

  @parameterized.named_parameters(
    ('dapo', {}),
    ('dcpo', _DCPO),
    ('every_term', _EVERY_TERM),
    ('ppo', _PPO),
    ('ppo_shared', _SHARED),
  )
  def test_it_moves_the_policy_on_one_and_on_8_devices_alike(self, changes):
    # The first update has ratio 1 everywhere: a second step has others.
    one = self.learn(changes, steps=2)
    eight = self.learn(changes, steps=2, devices=8)
    self.assertGreater(one.metrics['optim/grad_norm'], 1e-3)
    self.assertLess(one.metrics['policy/ratio_min'], 0.99)
    for name in ('optim/grad_norm', 'policy/loss', 'policy/ratio_mean'):
      np.testing.assert_allclose(
        one.metrics[name],
        eight.metrics[name],
        rtol=1e-3,
        atol=tolerances.F32_ATOL,
        err_msg=name,
      )


# So fast that ratios reach their bounds within three steps.
_LOUD = {'optim.lr': 2e-2, 'optim.warmup_steps': 1}


class ReferenceTest(_Test):
  def test_there_is_none_unless_the_loss_asks(self):
    self.assertIsNone(self.start({})[0].reference)
    self.assertIsNotNone(self.start(_KL)[0].reference)

  def test_it_stays_where_the_run_began(self):
    made, state = self.start({**_KL, **_LOUD})
    first = jax.device_get(state.params)
    found = learn.learn(made, state, _groups(), {}, timers.Timers(), step=1)
    self.assertGreater(self.distance(found.state.params, first), 1e-3)
    self.assertEqual(self.distance(made.reference, first), 0.0)

  @parameterized.parameters('loss', 'reward')
  def test_it_has_no_value_head_where_the_policy_has_one(self, place):
    found = self.learn({**_SHARED, **_KL, 'objective.kl_place': place})
    # Before the first update the policy is the reference.
    self.assertLess(abs(found.metrics['policy/reference_kl_nats']), 1e-6)
    self.assertGreater(found.metrics['optim/grad_norm'], 1e-3)

  def test_it_is_0_at_first_and_the_mean_over_tokens_later(self):
    made, state = self.start({**_KL, **_LOUD})
    first = learn.learn(made, state, _groups(), {}, timers.Timers(), step=1)
    self.assertAlmostEqual(
      first.metrics['policy/reference_kl_nats'], 0.0, places=6
    )
    # Taken apart: each response alone, behind its prompt.
    second = learn.learn(
      made, first.state, _groups(), {}, timers.Timers(), step=2
    )
    packed = minibatches.pack_groups(
      _groups(), made.config, made.parts.mesh, made.parts.shares
    )
    found = []
    moved, _ = self._moved(made)
    for batch in packed:
      at = lambda params, b=batch: np.asarray(
        made.programs.reference_logprobs(params, b.rows, b.micro_batches),
        np.float64,
      )
      gap = at(made.reference) - at(moved.params)
      kl = np.exp(gap) - 1 - gap
      found += packing.take(kl, batch.places)
    np.testing.assert_allclose(
      second.metrics['policy/reference_kl_nats'],
      np.concatenate(found).mean(),
      rtol=1e-4,
    )

  def _moved(self, made):
    """Returns the state after the first step, made again: it is donated."""
    _, state = self.start({**_KL, **_LOUD})
    found = learn.learn(made, state, _groups(), {}, timers.Timers(), step=1)
    return found.state, found.metrics

  def test_in_the_reward_it_changes_advantages(self):
    # In the first step the policy is the reference, and nothing is taken off.
    flags = {**_LOUD, 'objective.kl_coef': 0.5}
    reward = {**flags, 'objective.kl_place': 'reward'}
    np.testing.assert_allclose(
      self.learn(reward).advantages.values,
      self.learn(flags).advantages.values,
      atol=1e-4,
    )
    gap = (
      self.learn(reward, steps=3).advantages.values
      - self.learn(flags, steps=3).advantages.values
    )
    self.assertGreater(np.abs(gap).max(), 1e-2)


class CriticTest(_Test):
  @parameterized.parameters((_PPO,), (_SHARED,))
  def test_it_learns_what_to_expect(self, changes):
    # The head of shared layers learns at the policy's rate.
    changes = {**changes, 'critic.lr': 1e-2, 'critic.warmup_steps': 1}
    changes |= {'optim.lr': 5e-3, 'optim.warmup_steps': 1}
    first = self.learn(changes)
    later = self.learn(changes, steps=12)
    # At first it expects 0 of everything, which explains nothing.
    self.assertAlmostEqual(first.metrics['critic/explained_frac'], 0.0)
    self.assertGreater(later.metrics['critic/explained_frac'], 0.3)
    self.assertLess(
      later.metrics['critic/square_error_mean'],
      first.metrics['critic/square_error_mean'],
    )

  def test_of_its_own_it_leaves_the_policy_alone(self):
    slow, fast = (
      self.learn({**_PPO, 'critic.lr': lr, 'critic.warmup_steps': 1})
      for lr in (1e-5, 1e-1)
    )
    self.assertEqual(self.distance(slow.state.params, fast.state.params), 0.0)
    self.assertGreater(
      self.distance(slow.state.critic.params, fast.state.critic.params), 1e-2
    )

  def test_sharing_layers_it_moves_them(self):
    small, large = (
      self.learn({**_SHARED, 'critic.coef': coef}) for coef in (0.1, 10.0)
    )
    self.assertGreater(self.distance(small.state.params, large.state.params), 0)

  def test_what_is_sampled_and_exported_has_no_value_head(self):
    made, state = self.start(_SHARED)
    self.assertIn('value_head', state.params)
    self.assertNotIn('value_head', made.parts.to_engine(state.params))
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    assemble.export(f'{folder.name}/model', made.parts, state.params)
    file = f'{folder.name}/model/model.safetensors'
    with safetensors.safe_open(file, 'numpy') as weights:
      self.assertEmpty([k for k in weights.keys() if 'value' in k])

  def test_it_begins_as_a_copy_of_the_policy_and_shares_no_memory(self):
    made, state = self.start(_PPO)
    shared = {k: v for k, v in state.critic.params.items() if k in state.params}
    self.assertIn('block', shared)
    for name, weights in shared.items():
      self.assertEqual(self.distance(weights, state.params[name]), 0.0)
    # The policy's arrays are donated; the critic's must outlive them.
    found = learn.learn(made, state, _groups(), {}, timers.Timers(), step=1)
    jax.block_until_ready(found.state.critic)


class NothingToLearnTest(_Test):
  @parameterized.parameters(
    ({},),
    ({'advantage.estimator': 'smooth'},),
    ({'advantage.estimator': 'gae'},),
    ({**_SHARED, **_KL, 'objective.kl_place': 'reward'},),
  )
  def test_a_step_without_groups_moves_nothing(self, changes):
    made, state = self.start(changes)
    before = jax.device_get(state.params)
    with mock.patch.object(job_lib.Job, 'doing') as doing:
      found = learn.learn(made, state, [], {}, timers.Timers(), step=1)
    # Those that wait are not told that it samples.
    doing.assert_called_once_with('the updates of step 1')
    self.assertEqual(self.distance(found.state.params, before), 0.0)
    self.assertEqual(found.metrics['optim/update_count'], 0)
    self.assertNotIn('critic/explained_frac', found.metrics)
    self.assertEqual(found.advantages.values.size, 0)


class CompilationTest(_Test):
  # Of 2 groups of 4 responses of up to 8 tokens to prompts of 3, whose rows
  # of 160 are cut to 40 where that holds them.
  @parameterized.named_parameters(
    ('dapo', {}), ('every_term', _EVERY_TERM), ('ppo', _PPO)
  )
  def test_nothing_compiles_after_the_first_step(self, changes):
    rows = {'learner.pack_tokens': 160, 'learner.micro_batch_rows': 1}
    made, state = self.start({**rows, **changes})

    def step(number, groups):
      nonlocal state
      found = learn.learn(made, state, groups, {}, timers.Timers(), step=number)
      state = found.state
      return found.metrics.get('optim/micro_batch_count', 0)

    long = [
      tiny_groups.group((1, 0, 0, 1), ordinal=i, lengths=[8] * 4)
      for i in range(4)
    ]
    step(1, _groups())
    with tiny_engine.compilations() as compiled:
      # Other lengths, fewer groups and fewer minibatches, and none at all.
      counts = [
        step(2, long),
        step(3, _groups()[:3]),
        step(4, long[:1]),
        step(5, []),
        step(6, _groups()),
      ]
    self.assertEmpty(compiled)
    self.assertGreater(len(set(counts)), 2)


class HistoryTest(_Test):
  def test_sas_remembers_the_groups_it_trained(self):
    found = self.learn(
      {'advantage.estimator': 'smooth', 'advantage.ddof': 0}, steps=3
    )
    history = found.advantages.history
    self.assertCountEqual(history, [g.draw.prompt.id for g in _groups()])
    self.assertEqual({e.visits for e in history.values()}, {3})
    # The same rewards at every visit: the smooth advantage is the plain one.
    plain = self.learn({'advantage.ddof': 0})
    np.testing.assert_allclose(
      found.advantages.values, plain.advantages.values, rtol=1e-9
    )


if __name__ == '__main__':
  absltest.main()

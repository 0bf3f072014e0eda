"""Tests of `training.trainer`."""

import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

import tiny_run
from dapo_jax.training import assemble, checkpoint, losses, trainer


class TrainerTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def _trainer(self, changes=None, *, devices=1, temperature=1.0):
    config = tiny_run.config(changes)
    with tiny_run.devices(devices):
      parts = assemble.build(config, self.folder)
    return trainer.make_trainer(
      config,
      parts,
      losses.supervised_loss,
      temperature=temperature,
      with_critic=False,
    )

  def _start(self, made):
    with checkpoint.open_store(self.folder, keep=2) as store:
      return trainer.start_or_resume(made, store)

  def assert_trees_equal(self, a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)

  def test_it_starts_with_the_initial_weights_and_no_moments(self):
    made = self._trainer()
    state, progress = self._start(made)
    self.assertEqual(progress, checkpoint.Progress())
    self.assert_trees_equal(
      state.params, assemble.initial_params(made.config, made.parts)
    )
    self.assertEqual(
      sum(float(abs(x).sum()) for x in jax.tree.leaves(state.opt_state)), 0.0
    )

  def test_it_goes_on_with_the_newest_checkpoint_on_other_devices_too(self):
    made = self._trainer()
    state, _ = self._start(made)
    state = jax.tree.map(lambda x: x + 1, state)
    progress = checkpoint.Progress(
      checkpoint.Counters(rollout_steps=3), next_ordinal=17, pending=None
    )
    with checkpoint.open_store(self.folder, keep=2) as store:
      store.save(state, progress, made.config.to_dict())
    for devices in (1, min(8, jax.device_count())):
      made = self._trainer(devices=devices)
      restored, found = self._start(made)
      self.assertEqual(found, progress)
      self.assert_trees_equal(jax.device_get(state), jax.device_get(restored))
      jax.tree.map(
        lambda x, where: self.assertEqual(x.sharding, where),
        restored,
        made.programs.shardings,
      )

  def test_the_settings_of_the_optimizer_reach_it(self):
    # Decay alone moves a weight whose gradient is 0: by 0.3 of itself.
    made = self._trainer({'optim.weight_decay': 0.3})
    params = {'block': {'q': jnp.array([2.0, -1.0])}}
    zeros = jax.tree.map(jnp.zeros_like, params)
    direction, _ = made.programs.optimizer.update(
      zeros, made.programs.optimizer.init(params), params
    )
    np.testing.assert_allclose(direction['block']['q'], [0.6, -0.3], rtol=1e-6)

  def test_an_epoch_may_end_with_a_round(self):
    count = len(self._trainer().parts.train_prompts)
    self.assertLen(self._trainer().stream, count)
    # 1.5 times 4 prompts: a multiple of 6.
    drop = {'data.tail': 'drop'}
    self.assertLen(self._trainer(drop).stream, count // 6 * 6)
    with self.assertRaisesRegex(ValueError, r'--config\.data\.tail, '):
      self._trainer({**drop, 'rollout.prompts_per_step': 400})

  def test_prompts_come_in_the_order_of_the_seed(self):
    order = lambda **changes: [
      d.prompt.id for d in self._trainer(changes).stream.take(0, 50)
    ]
    first = order()
    self.assertEqual(order(), first)
    self.assertNotEqual(order(seed=1), first)
    prompts = self._trainer().parts.train_prompts
    unshuffled = order(**{'data.shuffle': False})
    self.assertEqual(unshuffled, [p.id for p in prompts[:50]])
    self.assertNotEqual(unshuffled, first)


if __name__ == '__main__':
  absltest.main()

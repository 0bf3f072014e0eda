"""Tests of `training.update_programs`."""

import jax
from absl.testing import absltest, parameterized

import tiny_model
import tiny_run
from dapo_jax.training import layout, losses, update, update_programs


class ProgramsTest(parameterized.TestCase):
  def _made(self, changes=None):
    config = tiny_run.config(changes)
    mesh = layout.update_mesh(config, jax.devices()[:1])
    model = layout.update_model(config, tiny_model.spec(), mesh)
    return model, update_programs.make(
      config,
      model,
      mesh,
      losses.policy_loss(config),
      temperature=1.0,
      with_critic=config.advantage.estimator == 'gae',
    )

  def test_without_a_critic_the_policy_is_trained_as_it_is(self):
    model, made = self._made()
    self.assertIsNone(made.critic)
    self.assertIs(made.model, model)

  @parameterized.parameters(True, False)
  def test_the_state_is_of_what_is_trained(self, shares_layers):
    model, made = self._made(
      {
        'advantage.estimator': 'gae',
        'critic.shares_layers': shares_layers,
      }
    )
    state = update_programs.abstract_state(made)
    has_head = 'value_head' in state.params
    self.assertEqual(has_head, shares_layers)
    self.assertNotIn('value_head', model.shapes)
    self.assertEqual(state.critic is None, shares_layers)

  def test_the_state_has_the_shapes_that_begin(self):
    model, made = self._made()
    state = update_programs.abstract_state(made)
    begun = jax.eval_shape(
      lambda params: update.TrainState(params, made.optimizer.init(params)),
      model.shapes,
    )
    shapes = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    self.assertEqual(shapes(state), shapes(begun))


if __name__ == '__main__':
  absltest.main()

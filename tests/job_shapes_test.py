"""Tests of `planning.job_shapes`."""

import jax
import jax.numpy as jnp
from absl.testing import absltest

import planned
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.planning import job_shapes, model_shapes

_GAE = {'advantage.estimator': 'gae', 'critic.shares_layers': False}


def _setup(changes=None):
  config = planned.config(changes)
  return job_shapes.setup(config, model_shapes.spec(config), planned.devices())


class HeldTest(absltest.TestCase):
  def test_moments_are_twice_the_parameters(self):
    held = job_shapes.held_bytes(_setup())
    # And the counter of steps.
    self.assertBetween(held['moments'] - 2 * held['params'], 0, 8)
    for name in ('critic', 'critic moments', 'reference'):
      self.assertEqual(held[name], 0)

  def test_a_reference_is_as_large_as_the_policy(self):
    held = job_shapes.held_bytes(_setup({'objective.kl_coef': 0.1}))
    self.assertEqual(held['reference'], held['params'])

  def test_a_critic_of_its_own_has_moments_too(self):
    held = job_shapes.held_bytes(_setup(_GAE))
    self.assertBetween(held['critic moments'] - 2 * held['critic'], 0, 8)
    self.assertGreater(held['critic'], 0.9 * held['params'])

  def test_a_prompt_that_waits_for_slots_is_held(self):
    # Keys and values of 2 layers, a bucket of 16 tokens and a head of 8 of two,
    # 4 B each, and two numbers.
    held = job_shapes.held_bytes(_setup())
    self.assertEqual(held['prefix'], 2 * 2 * 16 * 8 * 4 + 2 * 4)

  def test_rows_of_all_minibatches_are_held(self):
    setup = _setup()
    # Two prompts of four responses; rows of two devices: 4 x 2 x 32 places.
    self.assertEqual(setup.rows_shape, (4, 2, 32))
    # Two minibatches, 8 fields and 2 of what is known, of 4 B a place, over 2.
    self.assertEqual(
      job_shapes.held_bytes(setup)['rows'], 2 * 10 * 4 * (4 * 2 * 32) // 2
    )

  def test_a_device_holds_its_shard(self):
    mesh = mesh_lib.update_mesh(planned.devices(), data=1, fsdp=2, tensor=2)
    rows = jax.ShapeDtypeStruct(
      (3, 4, 5),
      jnp.bfloat16,
      sharding=mesh_lib.row_sharding(mesh, leading_axes=1),
    )
    self.assertEqual(placement.device_bytes(rows), 3 * 2 * 5 * 2)


class CacheTest(absltest.TestCase):
  def test_a_token_takes_keys_and_values_of_all_layers(self):
    # 2 layers of 2 heads of 8 numbers, twice, of 4 bytes.
    for cache in ('dense', 'paged'):
      with self.subTest(cache):
        found = job_shapes.cache_token_bytes(
          _setup({'sampler.cache': cache, 'sampler.page_tokens': 8})
        )
        self.assertAlmostEqual(found, 2 * 2 * 8 * 2 * 4, delta=1)


if __name__ == '__main__':
  absltest.main()

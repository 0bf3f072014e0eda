"""Tests of `parallel.placement`."""

import jax
import numpy as np
from absl.testing import absltest

import tiny_engine
import tiny_model
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement


class ResharderTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    devices = jax.devices()[:8]
    cls.model = tiny_model.model(vocab_size=61, vocab_rows=64)
    update = mesh_lib.update_mesh(devices, data=1, fsdp=4, tensor=2)
    engine = mesh_lib.engine_mesh(devices, tensor=2)
    cls.before, cls.after = (
      mesh_lib.shardings(cls.model.shapes, cls.model.logical_axes, mesh, rules)
      for mesh, rules in (
        (update, mesh_lib.UPDATE_RULES),
        (engine, mesh_lib.ENGINE_RULES),
      )
    )
    cls.to_engine = staticmethod(placement.resharder(cls.after))

  def _params(self, seed):
    host = tiny_model.params(self.model, seed=seed)
    return host, jax.device_put(host, self.before)

  def test_values_are_equal_in_the_engines_layout(self):
    host, params = self._params(0)
    moved = self.to_engine(params)
    jax.tree.map(np.testing.assert_array_equal, moved, host)
    for leaf, sharding in zip(
      jax.tree.leaves(moved), jax.tree.leaves(self.after), strict=True
    ):
      self.assertEqual(leaf.sharding, sharding)
    # [L 2, D 32, N 4, H 12]: split 8 ways before, over 2 of 8 devices after.
    shard = lambda tree: tree['block']['q'].addressable_shards[0].data.shape
    self.assertEqual(shard(params), (2, 8, 2, 12))
    self.assertEqual(shard(moved), (2, 32, 2, 12))

  def test_new_parameters_compile_nothing(self):
    to_engine = placement.resharder(self.after)
    _, params = self._params(0)
    with tiny_engine.compilations() as compiled:
      to_engine(params)
    self.assertLen(compiled, 1)
    host, params = self._params(1)
    with tiny_engine.compilations() as compiled:
      moved = to_engine(params)
    self.assertEmpty(compiled)
    jax.tree.map(np.testing.assert_array_equal, moved, host)

  def test_they_outlive_the_trainers(self):
    host, params = self._params(2)
    moved = self.to_engine(params)
    update = jax.jit(
      lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0
    )
    update(params)
    self.assertTrue(params['block']['q'].is_deleted())
    jax.tree.map(np.testing.assert_array_equal, moved, host)

  def test_they_outlive_the_trainers_on_one_device_too(self):
    one = jax.devices()[:1]
    trainer = mesh_lib.update_mesh(one, data=1, fsdp=1, tensor=1)
    to_engine = placement.resharder(mesh_lib.replicated(mesh_lib.local_mesh()))
    weight = jax.device_put(np.arange(6.0), mesh_lib.replicated(trainer))
    moved = to_engine(weight)
    jax.jit(lambda x: x + 1, donate_argnums=0)(weight)
    self.assertTrue(weight.is_deleted())
    np.testing.assert_array_equal(moved, np.arange(6))


class PutRowsTest(absltest.TestCase):
  def test_each_device_holds_its_rows(self):
    mesh = mesh_lib.update_mesh(jax.devices()[:8], data=2, fsdp=2, tensor=2)
    batch = {'tokens': np.arange(3 * 8 * 5).reshape(3, 8, 5)}
    tokens = placement.put_rows(batch, mesh)['tokens']
    np.testing.assert_array_equal(tokens, batch['tokens'])
    # Device 2 * (2 * data + fsdp) + tensor: data 1, fsdp 0 has rows 4 and 5.
    for shard in tokens.addressable_shards:
      first = 2 * (shard.device.id // 2)
      np.testing.assert_array_equal(
        shard.data, batch['tokens'][:, first : first + 2]
      )


if __name__ == '__main__':
  absltest.main()

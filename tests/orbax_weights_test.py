"""Tests of `dapo_jax.model.orbax_weights`."""

import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import absltest

import tiny_model
from dapo_jax.model import orbax_weights
from dapo_jax.parallel import mesh as mesh_lib


def _shardings(model, count):
  mesh = mesh_lib.update_mesh(
    jax.devices()[:count], data=1, fsdp=count, tensor=1
  )
  return mesh_lib.shardings(
    model.shapes, model.logical_axes, mesh, mesh_lib.UPDATE_RULES
  )


class OrbaxWeightsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.model = tiny_model.model()
    self.params = tiny_model.params(self.model)

  def test_it_is_there_once_it_was_saved(self):
    self.assertFalse(orbax_weights.is_there(self.folder))
    orbax_weights.save(self.folder, self.params)
    self.assertTrue(orbax_weights.is_there(self.folder))

  def test_what_8_devices_save_2_devices_load_bit_for_bit(self):
    split = jax.device_put(self.params, _shardings(self.model, 8))
    orbax_weights.save(self.folder, split)
    shardings = _shardings(self.model, 2)
    loaded = orbax_weights.load(self.folder, self.model, shardings=shardings)
    jax.tree.map(np.testing.assert_array_equal, self.params, loaded)
    jax.tree.map(
      lambda leaf, where: self.assertEqual(leaf.sharding, where),
      loaded,
      shardings,
    )

  def test_another_shape_is_refused_by_name(self):
    orbax_weights.save(self.folder, self.params)
    # 2 layers of embed 32, N 4, H 12 are there.
    deeper = tiny_model.model(layers=3, tied_head=False)
    with self.assertRaises(ValueError) as caught:
      orbax_weights.load(self.folder, deeper, shardings=_shardings(deeper, 1))
    text = str(caught.exception)
    self.assertIn('missing: head [61, 32] float32', text)
    self.assertIn(
      'block/q: expected [3, 32, 4, 12] float32, found [2, 32, 4, 12] float32',
      text,
    )

  def test_what_the_model_lacks_is_refused(self):
    orbax_weights.save(
      self.folder, self.params | {'more': self.params['block']}
    )
    with self.assertRaisesRegex(ValueError, 'unknown: more/q'):
      orbax_weights.load(
        self.folder, self.model, shardings=_shardings(self.model, 1)
      )


if __name__ == '__main__':
  absltest.main()

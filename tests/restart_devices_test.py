"""A run whose number of devices changes each time it goes on."""

import contextlib
import io
import pathlib
import tempfile

import jax
import numpy as np
import safetensors.numpy
from absl.testing import absltest

import tiny_run
import tolerances
from dapo_jax.training import loop

# Devices, the last step done on them, and how the mesh has them.
_PARTS = (
  (1, 1, {}),
  (4, 2, {'mesh.fsdp': 2, 'mesh.tensor': 2, 'sampler.tensor': 2}),
  (8, 3, {'mesh.data': 2, 'mesh.fsdp': 2, 'mesh.tensor': 2}),
  (1, 4, {}),
)
_CHANGES = {'train.samples_logged': 16, 'eval.every_steps': 1}


def _train(folder, steps, devices, mesh):
  config = tiny_run.policy_config({**_CHANGES, 'train.steps': steps, **mesh})
  with tiny_run.devices(devices), contextlib.redirect_stdout(io.StringIO()):
    loop.train(config, str(folder))


class RestartDevicesTest(absltest.TestCase):
  def test_1_then_4_then_8_then_1_devices_equal_1_throughout(self):
    self.assertGreaterEqual(jax.device_count(), 8)
    holder = tempfile.TemporaryDirectory()
    self.addCleanup(holder.cleanup)
    straight, moved = (pathlib.Path(holder.name) / n for n in ('1', '1481'))
    _train(straight, 4, 1, {})
    for devices, steps, mesh in _PARTS:
      _train(moved, steps, devices, mesh)
    self.assertEqual(
      (moved / 'samples.jsonl').read_text(),
      (straight / 'samples.jsonl').read_text(),
    )
    rows = zip(
      tiny_run.metrics_rows(straight),
      tiny_run.metrics_rows(moved),
      strict=True,
    )
    for one, other in rows:
      self.assertEqual(one.keys(), other.keys())
      for name, value in one.items():
        if isinstance(value, int):
          self.assertEqual(value, other[name], name)
        self.assertAlmostEqual(
          value, other[name], delta=tolerances.F32_ATOL, msg=name
        )
    params = [
      safetensors.numpy.load_file(folder / 'model' / 'model.safetensors')
      for folder in (straight, moved)
    ]
    self.assertEqual(params[0].keys(), params[1].keys())
    for name, value in params[0].items():
      np.testing.assert_allclose(
        value, params[1][name], rtol=0, atol=tolerances.F32_ATOL, err_msg=name
      )


if __name__ == '__main__':
  absltest.main()

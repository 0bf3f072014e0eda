"""Tests of `parallel.placement`."""

import jax
import numpy as np
from absl.testing import absltest

from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement


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

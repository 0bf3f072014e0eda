"""Tests of `parallel.placement`."""

from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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


class RowProcessesTest(absltest.TestCase):
  def test_one_process_has_all_rows(self):
    mesh = mesh_lib.update_mesh(jax.devices()[:8], data=2, fsdp=2, tensor=2)
    self.assertEqual(placement.row_processes(8, mesh), [{0}] * 8)

  def test_a_row_is_where_its_devices_are(self):
    # Rows are split over data x fsdp, 2 x 2; the device at [data, fsdp,
    # tensor] is of the process that stands there.
    mesh = _mesh_of([[[0, 0], [1, 1]], [[2, 3], [0, 1]]])
    self.assertEqual(
      placement.row_processes(8, mesh),
      [{0}, {0}, {1}, {1}, {2, 3}, {2, 3}, {0, 1}, {0, 1}],
    )


def _mesh_of(processes) -> Mesh:
  """Returns a mesh over devices of these processes, none of which is there."""
  grid = np.empty(np.shape(processes), object)
  for number, index in enumerate(np.ndindex(grid.shape)):
    grid[index] = mock.Mock(
      spec=jax.Device,
      id=number,
      process_index=int(np.array(processes)[index]),
    )
  return Mesh(grid, ('data', 'fsdp', 'tensor'))


class OnHostTest(parameterized.TestCase):
  @parameterized.parameters(
    PartitionSpec('data', 'tensor'),
    PartitionSpec(None, 'fsdp'),
    PartitionSpec(),
  )
  def test_it_is_the_whole_array(self, *spec):
    mesh = mesh_lib.update_mesh(jax.devices()[:8], data=2, fsdp=2, tensor=2)
    values = np.arange(4 * 6, dtype=np.float32).reshape(4, 6)
    array = jax.device_put(values, NamedSharding(mesh, PartitionSpec(*spec)))
    found = placement.on_host(array)
    self.assertIsInstance(found, np.ndarray)
    np.testing.assert_array_equal(found, values)

  def test_what_is_there_is_taken_as_it_is(self):
    values = np.arange(3)
    self.assertIs(placement.on_host(values), values)


class ToIslandTest(absltest.TestCase):
  def test_each_island_has_all_on_its_devices_alone(self):
    devices = jax.devices()[:8]
    mesh = mesh_lib.update_mesh(devices, data=1, fsdp=4, tensor=2)
    islands = [
      mesh_lib.engine_mesh(devices[i : i + 4], tensor=2) for i in (0, 4)
    ]
    engines = mesh_lib.engines_mesh(devices, islands[0])
    spec = PartitionSpec(None, 'tensor')
    values = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)
    params = {
      'w': jax.device_put(
        values, NamedSharding(mesh, PartitionSpec('fsdp', 'tensor'))
      )
    }
    for island in islands:
      found = placement.to_island(
        jax.jit(lambda p: {'w': 2 * p['w']}),
        params,
        engines={'w': NamedSharding(engines, spec)},
        island={'w': NamedSharding(island, spec)},
      )
      self.assertEqual(found['w'].sharding, NamedSharding(island, spec))
      np.testing.assert_array_equal(found['w'], 2 * values)
      for shard in found['w'].addressable_shards:
        # Every device has half of the columns, and all rows.
        np.testing.assert_array_equal(shard.data, 2 * values[:, shard.index[1]])
        self.assertEqual(shard.data.shape, (8, 3))


if __name__ == '__main__':
  absltest.main()

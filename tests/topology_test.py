"""Tests of the names and devices of TPU slices."""

import collections

import pytest
from absl.testing import absltest, parameterized

from dapo_jax.planning import chips, topology


class ParseTest(parameterized.TestCase):
  # v5p and v4 count cores, two a chip; v5e and v6e chips.
  @parameterized.parameters(
    ('v5p-256', 'v5p:4x4x8', 128),
    ('v5p-8', 'v5p:2x2x1', 4),
    ('v5p-12288', 'v5p:16x16x24', 6144),
    ('v5litepod-256', 'v5e:16x16', 256),
    ('v5litepod-8', 'v5e:2x4', 8),
    ('v6e-1', 'v6e:1x1', 1),
    ('v4-32', 'v4:2x2x4', 16),
  )
  def test_a_name_of_cloud_is_a_grid(self, cloud, name, count):
    found = topology.parse(cloud)
    self.assertEqual(found.name, name)
    self.assertEqual(found.chips, count)
    self.assertEqual(found.cloud_name, cloud)
    self.assertEqual(topology.parse(name), found)

  def test_v5e_is_another_name_of_v5litepod(self):
    self.assertEqual(topology.parse('v5e-16'), topology.parse('v5litepod-16'))

  def test_grids(self):
    found = topology.parse('v5p:4x4x4', num_slices=3)
    self.assertEqual(found, (chips.CHIPS['v5p'], (4, 4, 4), 3))
    self.assertEqual(found.chips, 192)
    self.assertEqual(found.devices, 192)
    self.assertEqual(found.hosts, 48)
    self.assertEqual(topology.parse('v5p:2x2').grid, (2, 2, 1))
    # Two devices a chip.
    self.assertEqual(topology.parse('tpu7x:2x2x1').devices, 8)
    # Cloud has no name for it.
    self.assertEqual(topology.parse('v5p:2x2x6').cloud_name, 'v5p:2x2x6')

  @parameterized.parameters(
    # 96 chips, between 64 and 128.
    (
      'v5p-192',
      'has 192 TensorCores, two a chip; nearest are v5p-128, v5p-256, v5p-384, '
      'v5p-512, and others are named by their grid, as v5p:4x4x8; '
      'change --topology',
    ),
    ('v6e-100', 'has 100 chips; nearest are v6e-32, v6e-64, v6e-128, v6e-256'),
    ('v5p-0', 'nearest are v5p-8'),
    ('v5p:3x4x4', 'has 3 axes, the first two even; nearest are v5p:'),
    ('v5p:4', 'has 3 axes'),
    ('v5p:0x4x4', 'has 3 axes'),
    ('v6e:1x8', 'has 2 axes, the first two even'),
    ('v5e:16x32', 'at most 16x16; nearest are v5e:16x16'),
    ('v5e:4x4x4', 'has 2 axes'),
    ('tpu7x-8', 'by their grid, as tpu7x:2x2x1 or tpu7x:4x4x4'),
    ('v5p_256', 'such as v5p-256'),
    ('h100-8', 'v4, v5e, v5p, v6e, tpu7x'),
    ('v5litepod', 'such as v5litepod-'),
  )
  def test_other_names_are_refused(self, text, message):
    with self.assertRaises(ValueError) as caught:
      topology.parse(text)
    self.assertIn(message, str(caught.exception))
    self.assertStartsWith(str(caught.exception).strip("'"), text)
    self.assertEndsWith(str(caught.exception), 'change --topology')

  def test_no_slices_are_refused(self):
    with self.assertRaisesRegex(ValueError, '--num_slices'):
      topology.parse('v5p-8', num_slices=0)


class DevicesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    pytest.importorskip('libtpu')

  @parameterized.parameters(
    # Slices of several hosts have four chips on each.
    ('v5p:2x2x2', 1, [4, 4]),
    ('v6e:4x4', 1, [4] * 4),
    # A host with eight, with one.
    ('v5e:2x4', 1, [8]),
    ('v6e:1x1', 1, [1]),
    # Both cores of a chip are one device of v4, two of tpu7x.
    ('v4:2x2x1', 1, [4]),
    ('tpu7x:2x2x2', 1, [8, 8]),
    ('v5p:2x2x1', 2, [4, 4]),
    ('v5e:2x4', 2, [8, 8]),
  )
  def test_processes_are_hosts(self, name, slices, expected):
    asked = topology.parse(name, num_slices=slices)
    found = topology.devices(asked)
    self.assertEqual({d.device_kind for d in found}, {asked.chip.device_kind})
    self.assertLen(found, asked.devices)
    hosts = collections.Counter(d.process_index for d in found)
    self.assertEqual([hosts[i] for i in range(len(hosts))], expected)
    self.assertLen(expected, asked.hosts)
    numbers = {getattr(d, 'slice_index', 0) for d in found}
    self.assertEqual(numbers, set(range(slices)))

  def test_the_lack_of_libtpu_is_told(self):
    from jax.experimental import topologies

    def absent(**_):
      raise RuntimeError('JAX TPU support not installed; ...')

    with absltest.mock.patch.object(topologies, 'get_topology_desc', absent):
      with self.assertRaisesRegex(ValueError, r"pip install 'dapo-jax\[tpu\]'"):
        topology.devices(topology.parse('v5p-8'))


class IslandTest(parameterized.TestCase):
  """Which devices stand for an engine's."""

  def setUp(self):
    super().setUp()
    pytest.importorskip('libtpu')

  @parameterized.parameters(('v5e:4x8', 1), ('v6e:4x4', 2), ('v6e:4x4', 1))
  def test_a_part_of_a_grid_is_a_slice_of_its_shape(self, name, hosts):
    slices = topology.parse(name)
    some = [d for d in topology.devices(slices) if d.process_index < hosts]
    found = topology.island(slices, some)
    self.assertLen(found, 4 * hosts)
    # Neighbours are neighbours.
    distance = lambda a, b: sum(
      abs(x - y) for x, y in zip(a.coords, b.coords, strict=True)
    )
    for one, other in zip(found, found[1:], strict=False):
      i, j = found.index(one), found.index(other)
      self.assertEqual(distance(one, other), distance(some[i], some[j]))
    self.assertLen({d.id for d in found}, 4 * hosts)
    self.assertEqual({d.id for d in found}, set(range(4 * hosts)))

  @parameterized.parameters(('v5p:2x2x2', 4), ('v6e:2x4', 8), ('v5e:4x8', 1))
  def test_cubes_whole_slices_and_single_chips_stay(self, name, count):
    slices = topology.parse(name)
    some = topology.devices(slices)[:count]
    self.assertEqual(topology.island(slices, some), some)


class DoubtTest(parameterized.TestCase):
  @parameterized.parameters(
    ('v5e:4x8', 4, True),
    ('v5e:16x16', 8, True),
    ('v5e:4x8', 32, False),
    ('v5e:4x8', 1, False),
    ('v5e:4x4', 4, False),
    ('v6e:16x16', 4, False),
    ('v5p:4x4x8', 4, False),
  )
  def test_large_slices_of_v5e_take_whole_programs(self, name, count, is_in):
    found = topology.doubt(topology.parse(name), count)
    self.assertEqual(found is not None, is_in)


if __name__ == '__main__':
  absltest.main()

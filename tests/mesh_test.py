"""Tests of `parallel.mesh`."""

from unittest import mock

import jax
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding, PartitionSpec

import tiny_model
from dapo_jax.parallel import mesh as mesh_lib


def _update_mesh(data, fsdp, tensor):
  return mesh_lib.update_mesh(
    jax.devices()[:8], data=data, fsdp=fsdp, tensor=tensor
  )


class UpdateMeshTest(parameterized.TestCase):
  @parameterized.parameters(
    ((-1, 2, 2), (2, 2, 2)),
    ((1, -1, 2), (1, 4, 2)),
    ((2, 4, -1), (2, 4, 1)),
    ((8, 1, 1), (8, 1, 1)),
  )
  def test_an_axis_of_minus_one_takes_what_is_left(self, asked, sizes):
    mesh = _update_mesh(*asked)
    self.assertEqual(
      dict(mesh.shape),
      dict(zip(('data', 'fsdp', 'tensor'), sizes, strict=True)),
    )

  def test_tensor_shards_are_neighbours(self):
    devices = jax.devices()[:8]
    grid = _update_mesh(2, 2, 2).devices
    self.assertEqual(grid.flatten().tolist(), devices)

  @parameterized.parameters(
    (2, 2, 1),  # 4 of 8 devices
    (4, 4, 1),
    (-1, 3, 1),  # 3 does not divide 8
    (-1, 16, 1),
    (-1, -1, 2),
    (-1, -1, 8),
    (-1, -1, -1),
  )
  def test_other_products_are_refused_with_numbers_and_flags(self, *asked):
    with self.assertRaises(ValueError) as caught:
      _update_mesh(*asked)
    message = str(caught.exception)
    self.assertIn('({} x {} x {})'.format(*asked), message)
    self.assertIn('the number of devices (8, which 1, 2, 4, 8 div', message)
    self.assertIn('at most one -1', message)
    for axis in ('data', 'fsdp', 'tensor'):
      self.assertIn(f'--config.mesh.{axis}', message)


class EngineMeshTest(parameterized.TestCase):
  @parameterized.parameters((1, 8), (2, 4), (8, 1))
  def test_slots_get_what_tensor_leaves(self, tensor, slots):
    mesh = mesh_lib.engine_mesh(jax.devices()[:8], tensor=tensor)
    self.assertEqual(dict(mesh.shape), {'slot': slots, 'tensor': tensor})

  @parameterized.parameters(3, 16)
  def test_tensor_must_divide_the_devices(self, tensor):
    with self.assertRaisesRegex(
      ValueError,
      rf'\({tensor}\) .* 8 devices of an engine, .* 1, 2, 4, 8; change '
      '--config.sampler.tensor',
    ):
      mesh_lib.engine_mesh(jax.devices()[:8], tensor=tensor)

  def test_the_local_mesh_is_one_device(self):
    mesh = mesh_lib.local_mesh()
    self.assertEqual(mesh.devices.tolist(), [jax.devices()[:1]])


def _devices(*processes):
  """Returns devices of these processes, numbered as they come."""
  return [
    mock.Mock(spec=jax.Device, id=i, process_index=p)
    for i, p in enumerate(processes)
  ]


class DivisorsTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, '1'), (7, '1, 7'), (12, '1, 2, 3, 4, 6, 12'), (16, '1, 2, 4, 8, 16')
  )
  def test_of_a_number(self, number, expected):
    self.assertEqual(mesh_lib.divisors(number), expected)


class IslandsTest(parameterized.TestCase):
  @parameterized.parameters(
    # Processes of an engine, this one, the processes whose devices it has.
    (1, 0, [0, 0]),
    (1, 3, [3, 3]),
    (2, 0, [0, 0, 1, 1]),
    (2, 1, [0, 0, 1, 1]),
    (2, 2, [2, 2, 3, 3]),
    (4, 2, [0, 0, 1, 1, 2, 2, 3, 3]),
  )
  def test_an_engine_has_the_devices_of_neighbours(self, hosts, process, has):
    found = mesh_lib.of_engine(
      _devices(0, 0, 1, 1, 2, 2, 3, 3), hosts=hosts, process=process
    )
    self.assertEqual([d.process_index for d in found], has)

  @parameterized.parameters(
    ([0, 0, 0, 0, 1, 1, 1, 1],),
    ([0, 0, 1, 1, 0, 0, 1, 1],),  # as a torus may be numbered
    ([1, 0, 1, 0, 1, 0, 1, 0],),
  )
  def test_an_engine_is_its_part_of_the_mesh_of_all(self, processes):
    # What is spread over the mesh of all is taken as the engine's own: the
    # devices must stand in one order in both.
    devices = _devices(*processes)
    for hosts in (1, 2):
      engines = [
        mesh_lib.engine_mesh(
          mesh_lib.of_engine(devices, hosts=hosts, process=process), tensor=2
        )
        for process in range(0, 2, hosts)
      ]
      together = mesh_lib.engines_mesh(devices, engines[0])
      self.assertEqual(
        dict(together.shape),
        {'engine': 2 // hosts, 'slot': 2 * hosts, 'tensor': 2},
      )
      for one, part in zip(engines, together.devices, strict=True):
        self.assertEqual(one.devices.tolist(), part.tolist())


class ShardingsTest(parameterized.TestCase):
  def test_what_cannot_be_split_is_told_with_what_could(self):
    mesh = _update_mesh(1, 2, 4)
    shapes = {'k': jax.ShapeDtypeStruct((32, 2, 8), 'float32')}
    axes = {'k': ('embed', 'kv_heads', 'head_dim')}
    with self.assertRaisesRegex(
      ValueError,
      r"'kv_heads' of size 2 can't be split over 4 devices of the mesh axis "
      "'tensor', which can be 1, 2; change --config.mesh.tensor, or",
    ):
      mesh_lib.shardings(shapes, axes, mesh, mesh_lib.UPDATE_RULES)

  @parameterized.product(
    rules=(mesh_lib.UPDATE_RULES, mesh_lib.ENGINE_RULES),
    tied_head=(True, False),
    qkv_bias=(True, False),
  )
  def test_every_weight_has_one(self, rules, tied_head, qkv_bias):
    model = tiny_model.model(
      tied_head=tied_head, qkv_bias=qkv_bias, vocab_size=61, vocab_rows=64
    )
    shardings = mesh_lib.shardings(
      model.shapes, model.logical_axes, _update_mesh(1, 4, 2), rules
    )
    self.assertEqual(
      jax.tree.structure(shardings), jax.tree.structure(model.shapes)
    )
    for leaf in jax.tree.leaves(shardings):
      self.assertIsInstance(leaf, NamedSharding)

  def test_rules_name_the_axes_of_the_decoder_and_no_other(self):
    model = tiny_model.model(tied_head=False)
    axes = jax.tree.leaves(
      model.logical_axes, is_leaf=lambda x: isinstance(x, tuple)
    )
    used = {axis for leaf in axes for axis in leaf}
    self.assertEqual(used, set(mesh_lib.UPDATE_RULES))
    self.assertEqual(used, set(mesh_lib.ENGINE_RULES))

  def test_a_weight_lies_as_its_axes_say(self):
    model = tiny_model.model(vocab_size=61, vocab_rows=64)
    mesh = _update_mesh(1, 4, 2)
    update = mesh_lib.shardings(
      model.shapes, model.logical_axes, mesh, mesh_lib.UPDATE_RULES
    )
    # [L 2, D 32, N 4, H 12] over fsdp 4 x tensor 2, [V 64, D 32] likewise.
    q = model.shapes['block']['q'].shape
    self.assertEqual(update['block']['q'].shard_shape(q), (2, 8, 2, 12))
    self.assertEqual(update['embedding'].shard_shape((64, 32)), (32, 8))
    engine = mesh_lib.shardings(
      model.shapes, model.logical_axes, mesh, mesh_lib.ENGINE_RULES
    )
    self.assertEqual(engine['block']['q'].shard_shape(q), (2, 32, 2, 12))
    self.assertEqual(engine['embedding'].shard_shape((64, 32)), (32, 32))

  def test_every_matrix_is_split_over_fsdp(self):
    model = tiny_model.model(tied_head=False, vocab_size=61, vocab_rows=64)
    shardings = mesh_lib.shardings(
      model.shapes,
      model.logical_axes,
      _update_mesh(1, 4, 2),
      mesh_lib.UPDATE_RULES,
    )
    matrices = [
      sharding
      for path, sharding in jax.tree_util.tree_leaves_with_path(shardings)
      if not path[-1].key.endswith(('norm', 'bias'))
    ]
    # embedding, head, q, k, v, out, gate, up, down.
    self.assertLen(matrices, 9)
    for sharding in matrices:
      self.assertIn('fsdp', sharding.spec)

  @parameterized.parameters(
    # The spec's change, fsdp, tensor, what the message says.
    (dict(embed_dim=34), 4, 2, "'embed' of size 34", 4, 'fsdp'),
    (dict(kv_heads=1), 4, 2, "'kv_heads' of size 1", 2, 'tensor'),
    (dict(ffw_dim=41), 4, 2, "'ffw' of size 41", 2, 'tensor'),
    (dict(), 4, 2, "'vocab' of size 61", 2, 'tensor'),
  )
  def test_an_uneven_axis_is_refused_by_name_and_numbers(
    self, change, fsdp, tensor, axis, count, mesh_axis
  ):
    rows = {} if 'vocab' in axis else {'vocab_rows': 64}
    model = tiny_model.model(**change, **rows)
    with self.assertRaises(ValueError) as caught:
      mesh_lib.shardings(
        model.shapes,
        model.logical_axes,
        _update_mesh(1, fsdp, tensor),
        mesh_lib.UPDATE_RULES,
      )
    message = str(caught.exception)
    weight = 'embedding' if 'vocab' in axis else 'block'
    self.assertStartsWith(message, f"['{weight}']")
    self.assertIn(f'axis {axis} ', message)
    self.assertIn(f'over {count} devices', message)
    self.assertIn(f"'{mesh_axis}'", message)
    self.assertIn('--config.mesh.', message)


class RowsTest(absltest.TestCase):
  def test_rows_are_split_over_data_and_fsdp_alone(self):
    mesh = _update_mesh(2, 2, 2)
    sharding = mesh_lib.row_sharding(mesh, leading_axes=1)
    # [M 3, R 8, T 5] on data 2 x fsdp 2: two rows each.
    self.assertEqual(sharding.shard_shape((3, 8, 5)), (3, 2, 5))
    self.assertEqual(mesh_lib.row_shards(mesh), 4)

  def test_what_is_replicated_is_whole_everywhere(self):
    sharding = mesh_lib.replicated(_update_mesh(2, 2, 2))
    self.assertEqual(sharding.spec, PartitionSpec())
    self.assertEqual(sharding.shard_shape((3, 8)), (3, 8))


if __name__ == '__main__':
  absltest.main()

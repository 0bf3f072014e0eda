"""Tests of what devices send each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import absent_tpus
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.planning import collectives, hlo, topology

_MESH = {'data': 1, 'fsdp': 2, 'tensor': 4}


setUpModule = absent_tpus.forget_cache
tearDownModule = absent_tpus.keep_cache


def _module(*lines, partitions=8):
  body = ''.join(f'  {line}\n' for line in lines)
  return hlo.parse(
    f'HloModule jit_f, num_partitions={partitions}\n\n'
    'ENTRY %main (x: f32[8]) -> f32[8] {\n'
    f'  %x = f32[8] parameter(0)\n{body}  ROOT %y = f32[8] copy(%x)\n}}\n'
  )


def _found(module, mesh):
  return {
    (c.kind, c.axes, c.over_dcn): (c.bytes_sent, c.calls)
    for c in collectives.find(module, mesh)
  }


class GroupsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('{{0,2},{1,3}}', [[0, 2], [1, 3]]),
    ('{}', [[0, 1, 2, 3, 4, 5, 6, 7]]),
    # Numbers in order, cut into rows.
    ('[2,4]<=[8]', [[0, 1, 2, 3], [4, 5, 6, 7]]),
    # 0 1 2 3 / 4 5 6 7, read by columns.
    ('[4,2]<=[2,4]T(1,0)', [[0, 4], [1, 5], [2, 6], [3, 7]]),
    # Place (a, b, c) has the number 4a + 2b + c.
    ("mesh['a'=2,'b'=2,'c'=2] {'b'}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ("mesh['a'=2,'b'=4] {'a','b'}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    # The grid's devices are 0 4 1 5 2 6 3 7.
    (
      "mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}",
      [[0, 4], [1, 5], [2, 6], [3, 7]],
    ),
    (
      "mesh['a'=2,'b'=4], device_ids=([8]) {'a'}",
      [[0, 4], [1, 5], [2, 6], [3, 7]],
    ),
  )
  def test_ways_to_write_them(self, text, expected):
    np.testing.assert_array_equal(collectives.groups(text, 8), expected)


class BytesTest(parameterized.TestCase):
  @parameterized.parameters(
    ('f32[2,3]{1,0:T(8,128)}', 24),
    ('bf16[5]{0:T(8,128)(2,1)S(1)}', 10),
    ('(f32[], /*index=1*/s8[3], pred[2]{0:T(4,128)(4,1)})', 4 + 3 + 2),
    ('f8e4m3fn[4]', 4),
    ('s4[4]', 2),
    ('(bf16[2], u32[], token[])', 8),
  )
  def test_of_a_shape(self, shape, expected):
    self.assertEqual(collectives.nbytes(shape), expected)


class FindTest(parameterized.TestCase):
  # On a mesh of fsdp 2 x tensor 4, whose device (f, t) has the number 4f + t.
  @parameterized.parameters(
    # 800 bytes gathered of 4 parts: a device sends its own and two others'.
    (
      'bf16[400] all-gather(%x), replica_groups=[2,4]<=[8], dimensions={0}',
      ('all-gather', ('tensor',), False),
      600,
    ),
    # The same: its operand of 200 bytes stands before it.
    (
      '(bf16[100], bf16[400]) all-gather-start(%x), replica_groups=[2,4]<=[8]',
      ('all-gather', ('tensor',), False),
      600,
    ),
    # A half each way, there and back.
    (
      'f32[100] all-reduce(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}, '
      'to_apply=%add',
      ('all-reduce', ('fsdp',), False),
      400,
    ),
    (
      '(f32[60], f32[40]) all-reduce-start(%x, %x), replica_groups={}',
      ('all-reduce', ('fsdp', 'tensor'), False),
      2 * 400 * 7 / 8,
    ),
    # What is left of 1,600 bytes.
    (
      'f32[100] reduce-scatter(%x), '
      "replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}",
      ('reduce-scatter', ('tensor',), False),
      1200,
    ),
    (
      'f32[100] all-to-all(%x), replica_groups={{0,1,2,3},{4,5,6,7}}',
      ('all-to-all', ('tensor',), False),
      300,
    ),
    (
      'f32[100] collective-permute(%x), source_target_pairs={{0,4},{4,0}}',
      ('collective-permute', ('fsdp',), False),
      400,
    ),
    # Operand, result and two numbers.
    (
      '(f32[100], f32[100], u32[], u32[]) collective-permute-start(%x), '
      'source_target_pairs={{0,1},{1,2},{2,3},{3,0}}',
      ('collective-permute', ('tensor',), False),
      400,
    ),
  )
  def test_a_collective(self, line, key, sent):
    found = _found(_module(f'%c = {line}'), _MESH)
    self.assertEqual(found, {key: ((sent,), (1.0,))})

  def test_the_end_of_a_started_one_sends_nothing_more(self):
    found = _found(
      _module(
        '%s = (bf16[1], bf16[4]) all-gather-start(%x), '
        'replica_groups=[2,4]<=[8]',
        '%d = bf16[4] all-gather-done(%s)',
      ),
      _MESH,
    )
    self.assertEqual(found[('all-gather', ('tensor',), False)][1], (1.0,))

  def test_a_device_alone_sends_nothing(self):
    line = 'f32[9] all-reduce(%x), replica_groups={{0},{1},{2},{3}}'
    self.assertEmpty(_found(_module(f'%c = {line}'), _MESH))

  def test_of_one_kind_and_axis_all_are_one(self):
    line = 'f32[{}] all-gather(%x), replica_groups=[2,4]<=[8]'
    other = 'f32[{}] all-gather(%x), replica_groups={{{{0,4}},{{1,5}}}}'
    module = _module(
      f'%a = {line.format(4)}',
      f'%b = {line.format(8)}',
      f'%c = {other.format(2)}',
    )
    found = collectives.find(module, _MESH)
    # Three quarters of 16 + 32 bytes, a half of 8; most come first.
    self.assertEqual(
      found,
      (
        ('all-gather', ('tensor',), False, (36.0,), (2.0,)),
        ('all-gather', ('fsdp',), False, (4.0,), (1.0,)),
      ),
    )

  def test_a_fused_reduce_scatter_is_one(self):
    text = """HloModule jit_f, num_partitions=8

%all-reduce-scatter.3.clone (x: f32[400]) -> f32[100] {
  %x = f32[400] parameter(0)
  %a = f32[400] all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %s = f32[100] dynamic-slice(%a, %a), dynamic_slice_sizes={100}
}

ENTRY %main (x: f32[400]) -> f32[100] {
  %x = f32[400] parameter(0)
  ROOT %f = f32[100] fusion(%x), kind=kCustom, calls=%all-reduce-scatter.3.clone
}
"""
    # 1,600 bytes before, three quarters of which are the others'.
    self.assertEqual(
      _found(hlo.parse(text), _MESH),
      {('reduce-scatter', ('tensor',), False): ((1200.0,), (1.0,))},
    )

  def test_several_slices(self):
    send = (
      '%s = (f32[100], u32[], token[]) send(%x, %t), is_host_transfer=true, '
      'frontend_attributes={{_xla_host_transfer_handler_name='
      '"{}",_xla_megascale_transfer_type="ALL_REDUCE"}}'
    )
    mesh = {'data': 6, 'fsdp': 2, 'tensor': 2}
    module = _module(
      # A program is that of a slice: data 2 x fsdp 2 x tensor 2.
      '%c = f32[100] all-reduce(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}',
      send.format('xla_megascale_runtime'),
      # To this machine's memory.
      send.format('xla_pinned_host'),
    )
    self.assertEqual(
      _found(module, mesh),
      {
        ('all-reduce', ('data',), False): ((400.0,), (1.0,)),
        # Three slices: 2/3 of 400 bytes, twice.
        ('all-reduce', ('data',), True): ((400 * 4 / 3,), (1.0,)),
      },
    )


class CompiledTest(absltest.TestCase):
  """Products compiled for TPUs that are not there; seconds each."""

  def setUp(self):
    super().setUp()
    pytest.importorskip('libtpu')

  def _compiled(self, function, arguments, out, *, data, slices=1):
    devices = topology.devices(topology.parse('v5e:2x2', num_slices=slices))
    mesh = mesh_lib.update_mesh(devices, data=data, fsdp=2, tensor=2)
    place = lambda spec: NamedSharding(mesh, P(*spec))
    shapes = [
      jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place(spec))
      for shape, spec in arguments
    ]
    program = jax.jit(function, out_shardings=place(out))
    text = program.lower(*shapes).compile().as_text()
    return _found(hlo.parse(text), mesh.shape)

  def test_weights_are_gathered(self):
    found = self._compiled(
      lambda x, w: x @ w,
      [((8192, 2048), ('fsdp', None)), ((2048, 4096), ('fsdp', 'tensor'))],
      ('fsdp', 'tensor'),
      data=1,
    )
    # 2048 x (4096 / 2) of two bytes, of which a device has and sends half.
    self.assertEqual(
      found, {('all-gather', ('fsdp',), False): ((2**22,), (1.0,))}
    )

  def test_gradients_are_added_over_slices(self):
    rows = ('data', 'fsdp')
    found = self._compiled(
      lambda x, y: x.T @ y,
      [((4096, 2048), (rows, 'tensor')), ((4096, 1024), (rows, None))],
      ('tensor', 'fsdp'),
      data=2,
      slices=2,
    )
    # A device has sums over its rows for (2048 / 2) x 1024 weights: 2 MiB, of
    # which it keeps half in its slice and gives half to another device. Of its
    # half it exchanges halves, there and back, with its like in the other.
    self.assertEqual(
      found,
      {
        ('reduce-scatter', ('fsdp',), False): ((2**20,), (1.0,)),
        ('all-reduce', ('data',), True): ((2**20,), (1.0,)),
      },
    )


if __name__ == '__main__':
  absltest.main()

"""Tests of `planning.compiling`."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

import absent_tpus
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.planning import compiling, step_programs, topology

setUpModule = absent_tpus.forget_cache
tearDownModule = absent_tpus.keep_cache


class FaultTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      'RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used '
      '25.31G of 15.75G hbm. Exceeded hbm capacity by 9.56G.',
      'hbm',
      25.31,
    ),
    (
      'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory '
      'required for HLO temporaries (34.61G) exceeds available HBM (15.75G).',
      'hbm',
      34.61,
    ),
    (
      'RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom: Ran out of memory '
      'in memory space vmem while allocating on stack.',
      'vmem',
      None,
    ),
    ('INTERNAL: Mosaic failed to compile TPU kernel', 'compiler', None),
  )
  def test_it_is_told_which_memory_is_too_small(self, text, kind, gib):
    found = compiling.fault_of(text)
    self.assertEqual(found.kind, kind)
    self.assertEqual(
      found.needed_bytes, None if gib is None else round(gib * 2**30)
    )

  def test_a_long_message_is_cut(self):
    text = compiling.fault_of('word ' * 1000).text
    self.assertLess(len(text), 310)


class RealTest(absltest.TestCase):
  """What libtpu says of a kernel that is too large."""

  def test_a_core_is_told_from_a_chip(self):
    pytest.importorskip('libtpu')
    devices = topology.devices(topology.parse('v5e:1x1'))
    mesh = mesh_lib.engine_mesh(devices, tensor=1)
    # 64 MiB in and out, which a chip has, and a core has not.
    shape = jax.ShapeDtypeStruct(
      (4096, 4096), jnp.float32, sharding=mesh_lib.replicated(mesh)
    )

    def copy(here, there):
      there[...] = here[...] + 1

    program = step_programs.Program(
      name='copy',
      phase=step_programs.UPDATE,
      jitted=jax.jit(
        jax.shard_map(
          pl.pallas_call(copy, out_shape=shape),
          mesh=mesh,
          in_specs=PartitionSpec(),
          out_specs=PartitionSpec(),
          check_vma=False,
        )
      ),
      args=(shape,),
      kwargs={},
      mesh=mesh,
      loops=(),
      beside=(),
    )
    lowered = compiling.lower(program, compiling.trace(program))
    found = compiling.compile_lowered(program, lowered)
    self.assertEqual(found.fault.kind, 'vmem', found.fault)


class QuietTest(absltest.TestCase):
  def test_what_is_printed_below_python_is_hidden_within(self):
    code = (
      'import os\n'
      'from dapo_jax.planning import compiling\n'
      'with compiling.quiet_stderr():\n'
      "  os.write(2, b'hidden')\n"
      "os.write(2, b'shown')\n"
    )
    found = subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      check=True,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    )
    self.assertEqual(found.stderr, b'shown')


if __name__ == '__main__':
  absltest.main()

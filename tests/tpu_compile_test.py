"""The sampler's programs, compiled for TPUs that are not there.

Needs libtpu, which compiles for any chip without one: `pip install -e .[tpu]`
on Linux.
"""

import functools
import os

import jax
import jax.numpy as jnp
import pytest
from absl.testing import absltest, parameterized
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import PartitionSpec as P

import tiny_model
from dapo_jax.model import decoder, paged_kernel
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import cache_layout, insertion, pages, programs
from dapo_jax.sampling import limits as limits_lib

pytest.importorskip('libtpu')

_QWEN2_32B = spec_lib.Spec(
  vocab_size=151_936,
  vocab_rows=152_064,
  layers=64,
  embed_dim=5120,
  heads=40,
  kv_heads=8,
  head_dim=128,
  ffw_dim=27_648,
  qkv_bias=True,
  tied_head=False,
  rope_theta=1e6,
  norm_eps=1e-6,
  init_std=0.02,
  context_tokens=32_768,
)
# What libtpu would otherwise look for on this machine, at length.
_NO_TPU_HERE = {
  'TPU_SKIP_MDS_QUERY': '1',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
  'TPU_ACCELERATOR_TYPE': 'v5p-8',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'TPU_WORKER_ID': '0',
}


def setUpModule():
  # The cache on disk takes programs for absent devices, and can't read them.
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()


def tearDownModule():
  jax.config.update('jax_enable_compilation_cache', True)
  compilation_cache.reset_cache()


@functools.cache
def _devices(topology):
  for name, value in _NO_TPU_HERE.items():
    os.environ.setdefault(name, value)
  found = topologies.get_topology_desc(platform='tpu', topology_name=topology)
  return tuple(found.devices)


def _params(model, made):
  """Returns the shapes and places of what the programs are given."""
  place = made.place.lower(model.shapes)
  one = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
  places = place.compile().output_shardings
  return jax.tree.map(one, place.out_info, places)


@pytest.mark.slow
class EngineTest(parameterized.TestCase):
  """Qwen2.5-32B with DAPO's prompts and responses, in pages."""

  # Slots and pages that fit beside the weights in 95 and 31 GiB.
  @parameterized.parameters(('v5p:2x2x2', 256, 32_768), ('v6e:2x4', 64, 8_192))
  def test_pages_are_updated_in_place(self, topology, slots, page_count):
    mesh = mesh_lib.engine_mesh(_devices(topology), tensor=8)
    model = decoder.abstract(_QWEN2_32B, compute_dtype='bfloat16', remat='none')
    limits = limits_lib.Limits(slots, 2048, 20_480, pages=page_count)
    limits = cache_layout.resolved(model, limits, mesh)
    self.assertEqual(limits.cache, 'paged')
    made = programs.make(model, limits, mesh, eos_ids=(151_643,))
    state = programs.state_shapes(model, limits, mesh)
    params = _params(model, made)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    prompt = jax.ShapeDtypeStruct((2048,), jnp.int32)
    page_table = pages.own_table(limits_lib.pool_sizes(limits, 1))
    samples = insertion.padded(
      insertion.nowhere(16, slots=slots, pages=page_table[0]), slots=slots
    )
    with jax.set_mesh(mesh):
      prefix = jax.eval_shape(made.prefill, params, prompt, count)
      chunk = made.chunk.lower(
        params,
        state=state,
        max_steps=count,
        leave_after=count,
        attend_blocks=None,
      )
      self.assertIn('tpu_custom_call', chunk.as_text())
      for lowered in (
        chunk,
        made.insert_group.lower(state=state, prefix=prefix, samples=samples),
        made.set_pages.lower(state=state, table=page_table),
      ):
        memory = lowered.compile().memory_analysis()
        # All pages are 64 GiB / 8 on v5p, 16 / 8 on v6e; a copy would show.
        self.assertLess(memory.temp_size_in_bytes, 2**29)
        self.assertGreater(
          memory.alias_size_in_bytes, 0.99 * memory.output_size_in_bytes
        )

  def test_a_prompt_is_prefilled(self):
    mesh = mesh_lib.engine_mesh(_devices('v5p:2x2x2'), tensor=8)
    model = decoder.abstract(_QWEN2_32B, compute_dtype='bfloat16', remat='none')
    limits = limits_lib.Limits(8, 2048, 20_480, cache='paged')
    made = programs.make(model, limits, mesh, eos_ids=(151_643,))
    prompt = jax.ShapeDtypeStruct((2048,), jnp.int32)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    lowered = made.prefill.lower(_params(model, made), prompt, count)
    # With weights of another type than the products', the layers' would be
    # converted together: 8 GiB.
    memory = lowered.compile().memory_analysis()
    self.assertLess(memory.temp_size_in_bytes, 2**30)


def _compile_error(program, arguments) -> Exception | None:
  try:
    program.lower(*arguments).compile()
  except Exception as error:  # it refuses in many ways
    return error
  return None


@pytest.mark.slow
class RefusalTest(parameterized.TestCase):
  """What `paged_kernel.refusal` says is what the compiler says."""

  @parameterized.product(
    topology=('v5p:2x2x1', 'v6e:2x2', 'v5e:2x2'),
    case=(
      dict(kv_heads=1, head_dim=128),
      dict(kv_heads=2, head_dim=128),
      dict(kv_heads=3, head_dim=128),
      dict(kv_heads=6, head_dim=128),
      dict(kv_heads=8, head_dim=128),
      dict(kv_heads=16, head_dim=128),
      dict(kv_heads=2, head_dim=64),
      dict(kv_heads=2, head_dim=256),
      dict(kv_heads=2, head_dim=128, dtype='float32'),
      dict(kv_heads=1, head_dim=128, slots=512),
      dict(kv_heads=1, head_dim=128, slots=1024),
      dict(kv_heads=1, head_dim=128, window_tokens=4096),
    ),
  )
  def test_it_is_the_compilers(self, topology, case):
    case = {'slots': 64, 'dtype': 'bfloat16', 'window_tokens': None} | case
    slots, width = case['slots'], 352
    heads = 2 * case['kv_heads']
    spec = tiny_model.spec(
      heads=heads, kv_heads=case['kv_heads'], head_dim=case['head_dim']
    )
    refusal = paged_kernel.refusal(
      spec, tensor=1, dtype=case['dtype'], table_shape=(slots, width)
    )
    mesh = mesh_lib.engine_mesh(_devices(topology)[:1], tensor=1)
    program = jax.jit(
      jax.shard_map(
        lambda q, pages, table, positions: paged_kernel.attend(
          q,
          pages,
          table=table,
          positions=positions,
          window_tokens=case['window_tokens'],
        ),
        mesh=mesh,
        in_specs=(P(),) * 4,
        out_specs=P(),
        check_vma=False,
      )
    )
    shape = lambda *s, dtype=jnp.int32: jax.ShapeDtypeStruct(
      s, dtype, sharding=mesh_lib.replicated(mesh)
    )
    dtype = jnp.dtype(case['dtype'])
    arguments = (
      shape(slots, heads, case['head_dim'], dtype=dtype),
      shape(1000, 64, heads, case['head_dim'], dtype=dtype),
      shape(slots, width),
      shape(slots),
    )
    with jax.set_mesh(mesh):
      error = _compile_error(program, arguments)
    self.assertEqual(refusal is None, error is None, (refusal, error))


if __name__ == '__main__':
  absltest.main()

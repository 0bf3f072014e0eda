"""The programs of sampler and update, compiled for TPUs that are not there.

Needs libtpu, which compiles for any chip without one: `pip install -e .[tpu]`
on Linux.
"""

import functools

import jax
import jax.numpy as jnp
import ml_collections
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import absent_tpus
import tiny_model
from configs import base
from dapo_jax.model import decoder, paged_kernel, row_attention, row_layout
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.planning import collectives, counts, cycles, flops, hlo, topology
from dapo_jax.sampling import cache_layout, insertion, pages, programs
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.training import (
  layout,
  losses,
  optimizer,
  packing,
  row_plan,
  update,
)

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
setUpModule = absent_tpus.forget_cache
tearDownModule = absent_tpus.keep_cache


@functools.cache
def _devices(name):
  return tuple(topology.devices(topology.parse(name)))


@pytest.mark.slow
class EngineTest(parameterized.TestCase):
  """Qwen2.5-32B with DAPO's prompts and responses, in pages."""

  # Slots and pages that fit beside the weights in 95, 31 and 16 GiB.
  @parameterized.parameters(
    ('v5p:2x2x2', 256, 32_768),
    ('v6e:2x4', 64, 8_192),
    ('v5e:2x4', 16, 2_048),
  )
  def test_pages_are_updated_in_place(self, topology, slots, page_count):
    mesh = mesh_lib.engine_mesh(_devices(topology), tensor=8)
    model = decoder.abstract(_QWEN2_32B, compute_dtype='bfloat16', remat='none')
    limits = limits_lib.Limits(slots, 2048, 20_480, pages=page_count)
    limits = cache_layout.resolved(model, limits, mesh)
    self.assertEqual(limits.cache, 'paged')
    made = programs.make(model, limits, mesh, eos_ids=(151_643,))
    state = programs.state_shapes(model, limits, mesh)
    params = programs.params_shapes(made, model.shapes)
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
        # All pages are 64 GiB / 8 on v5p, 16 / 8 on v6e, 4 / 8 on v5e: there a
        # copy would not show by itself.
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
    params = programs.params_shapes(made, model.shapes)
    lowered = made.prefill.lower(params, prompt, count)
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


_GIB = 2**30


@pytest.mark.slow
class SplashTest(parameterized.TestCase):
  """A layer's attention in Qwen2.5-32B, its heads over four devices."""

  @parameterized.product(
    topology=('v5e:2x2', 'v5p:2x2x1', 'v6e:2x2'),
    case=(
      {'tokens': 22_528},
      {'tokens': 22_529},
      {'tokens': 300},
      {'tokens': 8192, 'window_tokens': 4096},
      {'tokens': 4096, 'head_dim': 64},
      {'tokens': 4096, 'head_dim': 80},
      {'tokens': 4096, 'dtype': 'float32'},
    ),
  )
  def test_it_compiles_and_holds_no_scores(self, topology, case):
    case = {
      'head_dim': 128, 'dtype': 'bfloat16', 'window_tokens': None
    } | case  # fmt: skip
    mesh = mesh_lib.update_mesh(_devices(topology), data=1, fsdp=1, tensor=4)
    layout = row_layout.RowLayout('splash', mesh)
    where = NamedSharding(mesh, P(None, None, 'tensor', None))

    def array(heads):
      shape = (1, case['tokens'], heads, case['head_dim'])
      return jax.ShapeDtypeStruct(shape, case['dtype'], sharding=where)

    def loss(q, k, v, ids):
      out = row_attention.attend(
        q,
        k,
        v,
        layout=layout,
        segment_ids=ids,
        prefix_ids=None,
        positions=ids,
        window_tokens=case['window_tokens'],
      )
      return jnp.sum(out.astype(jnp.float32) ** 2)

    ids = jax.ShapeDtypeStruct(
      (1, case['tokens']), jnp.int32, sharding=mesh_lib.replicated(mesh)
    )
    lowered = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(
      array(40), array(8), array(8), ids
    )
    temp = lowered.compile().memory_analysis().temp_size_in_bytes
    # Of one of ten heads the scores alone would be 1.9 GiB in float32.
    self.assertLess(temp, 1.5 * _GIB)


def _abstract_update(topology, *, remat, tokens):
  """Returns an update of a small model on four devices, and its arguments."""
  config = base.get_config()
  config.update_from_flattened_dict(
    {
      'model.compute_dtype': 'bfloat16',
      'model.remat': remat,
      'mesh.fsdp': 2,
      'mesh.tensor': 2,
      'learner.pack_tokens': tokens,
      'learner.micro_batch_rows': 4,
    }
  )
  config = ml_collections.FrozenConfigDict(config)
  mesh = mesh_lib.update_mesh(_devices(topology), data=1, fsdp=2, tensor=2)
  spec = tiny_model.spec(
    vocab_size=32_768,
    vocab_rows=32_768,
    embed_dim=1024,
    heads=16,
    kv_heads=4,
    head_dim=128,
    ffw_dim=4096,
  )
  model = layout.update_model(config, spec, mesh)
  chain = optimizer.adamw(
    b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.1, max_grad_norm=1.0
  )
  shardings = update.state_shardings(model, chain, mesh)
  step = update.make_update(
    update.Forward(model, 1.0, config.model.logits_chunk_tokens),
    losses.policy_loss(config),
    chain,
    shardings,
  )
  rows = mesh_lib.row_sharding(mesh, leading_axes=1)
  field = lambda dtype: jax.ShapeDtypeStruct(
    (2, 4, tokens), dtype, sharding=rows
  )
  scalar = lambda dtype: jax.ShapeDtypeStruct(
    (), dtype, sharding=mesh_lib.replicated(mesh)
  )
  return step, (
    update.abstract_state(model, chain, shardings),
    packing.Rows(*map(field, packing.ROW_TYPES)),
    update.Experience(field(jnp.float32), field(jnp.float32)),
    scalar(jnp.int32),
    scalar(jnp.float32),
  )


@pytest.mark.slow
class UpdateTest(parameterized.TestCase):
  """A whole update of two layers, rows over two devices, heads over two."""

  @parameterized.parameters(
    ('v5e:2x2', 'full', 3),
    ('v5p:2x2x1', 'attention', 2),
    # Where inputs go to the host, the loop over the two layers is unrolled.
    ('v5p:2x2x1', 'offload', 6),
  )
  def test_it_compiles_and_holds_no_scores(self, topology, remat, kernels):
    step, arguments = _abstract_update(topology, remat=remat, tokens=4096)
    traced = step.trace(*arguments)
    compiled = traced.lower().compile()
    # Forward and backward, and forward again where nothing is kept of it, for
    # each width of rows.
    calls = compiled.as_text().count('custom_call_target="tpu_custom_call"')
    self.assertEqual(calls, kernels * len(row_plan.widths(4096)))
    self._check_counts(traced, compiled)
    memory = compiled.memory_analysis()
    # The scores of two rows and eight heads would be 1 GiB more in float32.
    self.assertLess(memory.temp_size_in_bytes, 1.25 * _GIB)
    # The state is updated in place.
    self.assertGreater(
      memory.alias_size_in_bytes, 0.99 * memory.output_size_in_bytes
    )
    if remat == 'offload':
      # Inputs of 2 layers: 2 rows of 4,096 tokens of 1,024 numbers of 2
      # bytes, half of the tokens on each device.
      self.assertGreaterEqual(
        memory.host_temp_size_in_bytes, 2 * 2 * 4096 * 1024 * 2 / 2
      )

  def _check_counts(self, traced, compiled):
    """What is counted in a jaxpr is what the compiler made of it."""
    program = hlo.parse(compiled.as_text())
    loops = len(row_plan.widths(4096))
    self.assertEqual(program.loops, loops)
    expected = {}
    for kernel in flops.count(traced.jaxpr).kernels:
      of_device = counts.scaled(kernel.calls, 1 / 4)
      before = expected.get(kernel.name, ())
      expected[kernel.name] = counts.add([before, of_device], loops=loops)
    self.assertEqual(cycles.count(program).kernels, expected)
    found = {
      (one.kind, one.axes): one.bytes_sent
      for one in collectives.find(program, {'data': 1, 'fsdp': 2, 'tensor': 2})
    }
    # The gradients of two layers' matrices (of 16 heads for queries and output,
    # of 4 for keys and values, of 4,096 inside) in bfloat16, and those of the
    # embedding, and of the head for every 1,024 places, in float32; of the half
    # that the heads' axis leaves it, a device sends half.
    layer = 1024 * 128 * (2 * 16 + 2 * 4) + 3 * 1024 * 4096
    sent = [
      (2 * 2 * layer + (1 + width / 1024) * 4 * 32_768 * 1024) / 2 / 2
      for width in row_plan.widths(4096)
    ]
    self.assertEqual(found[('reduce-scatter', ('fsdp',))], (0.0, *sent))


if __name__ == '__main__':
  absltest.main()

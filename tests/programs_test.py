"""Tests of `sampling.programs`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
from dapo_jax.model import decoder
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import insertion, pages, programs
from dapo_jax.sampling import limits as limits_lib


class ProgramsTest(parameterized.TestCase):
  @parameterized.parameters('dense', 'dense_int8', 'paged')
  def test_shapes_alone_say_what_the_state_will_be(self, cache):
    mesh = mesh_lib.engine_mesh(jax.devices()[:8], tensor=2)
    limits = tiny_engine.LIMITS._replace(cache=cache)
    model = tiny_engine.model()
    made = programs.make(model, limits, mesh, eos_ids=(1,))
    shapes = programs.state_shapes(model, limits, mesh)
    state = made.empty()

    def check(array, shape):
      self.assertEqual((array.shape, array.dtype), (shape.shape, shape.dtype))
      self.assertEqual(array.sharding, shape.sharding)

    jax.tree.map(check, state, shapes)

  @parameterized.parameters('dense', 'paged')
  def test_each_of_two_engines_gets_all_parameters(self, cache):
    devices = jax.devices()[:8]
    limits = tiny_engine.LIMITS._replace(cache=cache)
    model = tiny_engine.model()
    update = mesh_lib.update_mesh(devices, data=1, fsdp=4, tensor=2)
    params = decoder.random_params(
      model,
      0,
      shardings=mesh_lib.shardings(
        model.shapes, model.logical_axes, update, mesh_lib.UPDATE_RULES
      ),
    )
    for own in (devices[:4], devices[4:]):
      mesh = mesh_lib.engine_mesh(own, tensor=2)
      made = functools.partial(programs.make, model, limits, mesh, eos_ids=(1,))
      placed = made(engines=mesh_lib.engines_mesh(devices, mesh)).place(params)
      alone = made().place(jax.device_get(params))

      def check(array, expected):
        self.assertEqual(array.sharding, expected.sharding)
        np.testing.assert_array_equal(array, expected)

      jax.tree.map(check, placed, alone)

  def test_what_the_host_reads_of_an_engine_of_its_own_is_not_copied(self):
    limits = tiny_engine.LIMITS._replace(cache='dense')
    made = programs.make(
      tiny_engine.model(), limits, mesh_lib.local_mesh(), eos_ids=(1,)
    )
    state = made.empty()
    live, generated = made.look(state)
    self.assertIs(live, state.live)
    self.assertIs(generated, state.generated)

  @parameterized.parameters('dense', 'dense_int8', 'paged')
  def test_a_prompt_is_inserted_where_the_slots_are(self, cache):
    mesh = mesh_lib.engine_mesh(jax.devices()[:8], tensor=2)
    # Four blocks, of which a prompt of 128 fills the first in part.
    limits = limits_lib.Limits(8, 128, 900, cache=cache)
    model = tiny_engine.model()
    made = programs.make(model, limits, mesh, eos_ids=(1,))
    own = pages.own_table(limits_lib.pool_sizes(limits, 4))[0]
    samples = insertion.padded(
      insertion.nowhere(16, slots=8, pages=own), slots=8
    )
    if cache != 'paged':
      samples = samples._replace(pages=None)
    prefix = jax.eval_shape(
      made.prefill,
      model.shapes,
      jax.ShapeDtypeStruct((128,), jnp.int32),
      jax.ShapeDtypeStruct((), jnp.int32),
    )
    state = programs.state_shapes(model, limits, mesh)
    program = made.insert_group.lower(
      state=state, prefix=prefix, samples=samples
    ).compile()
    for collective in ('all-gather', 'all-reduce', 'permute', 'all-to-all'):
      self.assertNotIn(collective, program.as_text())
    # Not a copy for each of 16 slots, of which a device has two.
    prefix_bytes = 2 * prefix.k.size * 4
    scratch_bytes = program.memory_analysis().temp_size_in_bytes
    self.assertLess(scratch_bytes, 2 * prefix_bytes)

  def test_parameters_come_from_a_mesh_of_any_order(self):
    # That of an update on TPUs is by wires, an engine's by number.
    by_wire = [jax.devices()[i] for i in (3, 1, 0, 6, 7, 2, 5, 4)]
    update_mesh = mesh_lib.update_mesh(by_wire, data=1, fsdp=4, tensor=2)
    mesh = mesh_lib.engine_mesh(jax.devices()[:8], tensor=2)
    model = tiny_engine.model()
    limits = tiny_engine.LIMITS._replace(cache='dense')
    made = programs.make(model, limits, mesh, eos_ids=(1,))
    params = decoder.random_params(
      model,
      0,
      shardings=mesh_lib.shardings(
        model.shapes, model.logical_axes, update_mesh, mesh_lib.UPDATE_RULES
      ),
    )
    placed = made.place(params)
    self.assertEqual(placed['embedding'].sharding.mesh, mesh)
    np.testing.assert_array_equal(placed['embedding'], params['embedding'])
    for number, layer in enumerate(placed['block']):
      np.testing.assert_array_equal(layer['q'], params['block']['q'][number])

  def test_a_chunk_is_lowered_from_shapes_and_gives_up_the_state(self):
    mesh = mesh_lib.local_mesh()
    model, limits = tiny_engine.model(), tiny_engine.LIMITS
    limits = limits._replace(cache='dense')
    made = programs.make(model, limits, mesh, eos_ids=(1,))
    state = programs.state_shapes(model, limits, mesh)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    lowered = made.chunk.lower(
      model.shapes,
      state=state,
      max_steps=count,
      leave_after=count,
      attend_blocks=1,
    )
    donated = [x.donated for x in jax.tree.leaves(lowered.args_info)]
    self.assertEqual(sum(donated), len(jax.tree.leaves(state)))


if __name__ == '__main__':
  absltest.main()

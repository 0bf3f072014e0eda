"""Tests of `model.row_layout`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import tiny_model
import tolerances
from dapo_jax.model import row_layout
from dapo_jax.parallel import mesh as mesh_lib

_ROWS = ('data', 'fsdp')


def _mesh(fsdp, tensor):
  return mesh_lib.update_mesh(
    jax.devices()[: fsdp * tensor], data=1, fsdp=fsdp, tensor=tensor
  )


class PlaceTest(parameterized.TestCase):
  @parameterized.parameters(
    (('rows', 'split_tokens', 'embed'), (4, 6, 8), P(_ROWS, 'tensor', None)),
    # Five tokens can't be halved.
    (('rows', 'split_tokens', 'embed'), (4, 5, 8), P(_ROWS, None, None)),
    (('rows', 'tokens', 'embed'), (4, 6, 8), P(_ROWS, None, None)),
    (('rows', 'tokens', 'ffw'), (4, 6, 8), P(_ROWS, None, 'tensor')),
    (
      ('rows', 'tokens', 'kv_heads', 'head_dim'),
      (4, 6, 2, 8),
      P(_ROWS, None, 'tensor', None),
    ),
  )
  def test_activations_are_split_by_their_axes(self, axes, shape, expected):
    mesh = _mesh(fsdp=4, tensor=2)
    layout = row_layout.RowLayout('dense', mesh)
    out = jax.jit(lambda x: layout.place(x, *axes))(jnp.zeros(shape))
    where = NamedSharding(mesh, expected)
    self.assertTrue(out.sharding.is_equivalent_to(where, len(shape)))

  def test_a_gathered_weight_is_split_over_tensor_alone(self):
    mesh = _mesh(fsdp=4, tensor=2)
    layout = row_layout.RowLayout('dense', mesh)
    weight = jax.device_put(
      jnp.zeros((8, 6)), NamedSharding(mesh, P('fsdp', 'tensor'))
    )
    out = jax.jit(lambda w: layout.gather(w, 'embed', 'ffw'))(weight)
    where = NamedSharding(mesh, P(None, 'tensor'))
    self.assertTrue(out.sharding.is_equivalent_to(where, 2))

  def test_sums_of_a_reused_weights_gradients_are_split(self):
    mesh = _mesh(fsdp=4, tensor=2)
    layout = row_layout.RowLayout('dense', mesh)
    rows = NamedSharding(mesh, P(None, 'fsdp', None))
    head = jax.ShapeDtypeStruct(
      (64, 32), jnp.float32, sharding=NamedSharding(mesh, P('tensor', 'fsdp'))
    )
    hidden = jax.ShapeDtypeStruct((6, 8, 32), jnp.float32, sharding=rows)

    def loop_back(used):
      """Returns what the loop carries that gathers the gradient."""

      def loss(head, hidden):
        head = layout.gather(head, 'vocab', 'embed')
        one = lambda total, x: (total + jnp.sum(jnp.sin(x @ used(head).T)), 0)
        return jax.lax.scan(one, 0.0, hidden)[0]

      text = jax.jit(jax.grad(loss)).lower(head, hidden).compile().as_text()
      (loop,) = (
        line
        for line in text.splitlines()
        if ' while(' in line and 'transpose(jvp())/while"' in line
      )
      return loop.partition(' while(')[0]

    whole, part = 'f32[32,32]', 'f32[32,8]'
    self.assertIn(whole, loop_back(lambda head: head))
    reused = loop_back(lambda head: layout.reused(head, 'vocab', 'embed'))
    self.assertNotIn(whole, reused)
    self.assertIn(part, reused)

  def test_on_one_device_it_says_nothing(self):
    for mesh in (None, _mesh(1, 1)):
      layout = row_layout.RowLayout('dense', mesh)
      for way in (layout.place, layout.gather, layout.reused):
        jaxpr = jax.make_jaxpr(lambda x, way=way: way(x, 'heads', 'ffw'))(
          jnp.zeros((4, 4))
        )
        self.assertEmpty(jaxpr.eqns)


class LookUpTest(parameterized.TestCase):
  # Six tokens can be halved, five can't; the last has all of the vocabulary.
  @parameterized.parameters((4, 2, 6), (4, 2, 5), (8, 1, 4))
  def test_it_is_that_of_one_device(self, fsdp, tensor, tokens):
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.standard_normal((64, 16)), jnp.float32)
    ids = jnp.asarray(rng.integers(64, size=(8, tokens)), jnp.int32)
    weight = jnp.asarray(rng.standard_normal((8, tokens, 16)), jnp.float32)

    def rows_and_gradient(layout):
      def loss(table):
        rows = layout.look_up(table, ids, jnp.float32)
        return jnp.sum(rows * weight), rows

      return jax.jit(jax.grad(loss, has_aux=True))(table)

    one = rows_and_gradient(row_layout.RowLayout())
    layout = row_layout.RowLayout('dense', _mesh(fsdp, tensor))
    other = rows_and_gradient(layout)
    np.testing.assert_array_equal(one[1], other[1])
    np.testing.assert_allclose(one[0], other[0], atol=tolerances.F32_ATOL)


class ResidualStreamTest(absltest.TestCase):
  """Between layers, tokens are split over `tensor`."""

  def _gradient(self, layout, tokens):
    model = tiny_model.model(
      vocab_rows=64, layers=32, kv_heads=4, remat='full', rows=layout
    )
    where = mesh_lib.shardings(
      model.shapes, model.logical_axes, self.mesh, mesh_lib.UPDATE_RULES
    )
    params = jax.device_put(tiny_model.params(model), where)
    rows = mesh_lib.row_sharding(self.mesh, leading_axes=0)
    tokens = jax.device_put(tokens, rows)

    @functools.partial(jax.jit, out_shardings=where)
    @jax.grad
    def gradient(params, tokens):
      hidden = tiny_model.hidden(
        model,
        params,
        tokens,
        positions=jnp.broadcast_to(jnp.arange(64), tokens.shape),
        segment_ids=jnp.ones_like(tokens),
      )
      return jnp.sum(jnp.sin(hidden))

    return gradient, (params, tokens)

  def test_it_takes_less_memory_and_changes_no_gradient(self):
    self.mesh = _mesh(fsdp=2, tensor=4)
    tokens = np.random.default_rng(0).integers(61, size=(16, 64))
    tokens = tokens.astype(np.int32)
    temp_bytes, found = {}, {}
    for layout in (
      row_layout.RowLayout('dense', None),
      row_layout.RowLayout('dense', self.mesh),
    ):
      gradient, arguments = self._gradient(layout, tokens)
      compiled = gradient.lower(*arguments).compile()
      temp_bytes[layout.mesh] = compiled.memory_analysis().temp_size_in_bytes
      found[layout.mesh] = jax.device_get(compiled(*arguments))
    # 32 layers' inputs, 8 rows a device of 64 tokens of 32 numbers: 2 MiB,
    # or a quarter of it.
    saved = 32 * 8 * 64 * 32 * 4 * 3 / 4
    self.assertLess(temp_bytes[self.mesh], temp_bytes[None] - 0.9 * saved)
    jax.tree.map(self._assert_near, found[None], found[self.mesh])

  def _assert_near(self, a, b):
    gap = np.linalg.norm(a - b) / np.linalg.norm(a)
    self.assertLessEqual(gap, 10 * tolerances.F32_GRAD_REL)


if __name__ == '__main__':
  absltest.main()

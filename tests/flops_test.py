"""Tests of floating-point operations from jaxprs."""

import functools

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from flax import nnx
from jax.sharding import PartitionSpec as P

import tiny_model
from dapo_jax.model import splash
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.planning import flops


def _array(*shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


def _count(function, *args, **options):
  return flops.count(jax.jit(function).trace(*args).jaxpr, **options)


class ProductTest(parameterized.TestCase):
  def test_a_product(self):
    # 2 x 3 x 5 x 7, four times.
    found = _count(jnp.matmul, _array(4, 3, 5), _array(4, 5, 7))
    self.assertEqual(found, ((840.0,), (0.0,), ()))

  # Six layers of two products of 2 x 3 x 8 x 8 = 384. Each has one more for
  # the gradient of its weights and one for that of its input; recomputed are
  # those that something backward needs, of which the second is not.
  @parameterized.parameters(
    (lambda layer: layer, 6 * 2 * 3 * 384.0),
    (jax.checkpoint, 6 * (2 * 3 + 1) * 384.0),
  )
  def test_scanned_layers_forward_and_backward(self, remat, expected):
    def loss(x, weights):
      layer = remat(lambda x, w: (jnp.tanh(x @ w[0]) @ w[1], None))
      return jnp.sum(jax.lax.scan(layer, x, weights)[0])

    gradient = jax.grad(loss, argnums=(0, 1))
    found = _count(gradient, _array(3, 8), _array(6, 2, 8, 8))
    self.assertEqual(found.matmul, (expected,))

  def test_a_decoder(self):
    model = tiny_model.model()
    tokens = _array(2, 16, dtype=jnp.int32)

    def loss(params, tokens):
      model_ = nnx.merge(model.graphdef, params)
      ids = jnp.ones_like(tokens)
      hidden = model_(tokens, positions=ids, segment_ids=ids)
      return jnp.sum(jnp.square(model_.logits(hidden)))

    # Matrices of a layer: 2 x 32 x 48 of heads, 2 x 32 x 24 of key heads and
    # 3 x 32 x 40; the head has 61 x 32. Attention of every place to every one:
    # 2 layers x 2 rows x two products of 2 x 4 heads x 12 x 16 x 16.
    weights = 2 * (2 * 32 * 48 + 2 * 32 * 24 + 3 * 32 * 40) + 61 * 32
    forward = 2 * weights * 32 + 2 * 2 * 2 * 2 * 4 * 12 * 16 * 16
    found = _count(loss, model.shapes, tokens)
    self.assertEqual(found.matmul, (forward,))
    found = _count(jax.grad(loss), model.shapes, tokens)
    self.assertEqual(found.matmul[0] / forward, 3.0)

  def test_shard_map_counts_each_device(self):
    mesh = mesh_lib.update_mesh(jax.devices()[:8], data=2, fsdp=2, tensor=2)
    product = jax.shard_map(
      jnp.matmul, mesh=mesh, in_specs=(P('fsdp'), P()), out_specs=P('fsdp')
    )
    # 2 x (6 / 2) x 4 x 5 on each of 8: `data` and `tensor` do the same.
    found = _count(product, _array(6, 4), _array(4, 5))
    self.assertEqual(found.matmul, (8 * 120.0,))


class LoopTest(absltest.TestCase):
  def test_dynamic_loops_are_counted_apart_and_in_order(self):
    def program(n, x, a, b):
      product = lambda w: lambda _, x: x @ w
      x = jax.lax.fori_loop(0, n, product(a), x) @ a
      # Its length is known: no section.
      x = jax.lax.fori_loop(0, 3, product(a), x)
      return jax.lax.fori_loop(1, n, lambda _, x: x @ b @ b, x)

    scalar = _array(dtype=jnp.int32)
    square = _array(8, 8)
    # 2 x 8^3 = 1024: once 1 + 3, then 1 and 2 in each trip.
    found = _count(program, scalar, square, square, square)
    self.assertEqual(found.matmul, (4096.0, 1024.0, 2048.0))

  def test_one_inside_another_makes_one_trip(self):
    def program(n, x):
      inner = lambda _, x: jax.lax.fori_loop(0, n, lambda _, x: x @ x, x)
      return jax.lax.fori_loop(0, n, inner, x)

    found = _count(program, _array(dtype=jnp.int32), _array(8, 8))
    self.assertEqual(found.matmul, (0.0, 1024.0))

  def test_a_condition_costs_its_most_expensive_branch(self):
    def program(n, x):
      loop = lambda x: jax.lax.fori_loop(0, n, lambda _, x: x @ x, x)
      branches = [lambda x: x, loop, lambda x: x @ x @ x, lambda x: x @ x]
      return loop(jax.lax.switch(n, branches, x))

    # The loop of a branch that does not count has its place.
    found = _count(program, _array(dtype=jnp.int32), _array(8, 8))
    self.assertEqual(found.matmul, (2048.0, 0.0, 1024.0))

  def test_what_nothing_needs_does_not_count(self):
    mesh = mesh_lib.local_mesh()

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P(), out_specs=P())
    def program(x):
      jax.jit(jnp.matmul)(x, x)
      return x + 1

    self.assertEqual(_count(program, _array(8, 8)).matmul, (0.0,))


class AttentionTest(absltest.TestCase):
  def test_formulas(self):
    # 3 heads of 5 entries over 4 tokens: of 16 pairs 8 count, each with 2 x 5
    # operations in each of two products.
    self.assertEqual(flops.causal_attention_flops(4, 3, 5), 3 * 8 * 20.0)
    self.assertEqual(
      flops.causal_attention_flops(4, 3, 5, products=5), 3 * 8 * 50.0
    )
    # In a window of two: 4 x 2 - 2 pairs. One of all tokens hides nothing.
    self.assertEqual(
      flops.causal_attention_flops(4, 3, 5, window_tokens=2), 3 * 6 * 20.0
    )
    self.assertEqual(
      flops.causal_attention_flops(4, 3, 5, window_tokens=9),
      flops.causal_attention_flops(4, 3, 5),
    )
    self.assertEqual(flops.decode_attention_flops(7.0, 3, 5), 3 * 7 * 20.0)

  def _program(self, transform):
    def loss(q, k, v, ids):
      out = splash.attend(
        q,
        k,
        v,
        ids,
        window_tokens=None,
        device_kind='TPU v5',
        residual_name='kept',
        interpret=True,
      )
      return jnp.sum(out)

    mesh = mesh_lib.engine_mesh(jax.devices()[:2], tensor=2)
    heads = P(None, None, 'tensor')
    sharded = jax.shard_map(
      transform(loss),
      mesh=mesh,
      in_specs=(heads, heads, heads, P()),
      out_specs=P() if transform is not jax.grad else heads,
      check_vma=False,
    )

    def program(n, q, k, v, ids):
      body = lambda _, q: q + sharded(q, k, v, ids)
      return jax.lax.fori_loop(0, n, body, q)

    keys = _array(3, 200, 2, 128)
    return _count(
      program,
      _array(dtype=jnp.int32),
      _array(3, 200, 8, 128),
      keys,
      keys,
      _array(3, 200, dtype=jnp.int32),
    )

  # 3 rows of 256 places, 200 and padding, and 8 heads of 128 on 2 devices.
  _PRODUCT = 3 * 8 * 2 * 128 * 256**2 / 2

  def test_a_kernel_forward(self):
    found = self._program(lambda loss: loss)
    self.assertEqual(found.matmul, (0.0, 0.0))
    self.assertEqual(found.attention, (0.0, 2 * self._PRODUCT))
    (kernel,) = found.kernels
    self.assertStartsWith(kernel.name, 'splash_mha_fwd')
    self.assertEqual(kernel.calls, (0.0, 2.0))
    self.assertIn((3, 4, 256, 128), kernel.shapes)
    # Of one device: half of the heads.
    self.assertEqual(kernel.flops, self._PRODUCT)

  def test_a_kernel_backward_makes_five_products_in_one_pass(self):
    found = self._program(jax.grad)
    self.assertEqual(found.attention, (0.0, 7 * self._PRODUCT))
    self.assertLen(found.kernels, 2)
    self.assertStartsWith(found.kernels[1].name, 'splash_mha_dkv')
    self.assertEqual(found.kernels[1].flops, 5 * self._PRODUCT / 2)


if __name__ == '__main__':
  absltest.main()

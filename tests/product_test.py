"""Tests of `model.product`."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tolerances
from dapo_jax.model import product


def _made(*shape):
  rng = np.random.default_rng(len(shape))
  return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def _gradients(multiply, x, weight):
  # A different slope at each entry.
  loss = lambda x, weight: jnp.sum(jnp.sin(multiply(x, weight)))
  return jax.jit(jax.grad(loss, argnums=(0, 1)))


class OfRowsTest(parameterized.TestCase):
  @parameterized.parameters((5,), (2, 5), (3, 2, 5))
  def test_it_is_the_plain_product_and_so_is_its_gradient(self, *shape):
    x, weight = _made(*shape), _made(5, 4)
    plain = lambda x, weight: jnp.einsum('...d,df->...f', x, weight)
    np.testing.assert_allclose(
      product.of_rows(x, weight), plain(x, weight), atol=tolerances.F32_ATOL
    )
    found = _gradients(product.of_rows, x, weight)(x, weight)
    expected = _gradients(plain, x, weight)(x, weight)
    for a, b in zip(found, expected, strict=True):
      np.testing.assert_allclose(a, b, atol=tolerances.F32_ATOL)

  def test_a_gradient_has_the_type_of_what_it_is_of(self):
    x, weight = _made(3, 2, 5).astype('bfloat16'), _made(5, 4)
    found = _gradients(product.of_rows, x, weight)(x, weight)
    self.assertEqual([g.dtype for g in found], [x.dtype, weight.dtype])

  def test_a_cpu_sums_over_one_axis_and_others_over_what_a_mesh_splits(self):
    x, weight = _made(3, 2, 5), _made(5, 4)
    traced = _gradients(product.of_rows, x, weight).trace(x, weight)
    text = {
      platform: traced.lower(lowering_platforms=(platform,)).as_text()
      for platform in ('cpu', 'tpu')
    }
    self.assertIn('contracting_dims = [0] x [0]', text['cpu'])
    self.assertNotIn('contracting_dims = [0, 1] x [0, 1]', text['cpu'])
    self.assertIn('contracting_dims = [0, 1] x [0, 1]', text['tpu'])
    self.assertNotIn('contracting_dims = [0] x [0]', text['tpu'])


if __name__ == '__main__':
  absltest.main()

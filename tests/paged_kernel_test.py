"""Tests of `model.paged_kernel`: what it refuses; it runs on a TPU alone."""

import jax.numpy as jnp
from absl.testing import absltest, parameterized

import tiny_model
from dapo_jax.model import paged_kernel


class RefusalTest(parameterized.TestCase):
  def _refusal(self, *, tensor=1, dtype=jnp.bfloat16, shape=(64, 352), **spec):
    spec = {'head_dim': 128, 'heads': 40, 'kv_heads': 8} | spec
    return paged_kernel.refusal(
      tiny_model.spec(**spec), tensor=tensor, dtype=dtype, table_shape=shape
    )

  @parameterized.parameters(1, 2, 4, 8)
  def test_qwen2_32b_is_served(self, tensor):
    self.assertIsNone(self._refusal(tensor=tensor))

  @parameterized.parameters(32, 64, 80, 96, 256)
  def test_heads_of_another_size_are_refused(self, head_dim):
    self.assertIn(str(head_dim), self._refusal(head_dim=head_dim))

  # As the compiler for v5p finds, see tpu_compile_test.
  @parameterized.parameters(
    (1, 'bfloat16', True),
    (2, 'bfloat16', True),
    (3, 'bfloat16', False),
    (4, 'bfloat16', True),
    (6, 'bfloat16', False),
    (16, 'bfloat16', True),
    (32, 'bfloat16', True),
    (1, 'float32', True),
    (2, 'float32', True),
  )
  def test_heads_fill_registers(self, kv_heads, dtype, served):
    found = self._refusal(heads=96, kv_heads=kv_heads, dtype=dtype)
    self.assertEqual(found is None, served)
    if not served:
      self.assertIn(f'{kv_heads} key heads in {dtype}', found)

  def test_the_table_stands_in_scalar_memory(self):
    self.assertIsNone(self._refusal(shape=(512, 352)))
    found = self._refusal(shape=(1024, 352))
    self.assertIn('1024 slots x 352 pages', found)
    self.assertIn('--config.sampler.page_tokens', found)
    self.assertIsNone(self._refusal(shape=(1024, 128)))


if __name__ == '__main__':
  absltest.main()

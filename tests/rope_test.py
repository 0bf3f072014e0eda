"""Tests of `model.rope`."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_model
import tolerances
from dapo_jax.model import rope
from dapo_jax.model import spec as spec_lib


def _llama_3(*, factor, head_dim):
  return tiny_model.spec(
    head_dim=head_dim,
    rope_theta=500_000.0,
    rope_scaling=spec_lib.RopeScaling(
      factor=factor,
      low_freq_factor=1.0,
      high_freq_factor=4.0,
      original_context_tokens=8192,
    ),
  )


class FrequenciesTest(parameterized.TestCase):
  def test_plain_ones_are_powers_of_the_base(self):
    # H = 6: exponents 0, -1/3 and -2/3 of 1000.
    spec = tiny_model.spec(head_dim=6, rope_theta=1000.0)
    np.testing.assert_allclose(
      rope.frequencies(spec), [1, 0.1, 0.01], rtol=tolerances.F64
    )

  # A pair turns r = 8192 * 500000^(-2i/H) / 2 pi times in 8,192 tokens:
  # r >= 4 keeps it, r <= 1 divides it by the factor, and between these it is
  # s + (1 - s) / factor of itself with s = (r - 1) / 3. For H = 128, i = 29:
  # r = 3.4109, s = 0.8036, ratio 0.8036 + 0.1964 / 8 = 0.8282.
  @parameterized.parameters(
    (
      128,
      8.0,
      {
        0: 1,
        28: 1,
        29: 0.8282,
        30: 0.6437,
        31: 0.4935,
        32: 0.3711,
        34: 0.1902,
        35: 0.125,
        63: 0.125,
      },
    ),
    (64, 32.0, {14: 1, 15: 0.60557, 16: 0.30374, 17: 0.10345, 18: 0.03125}),
  )
  def test_llama_3_stretches_the_slow_ones(self, head_dim, factor, ratios):
    spec = _llama_3(factor=factor, head_dim=head_dim)
    plain = dataclasses.replace(spec, rope_scaling=None)
    found = rope.frequencies(spec) / rope.frequencies(plain)
    digits = 4 if head_dim == 128 else 5
    for index, ratio in ratios.items():
      self.assertAlmostEqual(found[index], ratio, places=digits, msg=index)

  def test_they_are_in_double_precision(self):
    spec = _llama_3(factor=8.0, head_dim=128)
    self.assertEqual(rope.frequencies(spec).dtype, np.float64)


class RotateTest(absltest.TestCase):
  def test_a_quarter_turn_by_hand(self):
    # H = 4, pairs (0, 2) and (1, 3). At position 2 a frequency of pi/4 is a
    # quarter turn, (1, 3) -> (-3, 1); one of 0 leaves (2, 4).
    x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
    out = rope.rotate(
      x, jnp.array([[2]]), frequencies=np.array([np.pi / 4, 0.0])
    )
    np.testing.assert_allclose(
      out[0, 0, 0], [-3, 2, 1, 4], atol=tolerances.F32_ATOL
    )

  def test_scores_depend_on_the_distance_alone(self):
    spec = tiny_model.spec()
    noise = np.random.default_rng(0).standard_normal((2, 1, 1, 1, 12))
    q, k = jnp.asarray(noise, jnp.float32)
    turn = lambda x, position: rope.rotate(
      x, jnp.array([[position]]), frequencies=rope.frequencies(spec)
    )
    near = np.vdot(turn(q, 9), turn(k, 2))
    far = np.vdot(turn(q, 107), turn(k, 100))
    other = np.vdot(turn(q, 9), turn(k, 3))
    self.assertAlmostEqual(near, far, delta=1e-4)
    self.assertGreater(abs(near - other), 1e-2)


if __name__ == '__main__':
  absltest.main()

"""Tests of the value loss."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import value as value_lib


def _token(value, value_old, target, clip):
  def loss(value):
    result = value_lib.clipped_value_loss(
      value, jnp.array([value_old]), jnp.array([target]), clip=clip
    )
    return result.loss[0], result.clipped[0]

  (got, clipped), gradient = jax.value_and_grad(loss, has_aux=True)(
    jnp.array([value])
  )
  return float(got), float(gradient[0]), bool(clipped)


class ClippedValueLossTest(parameterized.TestCase):
  @parameterized.parameters(
    # Within the bounds: 1/2 (1.25 - 2)^2 and its slope -0.75.
    (1.25, 1.0, 2.0, 0.5, 0.28125, -0.75, False),
    # Beyond the bound towards the target: 1.5 counts, 1/2 (1/2)^2.
    (1.75, 1.0, 2.0, 0.5, 0.125, 0.0, True),
    # Beyond the bound away from it: the value itself is worse.
    (0.0, 1.0, 2.0, 0.5, 2.0, -2.0, False),
    # Below: the bound 0.5 counts, 1/2 (1.5)^2.
    (0.0, 1.0, -1.0, 0.5, 1.125, 0.0, True),
    # On the bound the slope is whole.
    (1.5, 1.0, 2.0, 0.5, 0.125, -0.5, False),
    # As far beyond the target as the bound is short of it: no clip.
    (2.5, 1.0, 2.0, 0.5, 0.125, 0.5, False),
    # Without a bound.
    (1.75, 1.0, 2.0, None, 0.03125, -0.25, False),
  )
  def test_hand_worked_tokens(
    self, value, value_old, target, clip, loss, gradient, clipped
  ):
    self.assertEqual(
      _token(value, value_old, target, clip), (loss, gradient, clipped)
    )

  def test_equals_the_printed_equation(self):
    value, old, target = (
      np.random.default_rng(0).normal(size=(3, 500)).astype(np.float32)
    )
    got = value_lib.clipped_value_loss(
      jnp.asarray(value), jnp.asarray(old), jnp.asarray(target), clip=0.25
    )
    bounded = np.clip(value, old - 0.25, old + 0.25)
    plain, other = (value - target) ** 2, (bounded - target) ** 2
    np.testing.assert_allclose(
      got.loss, 0.5 * np.maximum(plain, other), rtol=1e-6
    )
    self.assertTrue(0.1 < np.mean(got.clipped) < 0.9)
    np.testing.assert_array_equal(got.clipped, other > plain)

  @parameterized.parameters(0.0, -1.0, float('nan'))
  def test_impossible_clip_names_the_flag(self, clip):
    with self.assertRaisesRegex(ValueError, r'--config\.critic\.value_clip'):
      _token(1.0, 1.0, 1.0, clip)


if __name__ == '__main__':
  absltest.main()

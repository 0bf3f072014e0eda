"""Tests of `training.value_fit`."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from dapo_jax.training import value_fit

# Values 1, 2, 5; expected before 0, 2, 1; to be expected 2, 2, 3; the last
# place is padding.
_VALUES = jnp.array([[1.0, 2.0, 5.0, jnp.nan]])
_OLD = jnp.array([[0.0, 2.0, 1.0, jnp.nan]])
_RETURNS = jnp.array([[2.0, 2.0, 3.0, jnp.nan]])
_COUNTS = jnp.array([[True, True, True, False]])


def _loss(values=_VALUES, *, clip=None):
  return value_fit.loss(values, _OLD, _RETURNS, counts=_COUNTS, clip=clip)


class ValueFitTest(absltest.TestCase):
  def test_loss_is_half_the_square_and_padding_is_0(self):
    loss, stats = _loss()
    np.testing.assert_array_equal(loss, [[0.5, 0.0, 2.0, 0.0]])
    self.assertEqual(int(stats.token_count), 3)
    self.assertEqual(float(stats.square_sum), 5.0)
    self.assertEqual(int(stats.clipped_count), 0)

  def test_a_value_that_moved_too_far_is_held_back(self):
    # 1 is held at 0 + 0.5, so (0.5 - 2)^2 / 2; 5 at 1.5, where the square of
    # 1.5 - 3 is less than that of 5 - 3, which counts.
    loss, stats = _loss(clip=0.5)
    np.testing.assert_allclose(loss, [[1.125, 0.0, 2.0, 0.0]])
    self.assertEqual(int(stats.clipped_count), 1)

  def test_padding_has_no_gradient(self):
    grad = jax.grad(lambda v: _loss(v)[0].sum())(_VALUES)
    np.testing.assert_array_equal(grad, [[-1.0, 0.0, 2.0, 0.0]])

  def test_metrics_are_over_all_tokens(self):
    _, stats = _loss(clip=0.5)
    self.assertEqual(
      value_fit.metrics(jax.device_get([stats, value_fit.nothing()])),
      {'critic/square_error_mean': 5 / 3, 'critic/clipped_frac': 1 / 3},
    )
    self.assertEqual(value_fit.metrics([value_fit.nothing()]), {})


if __name__ == '__main__':
  absltest.main()

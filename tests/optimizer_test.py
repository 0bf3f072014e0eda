"""Tests of `training.optimizer`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

import tiny_model
from dapo_jax.training import optimizer


def _adamw(**changes):
  return optimizer.adamw(
    **{
      'b1': 0.9,
      'b2': 0.999,
      'eps': 1e-8,
      'weight_decay': 0.0,
      'max_grad_norm': 1.0,
      **changes,
    }
  )


class WarmUpTest(parameterized.TestCase):
  @parameterized.parameters(
    # lr(s) = lr * min(1, (s + 1) / W)
    (0, 0.05),
    (1, 0.1),
    (9, 0.5),
    (18, 0.95),
    (19, 1.0),
    (20, 1.0),
    (10_000, 1.0),
  )
  def test_by_hand(self, step, expected):
    self.assertAlmostEqual(
      optimizer.warmed_up(1.0, step=step, warmup_steps=20), expected, places=12
    )
    self.assertAlmostEqual(
      optimizer.warmed_up(1e-6, step=step, warmup_steps=20),
      1e-6 * expected,
      places=18,
    )

  @parameterized.parameters(0, 1)
  def test_no_warm_up_is_the_whole_rate_at_once(self, warmup_steps):
    self.assertEqual(
      optimizer.warmed_up(3e-4, step=0, warmup_steps=warmup_steps), 3e-4
    )


class AdamWTest(absltest.TestCase):
  def _direction(self, chain, grads, params):
    step = lambda grads, params: chain.update(grads, chain.init(params), params)
    return jax.jit(step)(grads, params)[0]

  def test_first_step_by_hand(self):
    # The moments, corrected, are g and g^2: g / (|g| + eps) = the sign.
    params = {'block': {'q': jnp.ones(3)}}
    grads = {'block': {'q': jnp.array([0.3, -0.2, 0.0])}}
    found = self._direction(_adamw(), grads, params)
    np.testing.assert_allclose(found['block']['q'], [1, -1, 0], atol=1e-5)

  def test_decay_acts_on_matrices_alone(self):
    model = tiny_model.model(tied_head=False)
    params = tiny_model.params(model)
    zeros = jax.tree.map(jnp.zeros_like, params)
    found = self._direction(_adamw(weight_decay=0.1), zeros, params)
    paths = jax.tree_util.tree_leaves_with_path(found)
    seen = {'decayed': 0, 'left': 0}
    for (path, decay), param in zip(
      paths, jax.tree.leaves(params), strict=True
    ):
      name = path[-1].key
      if 'norm' in name or 'bias' in name:
        np.testing.assert_array_equal(decay, np.zeros_like(decay), name)
        seen['left'] += 1
      else:
        np.testing.assert_allclose(decay, 0.1 * param, rtol=1e-6, err_msg=name)
        seen['decayed'] += 1
    # Norms: 2 of a block and the last; biases: q, k, v. Matrices: q, k, v, o,
    # gate, up, down, embedding, head.
    self.assertEqual(seen, {'decayed': 9, 'left': 6})

  def _clipped(self, grads, *, max_grad_norm):
    """Returns the gradient as the first moment has it: m = 0.1 g."""
    chain = _adamw(max_grad_norm=max_grad_norm)
    params = jax.tree.map(jnp.zeros_like, grads)
    _, state = chain.update(grads, chain.init(params), params)
    moments = optax.tree_utils.tree_get(state, 'mu')
    return jax.tree.map(lambda m: m / 0.1, moments)

  def test_the_norm_of_all_weights_together_is_clipped(self):
    # sqrt(3^2 + 4^2) = 5.
    grads = {'a': {'q': jnp.array([3.0])}, 'b': {'k': jnp.array([-4.0])}}
    found = self._clipped(grads, max_grad_norm=1.0)
    np.testing.assert_allclose(found['a']['q'], 0.6, rtol=1e-6)
    np.testing.assert_allclose(found['b']['k'], -0.8, rtol=1e-6)
    found = self._clipped(grads, max_grad_norm=6.0)
    np.testing.assert_allclose(found['a']['q'], 3.0, rtol=1e-6)


if __name__ == '__main__':
  absltest.main()

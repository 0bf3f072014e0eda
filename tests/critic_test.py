"""Tests of `training.critic`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

import tiny_model
import tolerances
from dapo_jax.model import decoder
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.training import critic, packing, update


def _critic_model(**options):
  model = tiny_model.model(vocab_rows=64)
  return decoder.with_value_head(model, **{'keep_token_head': True} | options)


def _params(model):
  params = tiny_model.params(tiny_model.model(vocab_rows=64))
  rng = np.random.default_rng(3)
  head = rng.normal(size=model.shapes['value_head'].shape)
  return {**params, 'value_head': jnp.array(head, jnp.float32)}


def _rows(mesh, *, rows):
  rng = np.random.default_rng(0)
  tokens = lambda n: rng.integers(1, 61, size=n).astype(np.int32)
  segments = [
    packing.Segment(i, tokens(3), tokens(n), np.zeros(n, np.float32), 1 / 16)
    for i, n in enumerate((1, 7, 3, 5))
  ]
  packed = packing.pack(
    segments,
    row_tokens=16,
    micro_batch_rows=rows,
    max_segments=8,
    share_prompts=False,
  )
  return packed._replace(rows=placement.put_rows(packed.rows, mesh))


class ValuesTest(parameterized.TestCase):
  def test_a_value_is_of_the_place_that_predicts_the_token(self):
    model = _critic_model()
    params = _params(model)
    mesh = mesh_lib.update_mesh(jax.devices()[:1], data=1, fsdp=1, tensor=1)
    packed = _rows(mesh, rows=2)
    found = critic.make_values(model)(params, packed.rows, packed.micro_batches)
    rows = jax.device_get(packed.rows)
    for row, begin, n in packed.places:
      # The response alone, its prompt before it: places 2, 3, ... of 3 + n - 1.
      at = np.unravel_index(row, rows.tokens.shape[:2])
      tokens = rows.tokens[at][begin - 2 : begin + n]
      hidden = tiny_model.hidden(
        tiny_model.model(vocab_rows=64),
        decoder.without_value_head(params),
        tokens[None],
      )
      expected = hidden[0, 2:] @ params['value_head']
      np.testing.assert_allclose(
        np.asarray(found)[at][begin : begin + n],
        expected,
        atol=tolerances.F32_ATOL,
      )

  def test_a_critic_of_its_own_has_no_token_head(self):
    # The tiny model ties its heads: untie them first.
    model = tiny_model.model(vocab_rows=64, tied_head=False)
    self.assertIn('head', model.shapes)
    own = decoder.with_value_head(model, keep_token_head=False)
    self.assertNotIn('head', own.shapes)
    self.assertIn('value_head', own.shapes)
    shared = decoder.with_value_head(model, keep_token_head=True)
    self.assertIn('head', shared.shapes)


class UpdateTest(parameterized.TestCase):
  def _gradient(self, *, devices, rows):
    """Returns the gradient of a critic's update, and its statistics."""
    model = _critic_model(keep_token_head=False)
    mesh = mesh_lib.update_mesh(
      jax.devices()[:devices], data=1, fsdp=devices, tensor=1
    )
    chain = optax.trace(decay=0.0)
    shardings = update.state_shardings(model, chain, mesh)
    params = jax.device_put(_params(model), shardings.params)
    state = update.init_state(params, chain, shardings)
    packed = _rows(mesh, rows=rows)
    shape = packed.rows.tokens.shape
    field = lambda *values: placement.put_rows(
      packing.spread(values, packed.places, shape=shape), mesh
    )
    zeros = jnp.zeros(shape, jnp.float32)
    known = update.Experience(
      zeros, zeros, value_old=zeros, returns=field(1.0, -1.0, 2.0, 0.5)
    )
    step = critic.make_update(model, chain, shardings, clip=None)
    state, stats = step(state, packed.rows, known, packed.micro_batches, 0.0)
    return jax.device_get((state.opt_state.trace, stats))

  def test_rows_and_devices_change_nothing(self):
    one, stats = self._gradient(devices=1, rows=2)
    other, other_stats = self._gradient(devices=8, rows=8)
    self.assertGreater(float(stats.grad_norm), 0.1)
    gap = optax.tree.norm(jax.tree.map(np.subtract, one, other))
    self.assertLessEqual(float(gap / stats.grad_norm), tolerances.F32_GRAD_REL)
    np.testing.assert_allclose(stats.loss, other_stats.loss, rtol=1e-5)
    self.assertEqual(int(stats.values.token_count), 16)


class EstimateTest(absltest.TestCase):
  def _estimate(self, *, penalties=None, lam=0.5):
    return critic.estimate(
      [np.array([0.5, 1.0], np.float32), np.array([0.25], np.float32)],
      [2.0, -1.0],
      penalties,
      gamma=1.0,
      lam=lam,
    )

  def test_the_reward_comes_at_the_last_token(self):
    # Last: 2 - 1 = 1. First: (1 - 0.5) + 0.5 * 1 = 1. The other: -1 - 0.25.
    found = self._estimate()
    np.testing.assert_allclose(found.advantages[0], [1.0, 1.0])
    np.testing.assert_allclose(found.advantages[1], [-1.25])
    np.testing.assert_allclose(found.returns[0], [1.5, 2.0])
    np.testing.assert_allclose(found.returns[1], [-1.0])

  def test_penalties_are_taken_off_at_their_tokens(self):
    found = self._estimate(penalties=[np.array([0.25, 0.5]), np.array([1.0])])
    # Last: 2 - 0.5 - 1 = 0.5; first: -0.25 + 1 - 0.5 + 0.5 * 0.5 = 0.5.
    np.testing.assert_allclose(found.advantages[0], [0.5, 0.5])
    np.testing.assert_allclose(found.advantages[1], [-2.25])

  def test_no_responses_have_no_advantages(self):
    found = critic.estimate([], [], None, gamma=1.0, lam=1.0)
    self.assertEqual(found, critic.Estimates([], [], None))

  def test_explained_variance(self):
    # Returns 1.5, 2, -1 with variance 1.7222; less the values 1, 1, -1.25,
    # with variance 1.125: 1 - 1.125 / 1.7222.
    self.assertAlmostEqual(
      self._estimate().explained_frac, 1 - 1.125 / (31 / 18), places=6
    )


class MetricsTest(absltest.TestCase):
  def test_no_update_has_no_metrics(self):
    self.assertEqual(critic.metrics([]), {})


if __name__ == '__main__':
  absltest.main()

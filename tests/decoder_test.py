"""Tests of `model.decoder`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import traverse_util
from jax.extend import core
from jax.interpreters import partial_eval

import tiny_model
import tolerances
from dapo_jax.model import decoder, row_layout
from dapo_jax.parallel import mesh as mesh_lib


def _tokens(*shape, seed=0):
  return np.random.default_rng(seed).integers(61, size=shape)


class PackedRowsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.model = tiny_model.model()
    self.params = tiny_model.params(self.model)
    self.first, self.second = _tokens(1, 5, seed=1), _tokens(1, 7, seed=2)

  def _packed(self, padding):
    return tiny_model.hidden(
      self.model,
      self.params,
      np.concatenate([self.first, self.second, padding], axis=1),
      positions=[[*range(5), *range(7), 0, 0, 0, 0]],
      segment_ids=[[1] * 5 + [2] * 7 + [0] * 4],
    )

  def test_each_segment_is_what_it_is_alone(self):
    packed = self._packed(np.zeros((1, 4), int))
    for segment, part in (
      (self.first, packed[:, :5]),
      (self.second, packed[:, 5:12]),
    ):
      alone = tiny_model.hidden(self.model, self.params, segment)
      np.testing.assert_allclose(part, alone, atol=tolerances.F32_ATOL)

  def test_padding_changes_nothing(self):
    zeros = self._packed(np.zeros((1, 4), int))
    others = self._packed(np.array([[60, 3, 8, 1]]))
    np.testing.assert_array_equal(zeros[:, :12], others[:, :12])

  def test_padding_is_finite(self):
    self.assertTrue(np.isfinite(self._packed(np.zeros((1, 4), int))).all())

  def test_a_window_is_counted_inside_a_segment(self):
    model = tiny_model.model(window_tokens=3)
    packed = tiny_model.hidden(
      model,
      self.params,
      np.concatenate([self.first, self.second], axis=1),
      positions=[[*range(5), *range(7)]],
      segment_ids=[[1] * 5 + [2] * 7],
    )
    alone = tiny_model.hidden(model, self.params, self.second)
    np.testing.assert_allclose(packed[:, 5:], alone, atol=tolerances.F32_ATOL)
    # Two layers of a window of 3 reach 4 tokens back; the sixth is further.
    changed = self.second.copy()
    changed[0, 0] = (changed[0, 0] + 1) % 61
    other = tiny_model.hidden(model, self.params, changed)
    np.testing.assert_array_equal(alone[:, 5:], other[:, 5:])
    self.assertGreater(np.abs(alone - other)[0, :5].max(axis=-1).min(), 1e-5)

  def test_a_later_token_changes_nothing_before_it(self):
    tokens = _tokens(1, 16)
    changed = tokens.copy()
    changed[0, 8] = (changed[0, 8] + 1) % 61
    a = tiny_model.hidden(self.model, self.params, tokens)
    b = tiny_model.hidden(self.model, self.params, changed)
    np.testing.assert_array_equal(a[:, :8], b[:, :8])
    # Each later token sees it.
    self.assertGreater(np.abs(a - b)[:, 8:].max(axis=-1).min(), 1e-3)


def _loss(model, tokens):
  """Returns a function of the params that all of them have a part in."""

  def loss(params):
    hidden = tiny_model.hidden(model, params, tokens)
    return jnp.sum(jnp.sin(tiny_model.module(model, params).logits(hidden)))

  return loss


_REMATS = ('none', 'dots', 'attention', 'full', 'offload')


class RematTest(absltest.TestCase):
  def test_it_changes_neither_loss_nor_gradients(self):
    params = tiny_model.params(tiny_model.model())

    def value_and_grad(remat):
      loss = _loss(tiny_model.model(remat=remat), _tokens(2, 9))
      return jax.jit(jax.value_and_grad(loss))(params)

    loss, grads = value_and_grad('none')
    for remat in _REMATS[1:]:
      other, other_grads = value_and_grad(remat)
      np.testing.assert_allclose(loss, other, rtol=tolerances.F32_ATOL)
      jax.tree.map(self._assert_near, grads, other_grads)

  def _gradient(self, remat, *, attention='dense'):
    """Returns the equations of a gradient."""
    mesh = mesh_lib.update_mesh(jax.devices()[:1], data=1, fsdp=1, tensor=1)
    rows = row_layout.RowLayout(attention, mesh, interpret=True)
    model = tiny_model.model(remat=remat, rows=rows)
    grad = jax.grad(_loss(model, _tokens(1, 128)))
    jaxpr = jax.make_jaxpr(grad)(model.shapes).jaxpr
    # Less what leads nowhere, as the compiler will see.
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]

  def test_the_kernel_runs_again_only_where_nothing_is_kept_of_it(self):
    # Forward and backward once in the body of each scan; a third is the
    # forward pass again.
    calls = {
      remat: _count_equations(
        self._gradient(remat, attention='splash'), only='pallas_call'
      )
      for remat in _REMATS
    }
    self.assertEqual(
      calls, {'none': 2, 'dots': 2, 'attention': 2, 'full': 3, 'offload': 3}
    )

  def test_products_are_computed_again_only_where_they_are_not_kept(self):
    products = {
      remat: _count_equations(self._gradient(remat), only='dot_general')
      for remat in _REMATS
    }
    # Of the seven products with a weight the last needs no second time; dense
    # attention has two more, of which the one with the values needs none
    # where its result is kept.
    least = products['none']
    self.assertEqual(
      products,
      {
        'none': least,
        'dots': least + 1,
        'attention': least + 1 + 6,
        'full': least + 2 + 6,
        'offload': least + 2 + 6,
      },
    )

  def _assert_near(self, a, b):
    self.assertGreater(np.linalg.norm(a), 0)
    gap = np.linalg.norm(a - b) / np.linalg.norm(a)
    self.assertLessEqual(gap, tolerances.F32_GRAD_REL)


class ComputeTypeTest(absltest.TestCase):
  def test_bfloat16_is_near_float32(self):
    tokens = _tokens(2, 9)
    logits = {}
    for dtype in ('float32', 'bfloat16'):
      model = tiny_model.model(compute_dtype=dtype)
      params = tiny_model.params(model)
      hidden = tiny_model.hidden(model, params, tokens)
      self.assertEqual(hidden.dtype, dtype)
      logits[dtype] = np.asarray(
        tiny_model.module(model, params).logits(hidden)
      )
      self.assertEqual(logits[dtype].dtype, np.float32)
    rms = lambda x: np.sqrt(np.mean(x**2))
    self.assertLess(
      rms(logits['bfloat16'] - logits['float32']) / rms(logits['float32']),
      tolerances.BF16,
    )


class ForSamplingTest(absltest.TestCase):
  def test_in_bfloat16_it_halves_the_weights_and_changes_no_bit(self):
    model = tiny_model.model(compute_dtype='bfloat16', qk_norm=True)
    params = tiny_model.params(model)
    taken = decoder.for_sampling(model, params)
    block = taken['block']
    for weight in (taken['embedding'], block['q'], block['k_bias']):
      self.assertEqual(weight.dtype, jnp.bfloat16)
    for scale in (taken['final_norm'], block['ffw_norm'], block['q_norm']):
      self.assertEqual(scale.dtype, jnp.float32)
    rows = _tokens(2, 9)
    before, after = (
      tiny_model.module(model, p).logits(tiny_model.hidden(model, p, rows))
      for p in (params, taken)
    )
    np.testing.assert_array_equal(before, after)

  def test_in_float32_they_are_the_same_without_a_value_head(self):
    model = tiny_model.model()
    params = tiny_model.params(model)
    taken = decoder.for_sampling(model, params | {'value_head': jnp.ones(3)})
    jax.tree.map(np.testing.assert_array_equal, taken, params)

  def test_not_stacked_the_block_is_its_layers(self):
    model = tiny_model.model()
    params = tiny_model.params(model)
    layers = decoder.for_sampling(model, params, stacked=False)['block']
    self.assertLen(layers, 2)
    for i, layer in enumerate(layers):
      jax.tree.map(
        lambda w, whole, i=i: np.testing.assert_array_equal(w, whole[i]),
        layer,
        params['block'],
      )


class PaddedVocabularyTest(absltest.TestCase):
  def test_rows_that_are_no_token_are_never_likeliest(self):
    model = tiny_model.model(vocab_size=50)
    params = tiny_model.params(model)
    hidden = tiny_model.hidden(model, params, _tokens(2, 9))
    logits = tiny_model.module(model, params).logits(hidden)
    self.assertEqual(logits.shape, (2, 9, 61))
    self.assertLess(logits[..., 50:].max(), logits[..., :50].min() - 1e20)
    full = dataclasses.replace(model.spec, vocab_size=61)
    full = decoder.abstract(full, compute_dtype='float32', remat='none')
    expected = tiny_model.module(full, params).logits(hidden)
    np.testing.assert_array_equal(logits[..., :50], expected[..., :50])


class CompileTimeTest(parameterized.TestCase):
  @parameterized.parameters(*_REMATS)
  def test_a_gradient_has_as_many_equations_at_any_depth(self, remat):
    def equations(layers):
      model = tiny_model.model(layers=layers, remat=remat)
      loss = lambda params: tiny_model.hidden(
        model, params, np.zeros((1, 4), int)
      ).sum()
      return _count_equations(jax.make_jaxpr(jax.grad(loss))(model.shapes))

    self.assertEqual(equations(2), equations(8))
    self.assertGreater(equations(2), 50)


def _count_equations(jaxpr, *, only=None):
  """Counts equations, those inside scans and calls too, or one kind's.

  What a kernel is made of does not count.
  """
  inner = lambda x: x.jaxpr if isinstance(x, core.ClosedJaxpr) else x
  count = 0
  for equation in inner(jaxpr).eqns:
    name = equation.primitive.name
    count += only in (None, name)
    if name == 'pallas_call':
      continue
    for value in jax.tree.leaves(list(equation.params.values())):
      if hasattr(inner(value), 'eqns'):
        count += _count_equations(value, only=only)
  return count


class RandomParamsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.model = tiny_model.model(tied_head=False, init_std=0.02)
    cls.params = decoder.random_params(cls.model, 3, shardings=None)

  def test_values_do_not_depend_on_where_they_lie(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    mesh = jax.make_mesh((2, 4), ('a', 'b'))
    rules = {'layers': 'a', 'embed': 'b'}
    spread = jax.tree.map(
      lambda axes: jax.NamedSharding(mesh, jax.P(*map(rules.get, axes))),
      self.model.logical_axes,
      is_leaf=lambda axes: isinstance(axes, tuple),
    )
    params = decoder.random_params(self.model, 3, shardings=spread)
    self.assertEqual(params['block']['q'].sharding, spread['block']['q'])
    jax.tree.map(np.testing.assert_array_equal, self.params, params)

  def test_another_seed_draws_other_values(self):
    other = decoder.random_params(self.model, 4, shardings=None)
    self.assertFalse(np.array_equal(self.params['head'], other['head']))

  def test_it_draws_norms_of_ones(self):
    model = tiny_model.model(**tiny_model.FAMILIES['qwen3'])
    block = decoder.random_params(model, 3, shardings=None)['block']
    for name in ('q_norm', 'k_norm'):
      # [L, H], one scale for all heads.
      np.testing.assert_array_equal(block[name], np.ones((2, 12)))

  def test_it_draws_what_qwen2_draws(self):
    for path, leaf in traverse_util.flatten_dict(self.params, sep='/').items():
      if path.endswith('norm'):
        self.assertTrue((leaf == 1).all(), path)
      elif path.endswith('bias'):
        self.assertTrue((leaf == 0).all(), path)
      else:
        # 1,536 draws or more: 5 standard errors are 5 * 0.02 / sqrt(2 * 1536).
        self.assertAlmostEqual(leaf.std().item(), 0.02, delta=0.0018, msg=path)

  def test_no_two_weights_are_alike(self):
    block = self.params['block']
    self.assertFalse(np.array_equal(block['k'], block['v']))
    self.assertFalse(np.array_equal(block['gate'], block['up']))
    self.assertFalse(np.array_equal(block['q'][0], block['q'][1]))


if __name__ == '__main__':
  absltest.main()

"""Tests of `sampling.token_filters`."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
from dapo_jax.sampling import token_filters

_mask = jax.jit(lambda logits, how: token_filters.may_be_drawn(logits, **how))


def _kept(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
  """Returns which tokens stay in each row; numbers are of all rows."""
  logits = jnp.atleast_2d(jnp.asarray(logits, jnp.float32))
  fill = lambda value, dtype: jnp.asarray(
    np.broadcast_to(value, logits.shape[0]), dtype
  )
  mask = _mask(
    logits,
    dict(
      temperature=fill(temperature, jnp.float32),
      top_k=fill(top_k, jnp.int32),
      top_p=fill(top_p, jnp.float32),
      min_p=fill(min_p, jnp.float32),
    ),
  )
  return np.asarray(mask)


def _sorted_kept(logits, *, temperature, top_k, top_p, min_p):
  """Returns the same of one row without ties, by sorting, in float64."""
  z = logits.astype(np.float64) / temperature
  p = np.exp(z - z.max())
  order = np.argsort(-p)
  if top_k > 0:
    order = order[:top_k]
  if top_p < 1:
    before = np.cumsum(p[order]) - p[order]
    order = order[before < top_p * p[order].sum()]
  order = order[p[order] >= min_p]
  return np.isin(np.arange(len(z)), order)


class KeptTest(parameterized.TestCase):
  # Probabilities 0.4, 0.1, 0.3, 0.2.
  _LOGITS = np.log([4, 1, 3, 2])

  @parameterized.parameters(
    ({}, [1, 1, 1, 1]),
    ({'top_k': 1}, [1, 0, 0, 0]),
    ({'top_k': 3}, [1, 0, 1, 1]),
    ({'top_k': 4}, [1, 1, 1, 1]),
    ({'top_k': 50}, [1, 1, 1, 1]),
    ({'top_k': -1}, [1, 1, 1, 1]),
    # 0.4 is more than 0.39; 0.4 + 0.3 falls short of 0.71.
    ({'top_p': 0.39}, [1, 0, 0, 0]),
    ({'top_p': 0.69}, [1, 0, 1, 0]),
    ({'top_p': 0.71}, [1, 0, 1, 1]),
    ({'top_p': 0.91}, [1, 1, 1, 1]),
    # Over that of the likeliest: 1, 0.25, 0.75, 0.5.
    ({'min_p': 0.24}, [1, 1, 1, 1]),
    ({'min_p': 0.26}, [1, 0, 1, 1]),
    ({'min_p': 0.76}, [1, 0, 0, 0]),
    # Of the two likeliest 0.4 is 57%: top-p looks at what top-k leaves.
    ({'top_k': 2, 'top_p': 0.56}, [1, 0, 0, 0]),
    ({'top_k': 2, 'top_p': 0.58}, [1, 0, 1, 0]),
    ({'top_k': 3, 'top_p': 0.95, 'min_p': 0.6}, [1, 0, 1, 0]),
    # At temperature 1/2 the squares: 16, 1, 9, 4 of 30.
    ({'top_p': 0.52, 'temperature': 0.5}, [1, 0, 0, 0]),
    ({'min_p': 0.26, 'temperature': 0.5}, [1, 0, 1, 0]),
  )
  def test_by_hand(self, how, expected):
    self.assertEqual(_kept(self._LOGITS, **how)[0].tolist(), expected)

  @parameterized.parameters(
    dict(top_k=50, top_p=1.0, min_p=0.0),
    dict(top_k=0, top_p=0.9, min_p=0.0),
    dict(top_k=0, top_p=0.999, min_p=0.0),
    dict(top_k=0, top_p=1.0, min_p=0.02),
    dict(top_k=700, top_p=0.95, min_p=0.01),
  )
  def test_as_by_sorting(self, **how):
    logits = np.random.default_rng(0).standard_normal((16, 4096)) * 3
    logits = logits.astype(np.float32)
    for temperature in (0.6, 1.0):
      found = _kept(logits, temperature=temperature, **how)
      expected = [
        _sorted_kept(row, temperature=temperature, **how) for row in logits
      ]
      np.testing.assert_array_equal(found, expected)

  def test_every_slot_has_its_own(self):
    top_k, top_p, min_p = [0, 1, 3, 0, 0], [1, 1, 1, 0.69, 1], [0, 0, 0, 0, 0.3]
    rows = np.tile(self._LOGITS, (5, 1))
    together = _kept(rows, top_k=top_k, top_p=top_p, min_p=min_p)
    self.assertEqual(together.sum(axis=1).tolist(), [4, 1, 3, 2, 3])
    for i in range(5):
      alone = _kept(rows[i], top_k=top_k[i], top_p=top_p[i], min_p=min_p[i])
      np.testing.assert_array_equal(alone[0], together[i])


class BorderTest(parameterized.TestCase):
  @parameterized.product(
    how=(
      dict(top_k=1),
      dict(top_p=0.0),
      dict(top_p=1e-30),
      dict(min_p=1.0),
      dict(min_p=2.0),
      dict(top_k=1, top_p=0.0, min_p=1.0),
    ),
    # At which a quotient is rounded.
    temperature=(1.0, 0.3, 9.0),
  )
  def test_the_likeliest_always_stays(self, how, temperature):
    logits = np.random.default_rng(1).standard_normal((64, 1000)) * 100
    kept = _kept(logits, temperature=temperature, **how)
    np.testing.assert_array_equal(kept.sum(axis=1), 1)
    np.testing.assert_array_equal(
      kept.argmax(axis=1), np.float32(logits).argmax(axis=1)
    )

  @parameterized.parameters(
    # Probabilities 0.4 and three of 0.2: all three or none.
    (dict(top_k=1), 1),
    (dict(top_k=2), 4),
    (dict(top_k=3), 4),
    (dict(top_p=0.39), 1),
    (dict(top_p=0.41), 4),
    (dict(min_p=0.49), 4),
    (dict(min_p=0.51), 1),
  )
  def test_equals_stay_or_go_together(self, how, count):
    for place in range(4):
      logits = np.log(np.insert([2.0, 2.0, 2.0], place, 4.0))
      kept = _kept(logits, **how)[0]
      self.assertTrue(kept[place])
      self.assertEqual(kept.sum(), count)

  def test_of_equal_logits_all_stay(self):
    for how in (dict(top_k=1), dict(top_p=0.1), dict(min_p=1.0)):
      self.assertTrue(_kept(np.full(9, 3.5), **how).all())

  def test_what_has_no_probability_at_all_is_harmless(self):
    # Rows that are no token; exp(-200) is 0 in float32.
    logits = [0.0, -200.0, -1e30, -1.0]
    for how in (dict(top_p=0.999999), dict(top_k=2), dict(min_p=1e-9)):
      self.assertEqual(_kept(logits, **how)[0].tolist(), [1, 0, 0, 1])

  @parameterized.parameters(1e-3, 1.0, 1e3)
  def test_an_order_of_the_ids_decides_nothing(self, temperature):
    rng = np.random.default_rng(2)
    logits = rng.integers(20, size=500) / 4
    order = rng.permutation(500)
    how = dict(top_k=90, top_p=0.8, min_p=0.01, temperature=temperature)
    kept = _kept(logits, **how)[0]
    np.testing.assert_array_equal(_kept(logits[order], **how)[0], kept[order])


class CostTest(absltest.TestCase):
  def test_values_compile_nothing(self):
    logits = np.arange(7.0)
    _kept(logits)
    with tiny_engine.compilations() as compiled:
      _kept(logits, top_k=3)
      _kept(logits, top_k=-1, top_p=0.3)
      _kept(logits, min_p=0.3, temperature=0.7)
    self.assertEmpty(compiled)

  def test_the_vocabulary_is_never_sorted(self):
    one = jnp.ones(2)
    how = dict(temperature=one, top_k=jnp.ones(2, int), top_p=one, min_p=one)
    program = _mask.lower(jnp.zeros((2, 100)), how).as_text()
    self.assertIn('case', program)
    self.assertNotIn('sort', program)


if __name__ == '__main__':
  absltest.main()

"""Tests of the weight for the gap between sampler and trainer."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import importance

_IDS = np.array([1, 1, 2, 2, 0])
# w = 3/2, 1/4 | 3/2, 3/2 | padding: by response 3/8 and 9/4.
_WEIGHTS = np.array([1.5, 0.25, 1.5, 1.5, 7.0])


def _weight(log_weight=None, ids=_IDS, **kwargs):
  if log_weight is None:
    log_weight = np.log(_WEIGHTS)
  logp_sampler = np.full(np.shape(log_weight), -1.5, np.float32)
  kwargs = {'num_segments': 2, 'limit': 2.0, **kwargs}
  return np.asarray(
    importance.sampler_weight(
      jnp.asarray(logp_sampler + np.asarray(log_weight, np.float32)),
      jnp.asarray(logp_sampler),
      jnp.asarray(ids),
      **kwargs,
    )
  )


class SamplerWeightTest(parameterized.TestCase):
  @parameterized.parameters(
    ('token', 'truncate', 2.0, [1.5, 0.25, 1.5, 1.5, 1.0]),
    ('token', 'truncate', 1.25, [1.25, 0.25, 1.25, 1.25, 1.0]),
    ('token', 'mask', 2.0, [1.5, 0.0, 1.5, 1.5, 1.0]),
    ('token', 'mask', 1.25, [0.0, 0.0, 0.0, 0.0, 1.0]),
    ('sequence', 'truncate', 2.0, [0.375, 0.375, 2.0, 2.0, 1.0]),
    ('sequence', 'mask', 2.5, [0.0, 0.0, 2.25, 2.25, 1.0]),
    ('sequence', 'mask', 3.0, [0.375, 0.375, 2.25, 2.25, 1.0]),
  )
  def test_hand_worked_weights(self, level, rule, limit, expected):
    got = _weight(level=level, rule=rule, limit=limit)
    np.testing.assert_allclose(got, expected, rtol=1e-6)

  @parameterized.product(level=importance.LEVELS, rule=importance.RULES)
  def test_no_gap_is_exactly_one(self, level, rule):
    got = _weight(np.zeros(5), level=level, rule=rule, limit=1.0)
    np.testing.assert_array_equal(got, np.ones(5))

  def test_mask_keeps_a_weight_on_either_bound(self):
    half = np.float32(math.log(2.0))
    weight = importance.sampler_weight(
      jnp.array([half, -half]),
      jnp.zeros(2),
      jnp.ones(2, jnp.int32),
      num_segments=1,
      rule='mask',
      limit=2.0,
    )
    np.testing.assert_allclose(weight, [2.0, 0.5], rtol=1e-6)

  @parameterized.product(level=importance.LEVELS, rule=importance.RULES)
  def test_huge_gap_is_finite(self, level, rule):
    ids = np.ones(4, np.int32)
    for gap in (200.0, -200.0):
      for limit in (2.0, math.inf):
        got = _weight(np.full(4, gap), ids, level=level, rule=rule, limit=limit)
        self.assertTrue(np.isfinite(got).all())
      expected = 2.0 if gap > 0 and rule == 'truncate' else 0.0
      got = _weight(np.full(4, gap), ids, level=level, rule=rule)
      np.testing.assert_allclose(got, np.full(4, expected), atol=1e-30)

  @parameterized.product(
    level=importance.LEVELS,
    rule=importance.RULES,
    junk=(np.nan, np.inf, -np.inf),
  )
  def test_padding_weighs_one_and_reaches_nothing(self, level, rule, junk):
    clean, dirty = np.log(_WEIGHTS), np.log(_WEIGHTS)
    dirty[-1] = junk
    got = _weight(dirty, level=level, rule=rule)
    self.assertEqual(got[-1], 1.0)
    np.testing.assert_array_equal(got, _weight(clean, level=level, rule=rule))

  @parameterized.product(level=importance.LEVELS, rule=importance.RULES)
  def test_no_gradient_passes(self, level, rule):
    def total(logp_old, logp_sampler):
      return importance.sampler_weight(
        logp_old,
        logp_sampler,
        jnp.asarray(_IDS),
        num_segments=2,
        level=level,
        rule=rule,
        limit=4.0,
      ).sum()

    logp_old = jnp.asarray(np.log(_WEIGHTS), jnp.float32)
    for gradient in jax.grad(total, argnums=(0, 1))(logp_old, jnp.zeros(5)):
      np.testing.assert_array_equal(gradient, np.zeros(5))

  def test_rows_with_ids_of_their_own_are_mapped(self):
    logp_old = jnp.asarray(np.log(_WEIGHTS), jnp.float32)
    rows = jnp.stack([logp_old, jnp.zeros(5)])
    ids = jnp.stack([jnp.asarray(_IDS)] * 2)
    run = lambda *row: importance.sampler_weight(
      *row, num_segments=2, level='sequence', limit=4.0
    )
    got = jax.vmap(run)(rows, jnp.zeros((2, 5)), ids)
    expected = [[0.375, 0.375, 2.25, 2.25, 1.0], [1.0] * 5]
    np.testing.assert_allclose(got, expected, rtol=1e-6)

  def test_id_beyond_the_count_has_no_sequence_weight(self):
    got = _weight(ids=np.array([1, 1, 3, 3, 0]), level='sequence')
    np.testing.assert_array_equal(np.isnan(got), [0, 0, 1, 1, 0])

  @parameterized.parameters(
    ('level', 'response'), ('rule', 'clip'), ('limit', 0.5), ('limit', math.nan)
  )
  def test_unknown_option_names_its_flag(self, name, value):
    with self.assertRaisesRegex(
      ValueError, r'--config\.objective\.sampler_correction'
    ):
      _weight(**{name: value})


if __name__ == '__main__':
  absltest.main()

"""Tests of the ratio and clip statistics."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.monitor import catalogue
from dapo_jax.objective import diagnostics
from dapo_jax.objective import ratio as ratio_lib
from dapo_jax.objective import surrogate as surrogate_lib

_GOLDEN = np.load(
  pathlib.Path(__file__).parent / 'data/golden/policy_loss_vanilla.npz'
)
_CASES = sorted({name.split('/')[0] for name in _GOLDEN.files})


def _stats(ratio, advantage, mask, *, ids=None, logp=None):
  ratio, advantage = jnp.asarray(ratio), jnp.asarray(advantage)
  surrogate = surrogate_lib.clipped_surrogate(
    ratio, advantage, 0.8, 1.28, dual_clip=10.0
  )
  return diagnostics.ratio_stats(
    surrogate,
    ratio,
    jnp.asarray(mask),
    advantage=advantage,
    logp=jnp.zeros_like(ratio) if logp is None else jnp.asarray(logp),
    segment_ids=None if ids is None else jnp.asarray(ids),
  )


# Ratios and advantages with the flag that each raises.
_RATIO = np.array([1.5, 1.5, 0.5, 20.0, 1.0, 0.5], np.float32)
_ADVANTAGE = np.array([1.0, -1.0, -1.0, -1.0, 0.0, 1.0], np.float32)
#                      high  none  low   dual  none none
_MASK = np.array([True, True, True, True, True, False])
_LOGP = np.log(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], np.float32))
_IDS = np.array([1, 1, 2, 2, 3, 0])
_SPLIT_DEPENDENT = 'policy/clipped_micro_batch_frac'


def _whole():
  return _stats(_RATIO, _ADVANTAGE, _MASK, ids=_IDS, logp=_LOGP)


class RatioStatsTest(parameterized.TestCase):
  def test_weights_for_the_sampler_are_measured_where_there_are_any(self):
    ratio = jnp.asarray(_RATIO)
    surrogate = surrogate_lib.clipped_surrogate(ratio, ratio, 0.8, 1.28)
    stats = diagnostics.ratio_stats(
      surrogate,
      ratio,
      jnp.asarray(_MASK),
      advantage=ratio,
      logp=ratio,
      # The sixth does not count: two of five are 0, and the mean is 3 / 5.
      sampler_weight=jnp.array([0.0, 1.0, 1.5, 0.0, 0.5, 0.0]),
    )
    # Merged with itself, as two micro-batches are.
    metrics = diagnostics.metrics(diagnostics.merge(stats, stats))
    self.assertAlmostEqual(metrics['policy/sampler_weight_mean'], 0.6, places=6)
    self.assertEqual(metrics['policy/sampler_left_out_frac'], 0.4)

  def test_hand_worked_metrics(self):
    metrics = diagnostics.metrics(_whole())
    expected = {
      # Five tokens count: 1.5 + 1.5 + 0.5 + 20 + 1 = 24.5.
      'policy/ratio_mean': 4.9,
      'policy/ratio_max': 20.0,
      'policy/ratio_min': 0.5,
      # 24.5^2 / (5 (2.25 + 2.25 + 0.25 + 400 + 1)).
      'policy/effective_sample_frac': 600.25 / 2028.75,
      # (2 (0.5 - ln 1.5) + (-0.5 + ln 2) + (19 - ln 20)) / 5.
      'policy/kl_old_nats': 3.277297,
      'policy/clipped_frac': 0.6,
      # One of the five has no advantage.
      'policy/clipped_nonzero_frac': 0.75,
      'policy/clipped_micro_batch_frac': 0.6,
      'policy/clipped_high_frac': 0.2,
      'policy/clipped_low_frac': 0.2,
      'policy/clipped_dual_frac': 0.2,
      # One token has an advantage above 0, three have one below.
      'policy/clipped_high_of_positive_frac': 1.0,
      'policy/clipped_low_of_negative_frac': 1 / 3,
      'policy/clipped_dual_of_negative_frac': 1 / 3,
      'policy/clipped_high_mean_prob': 0.1,
      # Of the three responses only the second, low and dual, is clipped whole.
      'policy/clipped_response_frac': 1 / 3,
    }
    self.assertEqual(metrics.keys(), expected.keys())
    for name, value in expected.items():
      self.assertAlmostEqual(metrics[name], value, places=6, msg=name)

  def test_every_metric_is_in_the_catalogue(self):
    catalogue.check(diagnostics.metrics(_whole()))

  def test_responses_are_those_of_their_row(self):
    # The same ids in two rows are four responses: of the first row the first
    # is clipped, of the second row both.
    ratio = np.array([[1.5, 1.5, 1.5, 1.0], [1.5, 1.5, 1.5, 1.5]], np.float32)
    ids = np.array([[1, 1, 2, 2], [1, 2, 2, 2]])
    stats = _stats(ratio, np.ones_like(ratio), np.ones((2, 4), bool), ids=ids)
    self.assertEqual(int(stats.response_count), 4)
    self.assertEqual(int(stats.clipped_response_count), 3)

  def test_a_response_may_have_places_that_do_not_count(self):
    # Its second and last places do not count, whatever id they have; the third
    # response has none that does.
    ratio = np.array([1.5, 1.0, 1.5, 1.5, 1.0, 1.5, 1.5], np.float32)
    mask = np.array([True, False, True, True, True, False, False])
    for ids in ([1, 0, 1, 2, 2, 0, 3], [1, 1, 1, 2, 2, 3, 3]):
      stats = _stats(ratio, np.ones_like(ratio), mask, ids=np.array(ids))
      self.assertEqual(int(stats.response_count), 2)
      self.assertEqual(int(stats.clipped_response_count), 1)

  def test_responses_are_counted_as_one_by_one(self):
    rng = np.random.default_rng(0)
    for _ in range(20):
      ids = np.sort(rng.integers(0, 7, (3, 24)), axis=1)
      ratio = rng.choice([1.0, 1.5], (3, 24), p=[0.2, 0.8]).astype(np.float32)
      mask = (ids > 0) & (rng.random((3, 24)) < 0.7)
      stats = _stats(ratio, np.ones_like(ratio), mask, ids=ids)
      found = [
        (row[kept & (own == i)] == 1.5).all()
        for row, own, kept in zip(ratio, ids, mask, strict=True)
        for i in np.unique(own[kept])
      ]
      self.assertEqual(int(stats.response_count), len(found))
      self.assertEqual(int(stats.clipped_response_count), sum(found))

  def test_without_ids_no_share_of_responses_is_reported(self):
    metrics = diagnostics.metrics(_stats(_RATIO, _ADVANTAGE, _MASK))
    self.assertNotIn('policy/clipped_response_frac', metrics)

  def test_mean_of_micro_batches_weighs_them_alike(self):
    # One of one clipped, none of three: 1/2, where 1/4 of the tokens are.
    first = _stats([1.5], [1.0], [True])
    second = _stats([1.0] * 3, [1.0] * 3, [True] * 3)
    nothing = _stats([1.5], [1.0], [False])
    metrics = diagnostics.metrics(
      diagnostics.merge(diagnostics.merge(first, nothing), second)
    )
    self.assertEqual(metrics[_SPLIT_DEPENDENT], 0.5)
    self.assertEqual(metrics['policy/clipped_frac'], 0.25)

  def test_small_divergence_is_not_rounding(self):
    # d^2/2 + d^3/6 with d = 2^-10, the ratio rounded to float32.
    ratio = np.exp(np.full(4, 2.0**-10)).astype(np.float32)
    stats = _stats(ratio, np.ones(4, np.float32), np.ones(4, bool))
    got = diagnostics.metrics(stats)['policy/kl_old_nats']
    self.assertAlmostEqual(got / (2.0**-21 + 2.0**-30 / 6), 1.0, delta=1e-3)

  def test_vanished_and_huge_ratios_are_finite(self):
    stats = _stats([0.0, 2.3e17], [1.0, -1.0], [True, True])
    metrics = diagnostics.metrics(stats)
    json.dumps(metrics, allow_nan=False)
    # All weight is on one of the two.
    self.assertAlmostEqual(metrics['policy/effective_sample_frac'], 0.5)

  def test_weights_clipped_without_advantage_are_counted_apart(self):
    ratio, advantage = jnp.full(4, 2.0), jnp.array([1.0, -1.0, 0.0, 0.0])
    surrogate = surrogate_lib.cispo(-jnp.ones(4), ratio, advantage, 0.0, 1.5)
    metrics = diagnostics.metrics(
      diagnostics.ratio_stats(
        surrogate,
        ratio,
        jnp.array([True, True, True, False]),
        advantage=advantage,
        logp=-jnp.ones(4),
      )
    )
    self.assertEqual(metrics['policy/clipped_high_frac'], 1.0)
    self.assertEqual(metrics['policy/clipped_nonzero_frac'], 1.0)
    self.assertEqual(metrics['policy/clipped_high_of_positive_frac'], 1.0)
    self.assertEqual(metrics['policy/clipped_low_of_negative_frac'], 0.0)

  @parameterized.parameters(np.nan, np.inf, -np.inf, 1e30)
  def test_tokens_outside_the_mask_change_nothing(self, junk):
    ratio = _RATIO.copy()
    ratio[~_MASK] = junk
    logp = np.where(_MASK, _LOGP, np.float32(junk))
    clean = _whole()
    dirty = _stats(ratio, _ADVANTAGE, _MASK, ids=_IDS, logp=logp)
    self.assertEqual(jax.device_get(clean), jax.device_get(dirty))

  @parameterized.parameters((2, 4), (4, 2), (6, 0))
  def test_any_split_merges_to_the_whole(self, first, second):
    self.assertEqual(first + second, len(_RATIO))
    whole = diagnostics.metrics(_whole())
    parts = diagnostics.empty()
    for part in (slice(0, first), slice(first, None)):
      # Ids of a row begin at 1.
      offset = _IDS[part].min(initial=9, where=_MASK[part]) - 1
      part_stats = _stats(
        _RATIO[part],
        _ADVANTAGE[part],
        _MASK[part],
        ids=np.where(_MASK, _IDS - offset, 0)[part],
        logp=_LOGP[part],
      )
      parts = diagnostics.merge(parts, part_stats)
    merged = diagnostics.metrics(parts)
    self.assertEqual(merged.keys(), whole.keys())
    for name in whole.keys() - {_SPLIT_DEPENDENT}:
      self.assertAlmostEqual(merged[name], whole[name], places=6, msg=name)

  def test_merges_inside_a_scan(self):
    rows = (_RATIO.reshape(3, 2), _ADVANTAGE.reshape(3, 2), _MASK.reshape(3, 2))

    @jax.jit
    def run(rows):
      def body(carry, row):
        return diagnostics.merge(carry, _stats(*row)), None

      return jax.lax.scan(body, diagnostics.empty(), rows)[0]

    got = diagnostics.metrics(jax.device_get(run(rows)))
    whole = diagnostics.metrics(_stats(_RATIO, _ADVANTAGE, _MASK))
    self.assertEqual(got.keys(), whole.keys())
    for name in whole.keys() - {_SPLIT_DEPENDENT}:
      self.assertAlmostEqual(got[name], whole[name], places=6, msg=name)

  def test_no_tokens_report_nothing(self):
    nothing = _stats(_RATIO, _ADVANTAGE, np.zeros(6, bool))
    self.assertEqual(diagnostics.metrics(nothing), {})
    self.assertEqual(diagnostics.metrics(diagnostics.empty()), {})

  def test_empty_part_does_not_leak_infinities(self):
    nothing = _stats(_RATIO, _ADVANTAGE, np.zeros(6, bool))
    merged = diagnostics.merge(_stats(_RATIO, _ADVANTAGE, _MASK), nothing)
    # Refuses what is not JSON.
    json.dumps(diagnostics.metrics(merged), allow_nan=False)

  def test_counts_beyond_float32_are_exact(self):
    one = _stats([1.5], [1.0], [True])
    many = one._replace(
      token_count=jnp.array(2**24, jnp.int32),
      clipped_high_count=jnp.array(2**24, jnp.int32),
    )
    merged = diagnostics.merge(many, one)
    self.assertEqual(int(merged.token_count), 2**24 + 1)
    self.assertEqual(int(merged.clipped_high_count), 2**24 + 1)

  @parameterized.parameters(*[c for c in _CASES if c != 'all_masked'])
  def test_golden_clip_fractions(self, case):
    logp, logp_old, advantage, mask = (
      _GOLDEN[f'{case}/in/{name}']
      for name in ('log_prob', 'old_log_prob', 'advantages', 'mask')
    )
    with jax.enable_x64(True):
      ratio = ratio_lib.token_ratio(
        jnp.asarray(logp, jnp.float64),
        jnp.asarray(logp_old, jnp.float64),
        clamp=20.0,
      )
      metrics = diagnostics.metrics(
        _stats(ratio, np.float64(advantage), mask > 0)
      )
    prefix = f'{case}/dapo_0.2_0.28_c10/token-mean/f64'
    # The reference has one fraction for both bounds.
    both = metrics['policy/clipped_high_frac']
    both += metrics['policy/clipped_low_frac']
    np.testing.assert_allclose(both, _GOLDEN[f'{prefix}/clipfrac'], rtol=1e-6)
    np.testing.assert_allclose(
      metrics['policy/clipped_dual_frac'],
      _GOLDEN[f'{prefix}/clipfrac_lower'],
      rtol=1e-6,
    )


if __name__ == '__main__':
  absltest.main()

"""Tests of the ratio and clip statistics."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import diagnostics
from dapo_jax.objective import ratio as ratio_lib
from dapo_jax.objective import surrogate as surrogate_lib

_GOLDEN = np.load(
  pathlib.Path(__file__).parent / 'data/golden/policy_loss_vanilla.npz'
)
_CASES = sorted({name.split('/')[0] for name in _GOLDEN.files})


def _stats(ratio, advantage, mask):
  ratio, advantage = jnp.asarray(ratio), jnp.asarray(advantage)
  surrogate = surrogate_lib.clipped_surrogate(
    ratio, advantage, 0.8, 1.28, dual_clip=10.0
  )
  return diagnostics.ratio_stats(surrogate, ratio, jnp.asarray(mask))


# Ratios and advantages with the flag that each raises.
_RATIO = np.array([1.5, 1.5, 0.5, 20.0, 1.0, 0.5], np.float32)
_ADVANTAGE = np.array([1.0, -1.0, -1.0, -1.0, 0.0, 1.0], np.float32)
#                      high  none  low   dual  none none
_MASK = np.array([True, True, True, True, True, False])


class RatioStatsTest(parameterized.TestCase):
  def test_hand_worked_fractions(self):
    metrics = diagnostics.metrics(_stats(_RATIO, _ADVANTAGE, _MASK))
    # Five tokens count: 1.5 + 1.5 + 0.5 + 20 + 1 = 24.5.
    expected = {
      'policy/ratio_mean': 4.9,
      'policy/ratio_max': 20.0,
      'policy/ratio_min': 0.5,
      'policy/clipped_high_frac': 0.2,
      'policy/clipped_low_frac': 0.2,
      'policy/clipped_dual_frac': 0.2,
    }
    self.assertEqual(metrics.keys(), expected.keys())
    for name, value in expected.items():
      self.assertAlmostEqual(metrics[name], value, places=6, msg=name)

  @parameterized.parameters(np.nan, np.inf, -np.inf, 1e30)
  def test_tokens_outside_the_mask_change_nothing(self, junk):
    ratio = _RATIO.copy()
    ratio[~_MASK] = junk
    clean = _stats(_RATIO, _ADVANTAGE, _MASK)
    dirty = _stats(ratio, _ADVANTAGE, _MASK)
    self.assertEqual(jax.device_get(clean), jax.device_get(dirty))

  @parameterized.parameters((1, 5), (3, 3), (6, 0))
  def test_any_split_merges_to_the_whole(self, first, second):
    self.assertEqual(first + second, len(_RATIO))
    whole = diagnostics.metrics(_stats(_RATIO, _ADVANTAGE, _MASK))
    parts = diagnostics.empty()
    for part in (slice(0, first), slice(first, None)):
      part_stats = _stats(_RATIO[part], _ADVANTAGE[part], _MASK[part])
      parts = diagnostics.merge(parts, part_stats)
    self.assertEqual(diagnostics.metrics(parts), whole)

  def test_merges_inside_a_scan(self):
    rows = (_RATIO.reshape(3, 2), _ADVANTAGE.reshape(3, 2), _MASK.reshape(3, 2))

    @jax.jit
    def run(rows):
      def body(carry, row):
        return diagnostics.merge(carry, _stats(*row)), None

      return jax.lax.scan(body, diagnostics.empty(), rows)[0]

    got = diagnostics.metrics(jax.device_get(run(rows)))
    self.assertEqual(
      got, diagnostics.metrics(_stats(_RATIO, _ADVANTAGE, _MASK))
    )

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

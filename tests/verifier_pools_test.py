"""Tests of `dapo_jax.rewards.verifier_pools`."""

import contextlib

from absl.testing import absltest

import verdict_functions
from dapo_jax.rewards import verifier_pools, verifiers

_LIMITS = verifier_pools.Limits(processes=1, limit_s=20.0, memory_gib=1.0)


class PoolsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.pools = self.enterContext(
      contextlib.closing(verifier_pools.Pools(_LIMITS))
    )

  def test_a_function_has_its_own_verdicts(self):
    self.assertTrue(self.pools.equal(verdict_functions.equal, '5', '5'))
    self.assertFalse(self.pools.equal(verdict_functions.equal, '5', '6'))
    self.assertFalse(self.pools.equal(verdict_functions.fails, '5', '5'))
    self.assertTrue(self.pools.equal(verdict_functions.equal, '5', '5'))

  def test_what_has_no_verdict_is_counted_over_all_functions(self):
    self.assertEqual(self.pools.counts(), verifiers.Counts(0, 0))
    self.assertEqual(self.pools.last_fault(), '')
    self.pools.equal(verdict_functions.equal, '5', '5')
    self.pools.equal(verdict_functions.fails, '5', '5')
    self.pools.equal(verdict_functions.fails, '5', '6')
    self.assertEqual(self.pools.counts(), verifiers.Counts(0, errors=2))
    self.assertIn("answer '5', gold '6'", self.pools.last_fault())

  def test_no_process_before_there_is_a_pair(self):
    with self.subTest('none'):
      self.assertEmpty(self.pools._all())
    self.pools.equal(verdict_functions.equal, '5', '5')
    self.assertLen(self.pools._all(), 1)

  def test_closed_is_closed(self):
    self.pools.equal(verdict_functions.equal, '5', '5')
    self.pools.close()
    for function in (verdict_functions.equal, verdict_functions.fails):
      with self.assertRaisesRegex(RuntimeError, 'closed'):
        self.pools.equal(function, '5', '5')


if __name__ == '__main__':
  absltest.main()

"""Tests of `dapo_jax.data.refusals`."""

from absl.testing import absltest

from dapo_jax.data import refusals


class RefusalTest(absltest.TestCase):
  def test_says_what_its_reason_means(self):
    refusal = refusals.Refusal('matrix')
    self.assertEqual(refusal.reason, 'matrix')
    self.assertEqual(str(refusal), 'matrix: a matrix or a column vector')

  def test_only_known_reasons_are_given(self):
    with self.assertRaises(AssertionError):
      refusals.Refusal('because')


if __name__ == '__main__':
  absltest.main()

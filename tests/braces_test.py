"""Tests of `dapo_jax.data.braces`."""

from absl.testing import absltest, parameterized

from dapo_jax.data import braces


class ClosingTest(parameterized.TestCase):
  @parameterized.parameters(
    ('{5}', 2),
    ('{{5}}6}', 4),
    # The first } belongs to a set.
    ('{\\{5\\}}', 6),
    # A line break, then a brace.
    ('{\\\\}', 3),
    ('{5', -1),
    ('{5\\}', -1),
  )
  def test_is_of_the_brace_before(self, text, expected):
    self.assertEqual(braces.closing(text, 1), expected)


class AllClosedTest(parameterized.TestCase):
  @parameterized.parameters('', '5', '{5}{}', '{{5}}', '\\{5', '{\\}}')
  def test_are(self, text):
    self.assertTrue(braces.all_closed(text))

  @parameterized.parameters('{5', '5}', '}{', '{\\}', '\\\\{')
  def test_are_not(self, text):
    self.assertFalse(braces.all_closed(text))


if __name__ == '__main__':
  absltest.main()

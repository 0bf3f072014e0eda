"""Tests of verdicts that may be undecided."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import three_valued


def _equal(a, b):
  """Equality that does not know about question marks."""
  return None if '?' in (a, b) else a == b


class EveryAndSomeTest(parameterized.TestCase):
  @parameterized.parameters(
    ([], True, False),
    ([True], True, True),
    ([True, False], False, True),
    ([True, None], None, True),
    ([None, False], False, None),
    ([False, None, True], False, True),
    ([None], None, None),
  )
  def test_hand_worked(self, verdicts, every, some):
    self.assertIs(three_valued.every(verdicts), every)
    self.assertIs(three_valued.some(verdicts), some)


class MembersTest(parameterized.TestCase):
  @parameterized.parameters(
    ('abc', 'cab', True),
    ('aab', 'abb', False),
    ('ab', 'abc', False),
    ('ac', 'ab', False),
    ('a?', 'ab', None),
    ('', '', True),
  )
  def test_matched_counts_members(self, members, others, expected):
    self.assertIs(three_valued.matched(members, others, _equal), expected)

  @parameterized.parameters(
    ('aab', 'abb', True),
    ('ab', 'abc', False),
    ('abc', 'ab', False),
    ('a?', 'ab', None),
  )
  def test_covered_does_not(self, members, others, expected):
    self.assertIs(three_valued.covered(members, others, _equal), expected)


if __name__ == '__main__':
  absltest.main()

"""Tests of the forms of answers."""

from absl.testing import absltest

from dapo_jax.rewards import answer_form


class AsIntervalTest(absltest.TestCase):
  def test_pair_may_be_one(self):
    ends = (answer_form.Form('formula', '0'), answer_form.Form('formula', '9'))
    pair = answer_form.Form('tuple', '(0,9)', ends, '()')
    interval = answer_form.as_interval(pair)
    self.assertEqual(interval, pair._replace(kind='interval'))
    self.assertIs(answer_form.as_interval(interval), interval)

  def test_others_are_none(self):
    member = answer_form.Form('formula', '0')
    for form in (
      member,
      answer_form.Form('tuple', '(0,0,0)', (member,) * 3, '()'),
      answer_form.Form('list', '0,0', (member,) * 2),
    ):
      self.assertIsNone(answer_form.as_interval(form))


if __name__ == '__main__':
  absltest.main()

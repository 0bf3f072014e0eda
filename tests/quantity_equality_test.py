"""Tests of the comparison of quantities."""

from absl.testing import absltest, parameterized

from dapo_jax.rewards import (
  exact_value,
  form_reader,
  latex_parser,
  quantity_equality,
)


def _alike(answer, gold):
  """Equality of rational numbers, with pi as a number of its own."""
  values = [
    exact_value.rational(latex_parser.parse(form.text.replace('\\pi', '1001')))
    for form in (answer, gold)
  ]
  return values[0] == values[1]


def _compare(answer, gold):
  forms = form_reader.read(answer), form_reader.read(gold)
  return quantity_equality.compare(*forms, _alike)


class CompareTest(parameterized.TestCase):
  @parameterized.parameters(
    ('5\\text{cm}', '5'),
    ('5', '5\\text{cm}'),
    ('500\\text{cm}', '5\\text{m}'),
    ('50%', '50%'),
    # 50% of one; or the sign left out.
    ('50%', '0.5'),
    ('0.5', '50%'),
    ('50', '50%'),
    ('50%', '50'),
    # 180 degrees.
    ('\\pi', '180°'),
    ('180°', '\\pi'),
    ('180°', '180'),
  )
  def test_same(self, answer, gold):
    self.assertTrue(_compare(answer, gold))

  @parameterized.parameters(
    ('5\\text{cm}', '5\\text{m}'),
    ('5\\text{apples}', '5\\text{oranges}'),
    ('6\\text{cm}', '5'),
    ('40%', '50'),
    # Below one the sign can't be left out.
    ('0.5%', '0.5'),
    ('0.5', '0.5%'),
    ('50%', '50\\text{cm}'),
  )
  def test_different(self, answer, gold):
    self.assertFalse(_compare(answer, gold))

  def test_numbers_are_not_its_business(self):
    self.assertIs(_compare('5', '5'), NotImplemented)
    self.assertIs(_compare('5\\text{cm}', '1,2'), NotImplemented)


if __name__ == '__main__':
  absltest.main()

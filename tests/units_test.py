"""Tests of units: read, and compared."""

from fractions import Fraction

from absl.testing import absltest, parameterized

from dapo_jax.rewards import units


class SplitTest(parameterized.TestCase):
  @parameterized.parameters(
    ('125\\text{miles}', '125', 'miles'),
    ('15\\text{cm}^2', '15', 'cm^2'),
    ('12\\pi\\text{cm}^3', '12\\pi', 'cm^3'),
    ('\\$29.00', '29.00', 'dollar'),
    ('-\\$5', '-5', 'dollar'),
    ('90°', '90', '°'),
    ('90°\\text{C}', '90', '°C'),
    ('50%', '50', '%'),
    ('50 percent', '50', '%'),
    ('5 apples', '5', 'apples'),
    ('5cm', '5', 'cm'),
    ('60\\text{miles per hour}', '60', 'miles per hour'),
    ('3:30\\text{p.m.}', '3:30', 'p.m.'),
    ('3 million', '(3)*1000000', ''),
    ('\\$15 per hour', '15', 'dollar per hour'),
    ('3\\text{million people}', '(3)*1000000', 'people'),
  )
  def test_number_and_unit(self, text, number, unit):
    self.assertEqual(units.split(text), (number, unit))

  @parameterized.parameters(
    '5',
    '5m',
    '2x',
    '3abcd',
    '\\text{east}',
    '5\\text{not}',
    '5\\text{tenths}',
    '5\\text{sixteenths}',
    '5 ninth',
    '5\\text{tens}',
    '5\\text{point two}',
    '5\\text{below zero}',
    '0.3\\text{repeating}',
    '5\\text{i}',
    '5\\text{squared}',
    '5\\text{k}',
    '2\\sin x',
    '5 pi',
    # The degrees belong to the argument.
    '\\sin 30°',
  )
  def test_no_unit(self, text):
    self.assertEqual(units.split(text), (text, ''))

  def test_several_signs_of_money_are_no_unit(self):
    for text in ('\\$' * 3000 + '5', '£-' * 3000 + '5'):
      self.assertEqual(units.split(text), (text, ''))

  def test_time_is_not_exponential(self):
    # `per` is a word, and part of ' per ': 2^30 ways would take minutes.
    for end in ('!', ' 1'):
      text = '5 ab' + ' per' * 400 + end
      self.assertEqual(units.split(text), (text, ''))


class RatioTest(parameterized.TestCase):
  @parameterized.parameters(
    ('', 'cm', 1),
    ('cm', '', 1),
    ('units', 'cm', 1),
    ('cm', 'm', Fraction(1, 100)),
    ('hours', 'minutes', 60),
    ('cm^2', 'square centimeters', 1),
    ('m^2', 'cm^2', 10_000),
    # 1000 m in 3600 s.
    ('km/h', 'm/s', Fraction(5, 18)),
    ('mph', 'miles per hour', 1),
    ('kph', 'km/h', 1),
    ('dollars', 'cents', 100),
    ('degrees', '°', 1),
    ('apples', 'apple', 1),
    ('ways', 'different ways', 1),
    ('PM', 'p.m.', 1),
  )
  def test_units_that_agree(self, unit, other, expected):
    self.assertEqual(units.ratio(unit, other), expected)

  @parameterized.parameters(
    ('cm', 'kg'),
    ('cm^2', 'cm^3'),
    ('square feet', 'feet'),
    ('apples', 'oranges'),
    ('miles', 'apples'),
    ('a.m.', 'p.m.'),
    ('°C', '°F'),
    # Within a word, mph are no miles per hour.
    ('nymphs', 'nymiles per hour'),
    ('radians', 'degrees'),
    # Two words, of which the second is behind a power.
    ('cm^2 cm', 'm'),
  )
  def test_units_that_contradict(self, unit, other):
    self.assertIsNone(units.ratio(unit, other))


if __name__ == '__main__':
  absltest.main()

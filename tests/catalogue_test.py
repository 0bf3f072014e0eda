"""Tests of the metric catalogue and of the page made from it."""

import pathlib
import re

from absl.testing import absltest

from dapo_jax.monitor import catalogue

_PAGE = pathlib.Path(__file__).parent.parent / 'docs/metrics.md'
_ROW = re.compile(r'\| `([^`]+)` \| ([^|]*) \| ([^|]+) \|')
_SUFFIX_UNITS = {
  '_per_s': 'tokens/s',
  '_count': 'count',
  '_tokens': 'tokens',
  '_frac': 'frac',
  '_nats': 'nats',
  '_s': 's',
}


def _unit_by_suffix(name):
  for suffix, unit in _SUFFIX_UNITS.items():
    if name.endswith(suffix):
      return unit
  return ''


class CatalogueTest(absltest.TestCase):
  def test_unit_is_the_names_suffix(self):
    for name, metric in catalogue.METRICS.items():
      self.assertEqual(metric.unit, _unit_by_suffix(name), msg=name)

  def test_names_are_group_and_name(self):
    for name in catalogue.METRICS:
      self.assertRegex(name, r'^[a-z]+/[a-z0-9_]+$')

  def test_definitions_are_sentences(self):
    for name, metric in catalogue.METRICS.items():
      self.assertRegex(metric.definition, r'^[A-Z1].*[.\]]$', msg=name)
      self.assertNotIn('|', metric.definition.replace('|difference|', ''))

  def test_known_names_pass(self):
    catalogue.check(['reward/mean', 'policy/loss'])
    catalogue.check([])

  def test_unknown_name_is_refused_with_the_nearest(self):
    with self.assertRaisesRegex(
      ValueError, r'reward/meen \(nearest: reward/mean\)'
    ):
      catalogue.check(['policy/loss', 'reward/meen'])

  def test_every_unknown_name_is_named(self):
    with self.assertRaisesRegex(ValueError, r'zzz.*qqq'):
      catalogue.check(['zzz', 'qqq'])


class PageTest(absltest.TestCase):
  def test_page_lists_the_catalogue_and_nothing_else(self):
    rows = {}
    for line in _PAGE.read_text(encoding='utf-8').splitlines():
      match = _ROW.fullmatch(line)
      if match:
        name, unit, definition = match.groups()
        self.assertNotIn(name, rows)
        rows[name] = (unit.strip(), definition)
    expected = {
      name: (metric.unit or '-', metric.definition.replace('|', '&#124;'))
      for name, metric in catalogue.METRICS.items()
    }
    self.assertEqual(rows, expected)


if __name__ == '__main__':
  absltest.main()

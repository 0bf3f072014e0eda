"""Tests that docs/checkpoints.md names tests and keys that exist."""

import pathlib
import re

from absl.testing import absltest

import fidelity_test
from dapo_jax import config_keys

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGE = (_ROOT / 'docs/checkpoints.md').read_text()


class PageTest(absltest.TestCase):
  def test_every_test_exists(self):
    self.assertEmpty(fidelity_test.missing(_PAGE))

  def test_every_fault_has_a_test(self):
    rows = re.findall(
      r'^\| (?!fault|---)(.*) \|$',
      _PAGE.split('## What survives what\n')[1],
      re.MULTILINE,
    )
    self.assertGreater(len(rows), 15)
    for row in rows:
      self.assertRegex(row, r'\| `\w+_test\.py:\w+\.test_\w+`')

  def test_every_key_of_the_section_is_told_and_no_other(self):
    told = re.findall(r'`(checkpoint\.\w+)`', _PAGE)
    self.assertEqual(
      set(told),
      {k for k in config_keys.known_keys() if k.startswith('checkpoint.')},
    )


if __name__ == '__main__':
  absltest.main()

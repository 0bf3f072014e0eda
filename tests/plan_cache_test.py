"""Tests of `planning.plan_cache`."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from dapo_jax.planning import plan_cache


class CacheTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.home = pathlib.Path(folder.name)
    self.enterContext(
      mock.patch.dict(os.environ, {'XDG_CACHE_HOME': folder.name})
    )

  def test_what_was_written_is_read(self):
    self.assertIsNone(plan_cache.read('abc'))
    plan_cache.write('abc', {'memory': [1, 2]})
    self.assertEqual(plan_cache.read('abc'), {'memory': [1, 2]})
    self.assertLen([*self.home.rglob('*.json')], 1)

  def test_a_broken_entry_is_none(self):
    plan_cache.write('abc', {})
    (plan_cache.folder() / 'abc.json').write_text('{"mem')
    self.assertIsNone(plan_cache.read('abc'))

  def test_without_a_place_nothing_is_kept(self):
    (self.home / 'dapo_jax').write_text('a file in the way')
    plan_cache.write('abc', {})
    self.assertIsNone(plan_cache.read('abc'))

  def test_the_key_is_of_the_program_the_topology_and_the_versions(self):
    versions = dict.fromkeys(('dapo-jax', 'jax', 'jaxlib', 'libtpu'), '1')
    with mock.patch.object(plan_cache, 'versions', lambda: versions):
      one = plan_cache.key('module', 'v5p:4x4x8')
      self.assertEqual(one, plan_cache.key('module', 'v5p:4x4x8'))
      others = {
        plan_cache.key('module 2', 'v5p:4x4x8'),
        plan_cache.key('module', 'v5p:2x2x1'),
      }
      versions['libtpu'] = '2'
      others.add(plan_cache.key('module', 'v5p:4x4x8'))
      self.assertLen(others | {one}, 4)


if __name__ == '__main__':
  absltest.main()

"""Tests of the `plan` command."""

import json
import os
import subprocess
import sys
import tempfile

import pytest
from absl.testing import absltest

import tiny_run


def _plan(*flags):
  with tempfile.TemporaryDirectory() as home:
    return subprocess.run(
      [sys.executable, '-m', 'dapo_jax.main', 'plan', *flags],
      capture_output=True,
      text=True,
      check=False,
      env=os.environ | {'XDG_CACHE_HOME': home},
    )


class RefusalTest(absltest.TestCase):
  def assert_refused(self, flags, words):
    found = _plan(*flags)
    self.assertEqual((found.returncode, found.stdout), (2, ''))
    self.assertLen(found.stderr.splitlines(), 1)
    self.assertRegex(found.stderr, words)

  def test_a_topology_is_needed(self):
    self.assert_refused(tiny_run.flags(), '--topology=SLICE is required')

  def test_a_wrong_one_is_told_with_those_that_are_near(self):
    self.assert_refused(
      [*tiny_run.flags(), '--topology=v5p-250'], 'nearest are .*v5p-256'
    )

  def test_metrics_have_to_be_there(self):
    self.assert_refused(
      [*tiny_run.flags(), '--topology=v5e:2x2', '--metrics=nowhere.jsonl'],
      r'--metrics \(nowhere\.jsonl\)',
    )


class PlanTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    pytest.importorskip('libtpu')

  def test_a_configuration_without_data_is_planned_at_once(self):
    found = _plan(
      '--config=configs/dapo_qwen2p5_32b.py', '--topology=v5p-256', '--fast'
    )
    self.assertEqual(found.stderr, '')
    self.assertEqual(found.returncode, 0)
    self.assertIn('32 engines of 4 chips', found.stdout)

  def test_what_does_not_fit_is_status_1_and_says_what_would(self):
    found = _plan(
      '--config=configs/dapo_qwen2p5_32b.py',
      '--topology=v5p-256',
      '--fast',
      '--json',
      '--config.sampler.cache_gib=90',
    )
    self.assertEqual((found.returncode, found.stderr), (1, ''))
    read = json.loads(found.stdout)
    self.assertFalse(read['phases']['rollout']['fits'])
    self.assertTrue(read['phases']['update']['fits'])
    best, *_ = read['choices']['rollout']
    self.assertEqual(best['why_not'], '')
    self.assertLess(best['total_gib'], 95.74)

  def test_a_small_one_is_compiled(self):
    found = _plan(
      *tiny_run.flags(
        {'model.compute_dtype': 'bfloat16', 'model.head_dim': 128}
      ),
      '--config.learner.micro_batch_rows=None',
      '--topology=v5e:2x2',
    )
    self.assertEqual((found.returncode, found.stderr), (0, ''))
    self.assertIn('It fits.', found.stdout)
    self.assertIn('attention splash', found.stdout)


if __name__ == '__main__':
  absltest.main()

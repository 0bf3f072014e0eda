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

  def test_a_mixture_of_problems_is_not_read_either(self):
    found = _plan(
      *tiny_run.flags({'data.source': ''}),
      "--config.data.mixture=(('nowhere.jsonl', 3), ('task:gcd', 1))",
      '--topology=v5e:2x2',
      '--fast',
    )
    self.assertEqual((found.returncode, found.stderr), (0, ''))

  def test_what_does_not_fit_is_status_1_and_says_what_would(self):
    flags = (
      '--config=configs/dapo_qwen2p5_32b.py',
      '--topology=v5p-256',
      '--fast',
      '--json',
      '--config.sampler.cache_gib=90',
    )
    found = _plan(*flags)
    self.assertEqual((found.returncode, found.stderr), (1, ''))
    read = json.loads(found.stdout)
    self.assertFalse(read['phases']['rollout']['fits'])
    self.assertTrue(read['phases']['update']['fits'])
    best, *_ = read['choices']['rollout']
    self.assertEqual(best['why_not'], '')
    self.assertLess(best['total_gib'], 95.74)
    found = _plan(*flags, '--nosweep')
    self.assertEqual((found.returncode, found.stderr), (1, ''))
    self.assertNotIn('rollout', json.loads(found.stdout).get('choices', {}))

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

  def test_what_a_run_would_warn_of_is_in_the_plan(self):
    flags = ['--config=configs/demo.py', '--topology=v5e:2x2', '--fast']
    found = _plan(*flags)
    self.assertEqual(found.stderr, '')
    note = 'rows are kept whole, not in pages: its heads have 32 entries'
    self.assertStartsWith(found.stdout, f'Note: {note}')
    found = _plan(*flags, '--json')
    self.assertStartsWith(json.loads(found.stdout)['notes'][0], note)
    found = _plan(
      *(
        '--config=configs/dcpo_qwen2p5_math.py:dapo_1.5b',
        '--config.model.path=input/Qwen2.5-Math-1.5B-Instruct',
        '--topology=v5litepod-8',
        '--fast',
      ),
    )
    self.assertEqual(found.stderr, '')
    self.assertRegex(found.stdout, '^Note: input/Qwen2.* is not here')


class InterruptionTest(absltest.TestCase):
  def test_ctrl_c_does_not_wait_for_the_compiler(self):
    # As while a compiler computes: Python hears of no signal for minutes.
    program = """
import hashlib, os, signal, threading
from dapo_jax import plan_command
# Where the tests run in the background, a shell has turned it off.
signal.signal(signal.SIGINT, signal.default_int_handler)
with plan_command._interruptible():
  threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
  hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)
"""
    found = subprocess.run(
      [sys.executable, '-c', program],
      capture_output=True,
      text=True,
      check=False,
      timeout=60,
    )
    self.assertEqual(
      (found.returncode, found.stderr), (130, 'dapo-jax: interrupted\n')
    )


if __name__ == '__main__':
  absltest.main()

"""Tests of `planning.analysis`."""

import os
import tempfile
from unittest import mock

from absl.testing import absltest

import planned
from dapo_jax.planning import (
  analysis,
  compiling,
  job_shapes,
  model_shapes,
  step_programs,
)


def _program(name):
  config = planned.config()
  setup = job_shapes.setup(config, model_shapes.spec(config), planned.devices())
  found = step_programs.all_of(setup, prompt_tokens=(3, 8))
  return next(p for p in found if p.name == name)


class ReportTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.enterContext(
      mock.patch.dict(os.environ, {'XDG_CACHE_HOME': folder.name})
    )

  def _report(self, name, **options):
    return analysis.report(
      _program(name),
      topology='v5e:2x2',
      window_tokens=None,
      **{'compiles': True} | options,
    )

  def test_what_is_known_is_not_compiled_again(self):
    first = self._report('old log-probs')
    with mock.patch.object(compiling, 'compile_lowered') as compile_lowered:
      second = self._report('old log-probs')
    compile_lowered.assert_not_called()
    self.assertEqual((first.is_cached, second.is_cached), (False, True))
    self.assertEqual(first._replace(is_cached=True), second)

  def test_rows_split_over_devices_are_gathered_and_added_up(self):
    report = self._report('old log-probs')
    # A micro-batch of the loop over rows of 32 places; there are no narrower.
    self.assertLen(report.loops, 1)
    axes = {axis for one in report.sent for axis in one.axes}
    self.assertEqual(axes, {'fsdp', 'tensor'})
    self.assertGreater(report.work.ici_bytes[1], 0)
    self.assertEqual(report.work.dcn_bytes, (0, 0))

  def test_products_are_split_over_the_devices(self):
    report = self._report('old log-probs', compiles=False)
    self.assertIsNone(report.memory)
    # Of 2 rows of 32 places: 2 layers, and logits at 320 rows of vocabulary.
    # Q and output 32 x 32 each, K and V 32 x 16 each, three of 32 x 64.
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    # Dense attention: all pairs of 32 places, 4 heads of 8, twice.
    attention = 2 * 32 * 4 * 8
    place = 2 * (2 * (layer + attention) + 32 * 320)
    self.assertEqual(report.work.matmul_flops[1], place * 2 * 32 / 4)

  def test_a_refusal_is_kept_too(self):
    fault = compiling.Fault('hbm', 'too large', 123)
    with mock.patch.object(
      compiling,
      'compile_lowered',
      lambda *_: compiling.Compiled(None, '', fault, 1.0),
    ):
      self._report('old log-probs')
    report = self._report('old log-probs')
    self.assertTrue(report.is_cached)
    self.assertEqual(report.fault, fault)
    self.assertIsNone(report.work.cycles)


if __name__ == '__main__':
  absltest.main()

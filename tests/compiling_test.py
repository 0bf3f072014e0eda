"""Tests of `planning.compiling`."""

import os
import subprocess
import sys

from absl.testing import absltest, parameterized

from dapo_jax.planning import compiling


class FaultTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      'RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used '
      '25.31G of 15.75G hbm. Exceeded hbm capacity by 9.56G.',
      'hbm',
      25.31,
    ),
    (
      'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory '
      'required for HLO temporaries (34.61G) exceeds available HBM (15.75G).',
      'hbm',
      34.61,
    ),
    (
      'RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom: Ran out of memory '
      'in memory space vmem while allocating on stack.',
      'vmem',
      None,
    ),
    ('INTERNAL: Mosaic failed to compile TPU kernel', 'compiler', None),
  )
  def test_it_is_told_which_memory_is_too_small(self, text, kind, gib):
    found = compiling.fault_of(text)
    self.assertEqual(found.kind, kind)
    self.assertEqual(
      found.needed_bytes, None if gib is None else round(gib * 2**30)
    )

  def test_a_long_message_is_cut(self):
    text = compiling.fault_of('word ' * 1000).text
    self.assertLess(len(text), 310)


class QuietTest(absltest.TestCase):
  def test_what_is_printed_below_python_is_hidden_within(self):
    code = (
      'import os\n'
      'from dapo_jax.planning import compiling\n'
      'with compiling.quiet_stderr():\n'
      "  os.write(2, b'hidden')\n"
      "os.write(2, b'shown')\n"
    )
    found = subprocess.run(
      [sys.executable, '-c', code],
      capture_output=True,
      check=True,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    )
    self.assertEqual(found.stderr, b'shown')


if __name__ == '__main__':
  absltest.main()

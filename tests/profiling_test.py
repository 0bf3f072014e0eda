"""Tests of `training.profiling`."""

import pathlib
import tempfile

import jax.numpy as jnp
from absl.testing import absltest

from dapo_jax.training import profiling


class TracedTest(absltest.TestCase):
  def _steps(self, **options):
    """Returns the steps of 1 to 5 that leave a trace."""
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    folder = pathlib.Path(folder.name)
    for step in range(1, 6):
      with profiling.traced(folder, step, **options):
        jnp.arange(3).sum().block_until_ready()
    return sorted(
      int(file.relative_to(folder).parts[0].removeprefix('step_'))
      for file in folder.rglob('*.xplane.pb')
    )

  def test_the_steps_asked_for_leave_a_trace_and_no_other(self):
    self.assertEqual(self._steps(first_step=2, steps=2), [2, 3])

  def test_none_is_traced_unless_asked_for(self):
    self.assertEqual(self._steps(first_step=None, steps=2), [])


if __name__ == '__main__':
  absltest.main()

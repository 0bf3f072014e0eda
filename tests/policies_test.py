"""Tests of `training.policies`, on a run and its model."""

import contextlib
import functools
import io
import pathlib
import shutil
import tempfile

import jax
import numpy as np
from absl.testing import absltest

import tiny_run
from dapo_jax.training import loop, policies


@functools.cache
def _workdir() -> pathlib.Path:
  """Returns the work directory of a run of two steps, both saved."""
  workdir = tiny_run.folder() / 'policies'
  config = tiny_run.policy_config(
    {'train.steps': 2, 'checkpoint.every_steps': 1, 'eval.prompts': 2}
  )
  with tiny_run.devices(1), contextlib.redirect_stdout(io.StringIO()):
    loop.train(config, str(workdir))
  return workdir


def _read(opened):
  """Returns (name, parameters) of what is opened, on the host."""
  with opened as policy:
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: where, policy.model.shapes)
    return policy.name, jax.device_get(policy.load(shardings))


class PoliciesTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    holder = tempfile.TemporaryDirectory()
    self.addCleanup(holder.cleanup)
    self.folder = pathlib.Path(holder.name) / 'run'
    shutil.copytree(_workdir(), self.folder)

  def assert_same(self, a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)

  def test_a_run_that_is_done_is_its_model_and_else_its_newest_checkpoint(self):
    name, done = _read(policies.opened(self.folder))
    self.assertEqual(name, str(self.folder / 'model'))
    shutil.rmtree(self.folder / 'model')
    name, newest = _read(policies.opened(self.folder))
    self.assertEqual(name, str(self.folder / 'checkpoints' / '2'))
    self.assert_same(newest, done)

  def test_a_checkpoint_is_itself(self):
    place = self.folder / 'checkpoints'
    _, newest = _read(policies.of_run(place))
    for step in (1, 2):
      name, found = _read(policies.of_run(place / str(step)))
      self.assertEqual(name, str(place / str(step)))
      same = np.array_equal(found['block']['q'], newest['block']['q'])
      self.assertEqual(same, step == 2)

  def test_what_is_none_is_told_with_what_it_may_be(self):
    shutil.rmtree(self.folder)
    self.folder.mkdir()
    with self.assertRaisesRegex(ValueError, 'no model in .*checkpoint; --'):
      with policies.opened(self.folder):
        self.fail('opened')
    with self.assertRaisesRegex(ValueError, 'no checkpoint in .*/run: neither'):
      with policies.of_run(self.folder):
        self.fail('opened')


if __name__ == '__main__':
  absltest.main()

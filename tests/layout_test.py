"""Tests of `training.layout`."""

import jax
import ml_collections
from absl.testing import absltest

import tiny_run
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.training import layout


class RowsTest(absltest.TestCase):
  def test_rows_are_as_long_as_asked_or_hold_the_longest(self):
    self.assertEqual(layout.row_tokens(tiny_run.config()), 32)
    longest = tiny_run.config({'learner.pack_tokens': None})
    # The longest prompt, 8, and the longest response, 8.
    self.assertEqual(layout.row_tokens(longest), 16)

  def test_a_micro_batch_has_a_row_for_each_shard_unless_told(self):
    config = tiny_run.config({'learner.micro_batch_rows': None})
    mesh = mesh_lib.update_mesh(jax.devices()[:8], data=2, fsdp=2, tensor=2)
    self.assertEqual(layout.micro_batch_rows(config, mesh), 4)
    responses = (
      config.learner.minibatch_prompts * config.rollout.responses_per_prompt
    )
    self.assertEqual(
      layout.rows_shape(config, mesh), (-(-responses // 4), 4, 32)
    )

  def test_rows_that_do_not_split_are_refused(self):
    config = ml_collections.ConfigDict(
      tiny_run.config({'learner.micro_batch_rows': 3})
    )
    config.mesh.fsdp = 2
    with self.assertRaisesRegex(
      ValueError, r'\(3\).*by the 2 .*--config\.learner\.micro_batch_rows'
    ):
      layout.update_mesh(
        ml_collections.FrozenConfigDict(config), jax.devices()[:2]
      )


if __name__ == '__main__':
  absltest.main()

"""Tests of `training.layout`."""

import jax
import ml_collections
from absl.testing import absltest

import tiny_run
from dapo_jax.training import layout


class RowsTest(absltest.TestCase):
  def test_rows_are_as_long_as_asked_or_hold_the_longest(self):
    self.assertEqual(layout.row_tokens(tiny_run.config()), 32)
    longest = tiny_run.config({'learner.pack_tokens': None})
    # The longest prompt, 8, and the longest response, 8.
    self.assertEqual(layout.row_tokens(longest), 16)

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

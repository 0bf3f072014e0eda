"""Tests of what is known of TPU chips."""

from absl.testing import absltest, parameterized

from dapo_jax.model import splash
from dapo_jax.planning import chips

# Cells of the matrix units that a device has.
_CELLS = {
  'v4': 2 * 4 * 128 * 128,
  'v5e': 4 * 128 * 128,
  'v5p': 2 * 4 * 128 * 128,
  'v6e': 4 * 256 * 256,
  'tpu7x': 4 * 256 * 256,
}


class ChipsTest(parameterized.TestCase):
  @parameterized.parameters(*chips.CHIPS)
  def test_each_cell_makes_two_operations_a_cycle(self, name):
    chip = chips.CHIPS[name]
    self.assertEqual(chip.name, name)
    peak = 2 * _CELLS[name] * chip.clock_hz
    self.assertAlmostEqual(peak / chip.peak_flops, 1, delta=0.01)

  def test_the_kernels_of_attention_know_the_kinds(self):
    kinds = {chip.device_kind for chip in chips.CHIPS.values()}
    self.assertContainsSubset(splash._BLOCKS, kinds)

  @parameterized.parameters(*chips.CHIPS)
  def test_networks_are_slower_the_farther_they_reach(self, name):
    chip = chips.CHIPS[name]
    self.assertLess(chip.ici_bytes_per_s, chip.hbm_bytes_per_s)
    self.assertLess(chip.dcn_bytes_per_s, chip.ici_bytes_per_s)


if __name__ == '__main__':
  absltest.main()

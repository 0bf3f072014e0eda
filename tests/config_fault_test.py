"""Tests of config_fault.py."""

from absl.testing import absltest

from dapo_jax import config_fault


class RequireTest(absltest.TestCase):
  def test_what_holds_is_no_fault(self):
    config_fault.require(True, 'never said', 'a.b')

  def test_a_fault_names_the_rule_and_each_flag(self):
    with self.assertRaisesRegex(
      config_fault.ConfigError,
      r'^it is wrong; change --config\.a\.b or --config\.c$',
    ):
      config_fault.require(False, 'it is wrong', 'a.b', 'c')


if __name__ == '__main__':
  absltest.main()

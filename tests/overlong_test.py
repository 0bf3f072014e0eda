"""Tests of the soft overlong punishment."""

import pathlib

import numpy as np
from absl.testing import absltest, parameterized

from dapo_jax.objective import overlong

_GOLDEN = np.load(
  pathlib.Path(__file__).parent / 'data/golden/overlong_penalty.npz'
)
_CASES = sorted({name.split('/')[0] for name in _GOLDEN.files})


class SoftPunishmentTest(parameterized.TestCase):
  @parameterized.parameters(
    (0, 0.0),
    (16_384, 0.0),
    # One token of the 4096.
    (16_385, -1 / 4096),
    (18_432, -0.5),
    (20_479, -4095 / 4096),
    (20_480, -1.0),
    (20_481, -1.0),
    (24_576, -1.0),
  )
  def test_the_papers_lengths(self, length, expected):
    got = overlong.soft_punishment(
      length, expected_tokens=16_384, cache_tokens=4096
    )
    self.assertEqual(got, expected)
    self.assertIsInstance(got, float)

  def test_arrays_of_lengths(self):
    # L_max 20, L_cache 4.
    got = overlong.soft_punishment(
      np.array([15, 16, 17, 18, 20, 21]), expected_tokens=16, cache_tokens=4
    )
    np.testing.assert_array_equal(got, [0.0, 0.0, -0.25, -0.5, -1.0, -1.0])
    self.assertEqual(got.dtype, np.float64)

  def test_numpy_scalar_gives_a_number(self):
    got = overlong.soft_punishment(
      np.int64(17), expected_tokens=16, cache_tokens=4
    )
    self.assertEqual(got, -0.25)

  def test_cache_as_long_as_the_limit_punishes_from_the_first_token(self):
    got = overlong.soft_punishment(1, expected_tokens=0, cache_tokens=4)
    self.assertEqual(got, -0.25)

  def test_cache_of_zero_is_refused(self):
    with self.assertRaisesRegex(ValueError, r'--config\.overlong\.enabled'):
      overlong.soft_punishment(1, expected_tokens=16, cache_tokens=0)

  def test_cache_longer_than_the_limit_is_refused_with_both_lengths(self):
    with self.assertRaisesRegex(ValueError, 'got 24 and 20'):
      overlong.soft_punishment(1, expected_tokens=-4, cache_tokens=24)


class GoldenTest(parameterized.TestCase):
  @parameterized.parameters(*_CASES)
  def test_agrees_up_to_the_limit_and_has_a_floor_beyond(self, case):
    lengths = _GOLDEN[f'{case}/in/valid_response_len']
    limit = int(_GOLDEN[f'{case}/in/max_resp_len'])
    cache = int(_GOLDEN[f'{case}/in/buffer_len'])
    factor = float(_GOLDEN[f'{case}/in/penalty_factor'])
    reference = _GOLDEN[f'{case}/overlong_reward']
    got = factor * overlong.soft_punishment(
      lengths, expected_tokens=limit - cache, cache_tokens=cache
    )
    within = lengths <= limit
    self.assertTrue(within.any())
    np.testing.assert_allclose(got[within], reference[within], rtol=1e-12)
    # The reference goes on falling.
    np.testing.assert_array_equal(got[~within], -factor)
    self.assertTrue((reference[~within] < -factor).all())


if __name__ == '__main__':
  absltest.main()

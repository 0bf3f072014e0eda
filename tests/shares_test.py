"""Tests of `rollout.shares`."""

import itertools
from unittest import mock

import jax
from absl.testing import absltest, parameterized

from dapo_jax.parallel import job as job_lib
from dapo_jax.rollout import shares as shares_lib


def _all(engines, hosts):
  """Returns the shares as each process has them."""
  count = engines * hosts
  return [
    shares_lib.Shares(job_lib.Job(i, count), engines=engines, hosts=hosts)
    for i in range(count)
  ]


def _devices(*processes):
  """Returns devices of these processes."""
  return [mock.Mock(spec=jax.Device, process_index=p) for p in processes]


class OwnerTest(parameterized.TestCase):
  def test_two_engines_of_two_processes_by_hand(self):
    # Engine 0 is of processes 0 and 1: it samples 0, 2, 4, 6, and they own
    # them in turn; so do 2 and 3 of engine 1 with 1, 3, 5, 7.
    shares = _all(2, 2)
    owners = [shares[0].owner(ordinal) for ordinal in range(8)]
    self.assertEqual(owners, [0, 2, 1, 3, 0, 2, 1, 3])
    sampled = [
      [o for o in range(8) if of.is_sampled_here(o)] for of in shares
    ]  # fmt: skip
    self.assertEqual(sampled, [[0, 2, 4, 6]] * 2 + [[1, 3, 5, 7]] * 2)

  @parameterized.product(engines=(1, 2, 3, 5, 8), hosts=(1, 2, 3, 4))
  def test_no_draw_has_two_owners_and_none_has_too_many(self, engines, hosts):
    shares = _all(engines, hosts)
    count = len(shares)
    for first, draws in itertools.product(
      (0, 1, 2, 7, 12, 1_000_003), (0, 1, 2, 3, 5, 12, 41)
    ):
      owned = [0] * count
      for ordinal in range(first, first + draws):
        owners = [i for i, of in enumerate(shares) if of.is_own(ordinal)]
        self.assertLen(owners, 1)
        self.assertEqual({of.owner(ordinal) for of in shares}, set(owners))
        # Those that sample it are the neighbours of one engine, all of them.
        samplers = [
          i for i, of in enumerate(shares) if of.is_sampled_here(ordinal)
        ]
        first_of_engine = owners[0] // hosts * hosts
        self.assertEqual(
          samplers, list(range(first_of_engine, first_of_engine + hosts))
        )
        owned[owners[0]] += 1
      # The arrays of the exchange have room for so many.
      self.assertLessEqual(max(owned), -(-draws // count))

  def test_alone_all_is_its_own(self):
    shares = shares_lib.alone()
    for ordinal in range(5):
      self.assertTrue(shares.is_sampled_here(ordinal))
      self.assertTrue(shares.is_own(ordinal))


class OfTest(parameterized.TestCase):
  @parameterized.parameters(
    # 4 processes of 2 devices: chips of an engine, engines, their processes.
    (None, 4, 1),
    (2, 4, 1),
    (4, 2, 2),
    (8, 1, 4),
  )
  def test_an_engine_has_the_devices_of_whole_processes(
    self, chips, engines, hosts
  ):
    devices = _devices(0, 0, 1, 1, 2, 2, 3, 3)
    for index in range(4):
      job = job_lib.Job(index, 4)
      found = shares_lib.of(job, devices, engine_chips=chips)
      self.assertEqual(found, (job, engines, hosts))

  @parameterized.parameters(1, 3, 6, 16)
  def test_other_numbers_are_refused_with_the_flag(self, chips):
    with self.assertRaisesRegex(
      ValueError,
      rf'engine_chips \({chips}\) .* multiple of the 2 devices .* divide the 8 '
      'of all, so it can be 2, 4, 8; change --config.sampler.engine_chips',
    ):
      shares_lib.of(
        job_lib.Job(1, 4),
        _devices(0, 0, 1, 1, 2, 2, 3, 3),
        engine_chips=chips,
      )

  def test_three_processes_are_not_one_engine_and_a_half(self):
    with self.assertRaisesRegex(ValueError, r'\(4\) .* divide the 6 of all'):
      shares_lib.of(
        job_lib.Job(0, 3), _devices(0, 0, 1, 1, 2, 2), engine_chips=4
      )


if __name__ == '__main__':
  absltest.main()

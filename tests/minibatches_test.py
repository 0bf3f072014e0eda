"""Tests of `training.minibatches`, with groups made by hand."""

from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import fake_jobs
import tiny_groups
import tiny_run
from dapo_jax.data import records
from dapo_jax.objective import weighting
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.rollout import shares
from dapo_jax.training import minibatches, row_plan


def _groups(count, **options):
  return [
    tiny_groups.group((1, 0, 0, 0), ordinal=i, **options) for i in range(count)
  ]


def _segments(groups, **changes):
  return minibatches.segments(
    groups,
    **{
      'aggregation': 'token_mean',
      'max_response_tokens': 16,
      **changes,
    },
  )


class SplitTest(parameterized.TestCase):
  @parameterized.parameters(
    # groups, at most so many in one, sizes
    (8, 4, [4, 4]),
    (6, 4, [3, 3]),
    (5, 4, [2, 3]),
    (3, 4, [3]),
    (9, 4, [3, 3, 3]),
    (1, 4, [1]),
    (0, 4, []),
    (4, 1, [1, 1, 1, 1]),
  )
  def test_sizes(self, count, size, expected):
    parts = minibatches.split(_groups(count), size=size)
    self.assertEqual([len(part) for part in parts], expected)

  def test_all_are_there_once_and_in_order_and_near_equal(self):
    groups = _groups(40)
    for count in range(41):
      for size in range(1, 12):
        parts = minibatches.split(groups[:count], size=size)
        ordinals = [g.draw.ordinal for part in parts for g in part]
        self.assertEqual(ordinals, list(range(count)))
        sizes = [len(part) for part in parts]
        self.assertLessEqual(max(sizes, default=0), size)
        self.assertLessEqual(max(sizes, default=0) - min(sizes, default=0), 1)
        self.assertLen(parts, -(-count // size))


class SegmentsTest(parameterized.TestCase):
  def test_weights_are_over_the_whole_minibatch(self):
    groups = _groups(2, lengths=[1, 7, 3, 5])
    segments = _segments(groups)
    # 32 tokens in all.
    self.assertEqual({s.token_weight for s in segments}, {1 / 32})
    total = sum(s.token_weight * len(s.response_tokens) for s in segments)
    self.assertEqual(total, 1.0)

  @parameterized.parameters(*weighting.MODES)
  def test_weights_are_those_of_the_mode(self, mode):
    groups = [
      tiny_groups.group((1, 0), ordinal=4, lengths=[2, 6]),
      tiny_groups.group((1, 0), ordinal=9, lengths=[1, 3]),
    ]
    found = [s.token_weight for s in _segments(groups, aggregation=mode)]
    expected = {
      'token_mean': [1 / 12] * 4,
      'group_token_mean': [1 / 16, 1 / 16, 1 / 8, 1 / 8],
      'sequence_mean': [1 / 8, 1 / 24, 1 / 4, 1 / 12],
      'only_token_mean': [1 / 4, 1 / 12, 1 / 2, 1 / 6],
      'constant': [1 / 64] * 4,
    }
    np.testing.assert_allclose(found, expected[mode], rtol=1e-12)

  def test_truncated_responses_can_be_left_out(self):
    # Lengths 2 and 6 of one prompt, 4 and 4 of another; the 6 is cut off.
    groups = [
      tiny_groups.group((1, 0), ordinal=0, lengths=[2, 6]),
      tiny_groups.group(
        (1, 0), ordinal=1, lengths=[4, 4], finish=['eos', 'stop']
      ),
    ]
    cut = groups[0].responses[1]._replace(finish='length')
    groups[0] = groups[0]._replace(responses=(groups[0].responses[0], cut))
    weights = lambda **how: [s.token_weight for s in _segments(groups, **how)]
    np.testing.assert_allclose(weights(), [1 / 16] * 4)
    np.testing.assert_allclose(
      weights(mask_truncated=True), [1 / 10, 0, 1 / 10, 1 / 10]
    )
    np.testing.assert_allclose(
      weights(mask_truncated=True, count_masked=True),
      [1 / 16, 0, 1 / 16, 1 / 16],
    )

  def test_a_prompt_drawn_twice_makes_two_groups(self):
    first, second = (
      tiny_groups.group((1, 0), ordinal=0, lengths=[n, n]) for n in (2, 6)
    )
    second = second._replace(draw=first.draw._replace(ordinal=5))
    found = [
      s.token_weight
      for s in _segments([first, second], aggregation='group_token_mean')
    ]
    # 1 / (2 groups * 4 tokens) and 1 / (2 * 12), not 1 / 16 of one group.
    np.testing.assert_allclose(found, [1 / 8, 1 / 8, 1 / 24, 1 / 24])

  def test_each_has_its_own_tokens(self):
    groups = _groups(2, lengths=[1, 7, 3, 5])
    responses = [(g, r) for g in groups for r in g.responses]
    for s, (group, response) in zip(_segments(groups), responses, strict=True):
      np.testing.assert_array_equal(s.prompt_tokens, group.prompt_tokens)
      np.testing.assert_array_equal(s.response_tokens, response.tokens)
      np.testing.assert_array_equal(s.logp_sampler, response.logp_sampler)


class PackGroupsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.config = tiny_run.config()
    self.mesh = mesh_lib.update_mesh(jax.devices(), data=1, fsdp=-1, tensor=1)

  def _pack(self, groups):
    return minibatches.pack_groups(
      groups, self.config, self.mesh, shares.alone()
    )

  def test_minibatches_of_whole_groups_of_one_shape(self):
    # 5 groups, at most 2 in a minibatch; each sums to 1 over its tokens.
    batches = self._pack(_groups(5, lengths=[1, 7, 3, 5]))
    self.assertLen(batches, 3)
    tokens = []
    for batch in batches:
      # 8 responses at most need at most 8 rows, 8 in a micro-batch.
      self.assertEqual(batch.rows.tokens.shape, (1, 8, 32))
      self.assertAlmostEqual(float(batch.rows.token_weight.sum()), 1, places=6)
      tokens.append(int(batch.rows.is_response.sum()))
    self.assertEqual(tokens, [32, 16, 32])

  def test_rows_are_spread_over_the_devices(self):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices, see XLA_FLAGS in tests/conftest.py')
    [batch] = self._pack(_groups(1))
    shards = batch.rows.tokens.addressable_shards
    self.assertEqual({s.data.shape for s in shards}, {(1, 1, 32)})

  def test_no_group_makes_no_minibatch(self):
    self.assertEqual(self._pack([]), [])

  def test_metrics(self):
    [batch] = self._pack(_groups(1))
    batches = [
      batch._replace(micro_batches=2, real_tokens=30, row_tokens=64),
      batch._replace(micro_batches=1, real_tokens=18, row_tokens=32),
    ]
    self.assertEqual(
      minibatches.metrics(batches, epochs=1),
      # 48 of 96 places.
      {'optim/micro_batch_count': 3, 'pack/real_token_frac': 0.5},
    )
    twice = minibatches.metrics(batches, epochs=2)
    self.assertEqual(twice['optim/micro_batch_count'], 6)
    self.assertEqual(minibatches.metrics([], epochs=1), {})


class ProcessesTest(parameterized.TestCase):
  """Of several processes each fills the rows that its devices hold."""

  @parameterized.parameters(True, False)
  def test_together_they_have_the_rows_of_one(self, share_prompts):
    # Three processes; row r of 8 is held by r % 3, the last by two of them.
    holders = [{r % 3} for r in range(7)] + [{0, 2}]
    config = tiny_run.config({'learner.share_prompts': share_prompts})
    mesh = mesh_lib.update_mesh(jax.devices(), data=1, fsdp=-1, tensor=1)
    rng = np.random.default_rng(0)
    groups = [
      tiny_groups.group(
        (1, 0, 0, 0),
        ordinal=i,
        lengths=[int(n) for n in rng.integers(1, 17, 4)],
      )
      for i in (0, 1, 2, 4, 5)
    ]
    expected = minibatches.pack_groups(groups, config, mesh, shares.alone())

    def body(job):
      own = shares.Shares(job, engines=3, hosts=1)
      told = [g if own.is_own(g.draw.ordinal) else _as_told(g) for g in groups]
      return minibatches.pack_groups(told, config, mesh, own)

    with (
      mock.patch.object(placement, 'row_processes', lambda *_: holders),
      mock.patch.object(placement, 'put_rows', lambda rows, _: rows),
      mock.patch.object(row_plan, 'plan', wraps=row_plan.plan) as plan,
    ):
      found = fake_jobs.run(3, body)
    # Once in each process: it is what takes the time.
    self.assertEqual(plan.call_count, 3 * len(expected))
    for index, batches in enumerate(found):
      is_held = np.array([index in of for of in holders])
      for batch, whole in zip(batches, expected, strict=True):
        self.assertEqual(batch[1:], whole[1:])
        for field, of_all in zip(batch.rows, whole.rows, strict=True):
          of_all = np.asarray(of_all)
          np.testing.assert_array_equal(field[:, is_held], of_all[:, is_held])
          self.assertFalse(field[:, ~is_held].any())


def _as_told(group):
  return group._replace(
    responses=tuple(
      records.elsewhere(len(r.tokens), r.finish) for r in group.responses
    )
  )


if __name__ == '__main__':
  absltest.main()

"""Tests of `training.delivery`, with processes that are threads."""

from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

import fake_jobs
import tiny_groups
from dapo_jax.data import records
from dapo_jax.parallel import exchange
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.training import delivery, row_plan


def _as_told(group: records.Group) -> records.Group:
  """Returns the group as those have it that did not sample it."""
  return group._replace(
    responses=tuple(
      records.elsewhere(len(r.tokens), r.finish) for r in group.responses
    )
  )


def _at(groups, shares):
  """Returns the groups as a process has them before the delivery."""
  return [g if shares.is_own(g.draw.ordinal) else _as_told(g) for g in groups]


class NeedsTest(absltest.TestCase):
  def test_a_segment_is_needed_where_its_row_is(self):
    # Prompts of 1 token take no place of their own. Rows of 8: the longest
    # first, 7 in flat row 0, 5 in 1, 4 in 2, then 3 in 1, 1 in 0.
    lengths = [row_plan.Length(i, 1, n) for i, n in enumerate([3, 7, 1, 5, 4])]
    plan = row_plan.plan(
      lengths, row_tokens=8, micro_batch_rows=2, share_prompts=False
    )
    # Flat row 2 is the first row of the second micro-batch.
    found = delivery.needs(plan, lengths, [{0, 2}, {1}])
    self.assertEqual(found, [{1}, {0, 2}, {0, 2}, {1}, {0, 2}])


class DeliveredTest(parameterized.TestCase):
  def _run(self, groups, needs, *, engines, hosts=1):
    """Returns of each process the groups it has, and the words it sends."""
    sent = {}
    all_to_all = exchange.all_to_all

    def seen(job, outgoing, sizes, *, what):
      sent[job.index] = ([len(words) for words in outgoing], sizes.tolist())
      return all_to_all(job, outgoing, sizes, what=what)

    def body(job):
      shares = shares_lib.Shares(job, engines=engines, hosts=hosts)
      return delivery.delivered(_at(groups, shares), needs, shares)

    with mock.patch.object(exchange, 'all_to_all', seen):
      found = fake_jobs.run(engines * hosts, body)
    return found, sent

  def test_by_hand(self):
    # Process 0 sampled draw 4, process 1 draw 5. Of draw 4 the second is
    # needed by 1 and the third by both, of draw 5 the first by 0.
    groups = [
      tiny_groups.group((1, 0, 0), ordinal=4, lengths=[2, 3, 5]),
      tiny_groups.group((1, 0, 0), ordinal=5, lengths=[7, 1, 4]),
    ]
    needs = [[{0}, {1}, {0, 1}], [{0}, {1}, {1}]]
    (of_0, of_1), sent = self._run(groups, needs, engines=2)
    # A token and its log-prob are a word each: 2 * (3 + 5) to 1, 2 * 7 to 0.
    sizes = [[0, 16], [14, 0]]
    self.assertEqual(sent, {0: ([0, 16], sizes), 1: ([14, 0], sizes)})
    # [group][response] of what is whole in process 0, and in process 1.
    whole = lambda found: [
      [bool(r.logp_sampler.any()) for r in g.responses] for g in found
    ]
    self.assertEqual(whole(of_0), [[True] * 3, [True, False, False]])
    self.assertEqual(whole(of_1), [[False, True, True], [True] * 3])

  @parameterized.parameters(
    *[(2, 1, seed) for seed in range(4)],
    *[(3, 1, seed) for seed in range(4)],
    *[(2, 2, seed) for seed in range(4)],
  )
  def test_each_has_what_it_needs_bit_for_bit(self, engines, hosts, seed):
    rng, count = np.random.default_rng(seed), engines * hosts
    # Dropped groups leave holes in the draws.
    ordinals = sorted(rng.choice(30, rng.integers(0, 8), replace=False))
    groups = [
      tiny_groups.group(
        (1, 0, 0, 0),
        ordinal=int(o),
        lengths=[int(n) for n in rng.integers(1, 20, 4)],
      )
      for o in ordinals
    ]
    needs = [
      [set(np.flatnonzero(rng.random(count) < 0.4).tolist()) for _ in range(4)]
      for _ in groups
    ]
    found, sent = self._run(groups, needs, engines=engines, hosts=hosts)
    expected = np.zeros((count, count), int)
    owner = shares_lib.Shares(None, engines, hosts).owner
    for group, of_group in zip(groups, needs, strict=True):
      for response, wanted in zip(group.responses, of_group, strict=True):
        for to in wanted - {owner(group.draw.ordinal)}:
          expected[owner(group.draw.ordinal), to] += 2 * len(response.tokens)
    for index, of_process in enumerate(found):
      self.assertEqual(sent[index][0], expected[index].tolist())
      self._assert_has(of_process, groups, needs, index, owner)

  def _assert_has(self, found, groups, needs, index, owner):
    """Asserts that a process has its own, what it needs, and nothing else."""
    for got, group, of_group in zip(found, groups, needs, strict=True):
      self.assertEqual(got.draw, group.draw)
      is_own = owner(group.draw.ordinal) == index
      for one, whole, wanted in zip(
        got.responses, group.responses, of_group, strict=True
      ):
        if not is_own and index not in wanted:
          whole = records.elsewhere(len(whole.tokens), whole.finish)
        for field in ('tokens', 'logp_sampler'):
          a, b = getattr(one, field), getattr(whole, field)
          self.assertEqual(a.dtype, b.dtype)
          self.assertEqual(a.tobytes(), b.tobytes())
        self.assertEqual(one.finish, whole.finish)

  def test_bits_that_are_no_number_come_too(self):
    group = tiny_groups.group((1, 0), ordinal=0, lengths=[3, 1])
    odd = np.array([0x7FC00001, 0x80000000, 0xFF800000], np.uint32)
    first = group.responses[0]._replace(
      tokens=np.array([-1, 2**31 - 1, 0], np.int32),
      logp_sampler=odd.view(np.float32),
    )
    group = group._replace(responses=(first, group.responses[1]))
    [_, [got]], _ = self._run([group], [[{1}, {0}]], engines=2)
    self.assertEqual(got.responses[0].tokens.tolist(), [-1, 2**31 - 1, 0])
    np.testing.assert_array_equal(
      got.responses[0].logp_sampler.view(np.uint32), odd
    )

  def test_alone_nothing_is_moved(self):
    groups = [tiny_groups.group((1, 0))]
    with mock.patch.object(exchange, 'all_to_all') as all_to_all:
      found = delivery.delivered(groups, [[{0}, {0}]], shares_lib.alone())
    all_to_all.assert_not_called()
    self.assertIs(found[0], groups[0])


if __name__ == '__main__':
  absltest.main()

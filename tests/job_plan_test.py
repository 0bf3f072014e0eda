"""Tests of `planning.job_plan`."""

from absl.testing import absltest, parameterized

import planned
from dapo_jax.planning import compiling, job_plan, step_programs

_GIB = 2**30


class PlanTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.plan = planned.plan()

  def test_a_phase_is_what_its_largest_program_needs(self):
    rollout, update = self.plan.phases
    self.assertEqual(
      (rollout.name, update.name),
      (step_programs.ROLLOUT, step_programs.UPDATE),
    )
    for phase in self.plan.phases:
      self.assertEqual(phase.bytes, sum(phase.held.values()))
      self.assertTrue(phase.fits)
    self.assertTrue(self.plan.fits)
    # The update's state is in its arguments, held once.
    held = self.plan.held
    by_name = {report.name: report for report in self.plan.programs}
    memory = by_name['update'].memory
    state = held['params'] + held['moments']
    self.assertGreater(memory.arguments, state)
    total = memory.arguments + memory.temporary + held['rows']
    self.assertGreaterEqual(update.bytes, total)

  def test_slots_have_what_is_left(self):
    room = job_plan.cache_room(self.plan)
    held = self.plan.held
    others = held['params'] + held['moments'] + held['engine params']
    self.assertLess(room.bytes, 15.75 * _GIB - others)
    self.assertGreater(room.bytes, 15.7 * _GIB)
    # Four slots a shard take held['slots'].
    slots = room.bytes / (held['slots'] / 4)
    self.assertAlmostEqual(room.slots, slots, delta=1)

  def test_what_moves_the_policy_takes_no_room_from_slots(self):
    # It runs before there are any.
    large = [
      r._replace(memory=r.memory._replace(temporary=9 * _GIB))
      if r.name in step_programs.MOVING
      else r
      for r in self.plan.programs
    ]
    plan = self.plan._replace(programs=tuple(large))
    self.assertEqual(
      job_plan.cache_room(plan).bytes, job_plan.cache_room(self.plan).bytes
    )


class FaultTest(parameterized.TestCase):
  @parameterized.parameters(
    # Of all that the program has; of temporaries, beside its arguments.
    ('Used 25.00G of 15.75G hbm.', False),
    ('temporaries (25.00G) exceeds available HBM (15.75G)', True),
  )
  def test_what_a_refused_program_needs_is_held_too(self, text, has_arguments):
    plan = planned.plan(compiles=False, wanted=lambda p: p.name == 'update')
    [program] = [
      p for p in step_programs.update_phase(plan.setup) if p.name == 'update'
    ]
    [report] = plan.programs
    report = report._replace(fault=compiling.fault_of(text))
    own = job_plan._own(program, report)
    state = plan.held['params'] + plan.held['moments']
    if has_arguments:
      self.assertGreater(own.pop('arguments'), state)
    self.assertEqual([*own.values()], [25 * _GIB])


class PagesTest(absltest.TestCase):
  def _plan(self, changes):
    return planned.plan(
      {'sampler.cache': 'paged', 'sampler.page_tokens': 8, **changes},
      compiles=False,
    )

  def test_without_compiling_a_tenth_is_left_to_programs(self):
    plan = self._plan({})
    room = job_plan.cache_room(plan)
    self.assertLess(room.bytes, 0.9 * 15.75 * _GIB)
    self.assertGreater(room.bytes, 0.89 * 15.75 * _GIB)
    # A page: 8 tokens of 2 layers, keys and values of a head of 8, 4 bytes.
    page = 8 * 2 * 2 * 8 * 4
    self.assertAlmostEqual(room.pages, room.bytes / page, delta=20)

  def test_rows_that_find_no_page_are_not_live(self):
    # A row has 8 + 8 tokens at most, two pages; a pool of ten a shard.
    pages = 10 * 8 * 2 * 2 * 8 * 4
    slots_only = self._plan({}).held['slots'] - 8 * 8 * 2 * 2 * 8 * 4
    plan = self._plan({'sampler.cache_gib': (slots_only + pages) / _GIB})
    self.assertLess(plan.setup.limits.pages, 11)
    # 8 pages of 8 tokens on each of two shards; a row has 24 tokens before it
    # begins and at most 8 more.
    self.assertEqual(plan.setup.limits.pages, 8)
    long = plan.lengths._replace(prompt_tokens=24)
    live = job_plan.live_slots(plan.setup, long)
    self.assertEqual(live, 128 // 25)
    whole = self._plan({})
    self.assertEqual(job_plan.live_slots(whole.setup, whole.lengths), 8)


class OnlyTest(absltest.TestCase):
  def test_only_what_is_asked_for_is_looked_at(self):
    seen = []
    plan = planned.plan(
      compiles=False,
      wanted=lambda p: p.name == 'update',
      on_program=lambda *told: seen.append(told),
    )
    self.assertEqual([r.name for r in plan.programs], ['update'])
    self.assertEqual(seen, [('update', 1, 1)])
    self.assertEqual([p.name for p in plan.phases], ['update'])


if __name__ == '__main__':
  absltest.main()

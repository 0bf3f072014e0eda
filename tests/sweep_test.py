"""Tests of `planning.sweep`."""

from unittest import mock

import jax
from absl.testing import absltest

import planned
from dapo_jax.parallel import placement
from dapo_jax.planning import (
  analysis,
  compiling,
  estimate,
  model_shapes,
  step_programs,
  sweep,
  topology,
  workload,
)

_GIB = 2**30
_WORK = estimate.Work(
  (0.0, 1e9), (0.0, 0.0), (0.0, 0.0), (0.0,) * 2, (0.0,) * 2
)
# What each policy takes beside the state, [GiB], and its products.
_TEMPORARY = {'dots': 20, 'attention': 17, 'full': 12, 'offload': 5}
_FLOPS = {'dots': 1.0, 'attention': 1.2, 'full': 1.25, 'offload': 1.25}


def _report(program, *, remat, tensor, **_):
  """Returns what a compiler would say: less a device with more shards."""
  gib = _TEMPORARY[remat] / tensor
  if tensor == 1 and remat == 'dots':
    fault = compiling.Fault('hbm', 'Used 20G', 20 * _GIB)
    return analysis.Report(
      'update', 'update', program.loops, _WORK, None, fault, (), 0.0, False
    )
  memory = compiling.Memory(0, 0, 0, round(gib * _GIB), 0)
  work = _WORK._replace(matmul_flops=(0.0, _FLOPS[remat] * 1e12))
  return analysis.Report(
    'update', 'update', program.loops, work, memory, None, (), 0.0, False
  )


class UpdatesTest(absltest.TestCase):
  def test_the_first_policy_that_fits_ends_a_mesh(self):
    config = planned.config()
    tried = []
    current = {}

    def on_choice(flags, count):
      tried.append((flags['mesh.tensor'], flags['model.remat'], count))
      current.update(tensor=flags['mesh.tensor'], remat=flags['model.remat'])

    with (
      mock.patch.object(
        analysis, 'report', lambda program, **_: _report(program, **current)
      ),
      mock.patch.object(topology, 'devices', lambda slices: planned.devices()),
    ):
      found = sweep.updates(
        config,
        model_shapes.spec(config),
        planned.SLICES,
        workload.of_config(config),
        on_choice=on_choice,
      )
    # 15.75 GiB: one shard holds 12 of 'full'; two hold 10 of 'dots'. Two key
    # heads do not split over four.
    self.assertEqual(
      tried,
      [
        (1, 'dots', 0),
        (1, 'attention', 1),
        (1, 'full', 2),
        (2, 'dots', 3),
        (4, 'dots', 4),
        (8, 'dots', 4),
        (16, 'dots', 4),
      ],
    )
    fits = [
      (c.flags['mesh.tensor'], c.flags['model.remat'])
      for c in found
      if not c.why_not
    ]
    self.assertEqual(fits, [(2, 'dots'), (1, 'full')])
    self.assertEqual([c.why_not for c in found], ['', '', 'memory', 'memory'])


class EnginesTest(absltest.TestCase):
  def test_slots_get_what_is_left(self):
    config = planned.config(
      {'sampler.cache': 'paged', 'sampler.page_tokens': 8}
    )
    with mock.patch.object(
      topology, 'devices', lambda slices: jax.devices()[:4]
    ):
      found = sweep.engines(
        config,
        model_shapes.spec(config),
        planned.SLICES,
        workload.of_config(config),
        compiles=False,
      )
    # One host of four chips, over which two key heads do not split.
    self.assertEqual(
      {c.flags['sampler.tensor'] for c in found if not c.why_not}, {1, 2}
    )
    for choice in found:
      self.assertEqual(choice.flags['sampler.engine_chips'], 4)
      # All slots find room.
      self.assertIsNone(choice.flags['sampler.cache_gib'])

  def _engines(self, *, temporary_gib, of=step_programs.DECODE):
    """Returns choices for 1.5 GiB; rows have 2, and a program needs so much."""
    config = planned.config(
      {
        'sampler.cache': 'paged',
        'sampler.slots': 4096,
        'rollout.max_response_tokens': 8000,
        'learner.pack_tokens': 8192,
      }
    )
    chip = planned.SLICES.chip._replace(hbm_gib=1.5)

    def report(program, *, compiles, **_):
      counts = (1e9,) * (len(program.loops) + 1)
      work = estimate.Work(*(counts,) * len(estimate.Work._fields))
      known = analysis.Report(
        *(program.name, program.phase, program.loops, work),
        *(None, None, (), 0.0, False),
      )
      if not compiles:
        return known
      args = placement.device_bytes((program.args, dict(program.kwargs)))
      needs = round(temporary_gib * _GIB) if program.name == of else 0
      if args + needs > 1.5 * _GIB:
        fault = compiling.Fault('hbm', 'temporaries (17.0G) exceeds', 17 * _GIB)
        return known._replace(fault=fault)
      return known._replace(memory=compiling.Memory(args, 0, 0, needs, 0))

    with (
      mock.patch.object(analysis, 'report', report),
      mock.patch.object(topology, 'devices', lambda slices: planned.devices()),
    ):
      return sweep.engines(
        config,
        model_shapes.spec(config),
        planned.SLICES._replace(chip=chip),
        workload.of_config(config),
      )

  def test_slots_make_room_for_what_programs_need(self):
    # 1.4 GiB would be free, and 0.5 of them are not.
    found = self._engines(temporary_gib=0.5)
    self.assertEqual(found[0].flags['sampler.cache_gib'], 0.9)
    self.assertEqual(found[0].why_not, '')
    # What needs little is as it was, and so is what was not compiled.
    found = self._engines(temporary_gib=0.05)
    self.assertEqual(found[0].flags['sampler.cache_gib'], 1.4)

  def test_programs_that_never_fit_are_no_choice(self):
    found = self._engines(temporary_gib=1.6)
    self.assertEqual({choice.why_not for choice in found}, {'memory'})

  def test_fewer_slots_do_not_help_the_policy_on_its_way(self):
    found = self._engines(temporary_gib=1.6, of=step_programs.MOVING[1])
    for choice in found:
      self.assertStartsWith(choice.why_not, 'memory while the policy moves')


class FlagsTest(absltest.TestCase):
  def test_a_configuration_gets_other_values(self):
    config = planned.config()
    other = sweep.with_flags(
      config, {'sampler.cache_gib': 1.5, 'learner.micro_batch_rows': None}
    )
    self.assertEqual(other.sampler.cache_gib, 1.5)
    self.assertIsNone(config.sampler.cache_gib)


if __name__ == '__main__':
  absltest.main()

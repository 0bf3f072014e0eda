"""Tests of `planning.step_programs`."""

import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planned
from dapo_jax.parallel import placement
from dapo_jax.planning import (
  compiling,
  job_shapes,
  model_shapes,
  step_programs,
)

_LONG = {'data.max_prompt_tokens': 40, 'learner.pack_tokens': 64}
_GAE = {'advantage.estimator': 'gae', 'critic.shares_layers': False}


def _programs(changes=None, prompts=(3, 8)):
  config = planned.config(changes)
  setup = job_shapes.setup(config, model_shapes.spec(config), planned.devices())
  return step_programs.all_of(setup, prompt_tokens=prompts)


def _compiled(program):
  lowered = compiling.lower(program, compiling.trace(program))
  return compiling.compile_lowered(program, lowered)


class ProgramsTest(parameterized.TestCase):
  @parameterized.parameters(
    ({}, []),
    ({'objective.kl_coef': 0.1}, ['reference log-probs']),
    (_GAE, ['values', 'critic update']),
    ({**_GAE, 'critic.shares_layers': True}, ['values']),
  )
  def test_they_are_those_of_the_configuration(self, changes, more):
    found = [p.name for p in _programs(changes)]
    always = {
      *step_programs.MOVING,
      'prefill of 16 tokens',
      step_programs.INSERTION,
      step_programs.DECODE,
      'old log-probs',
      'update',
    }
    self.assertEqual({*found}, always | {*more})
    self.assertLen(found, len(always) + len(more))

  @parameterized.parameters(
    (_GAE,),
    ({**_GAE, 'critic.shares_layers': True},),
    ({**_GAE, 'objective.kl_coef': 0.1},),
  )
  def test_nothing_that_learns_is_counted_twice_or_left_out(self, changes):
    config = planned.config(changes)
    setup = job_shapes.setup(
      config, model_shapes.spec(config), planned.devices()
    )
    held = job_shapes.held_bytes(setup)
    state = sum(held[name] for name in step_programs.STATE)
    # An argument's rows may count twice, numbers not at all.
    spare = held['rows'] + 64
    for program in step_programs.update_phase(setup):
      beside = sum(held[name] for name in program.beside if name != 'rows')
      own = placement.device_bytes((program.args, dict(program.kwargs)))
      with self.subTest(program.name):
        self.assertBetween(beside + own, state, state + spare)

  @parameterized.parameters('dense', 'paged')
  def test_those_of_the_engine_compile(self, cache):
    for program in _programs(
      {'sampler.cache': cache, 'sampler.page_tokens': 8}
    ):
      if program.phase == step_programs.ROLLOUT:
        with self.subTest(program.name):
          self.assertIsNone(_compiled(program).fault)

  def test_an_update_holds_its_state_once(self):
    update = next(p for p in _programs() if p.name == 'update')
    memory = _compiled(update).memory
    self.assertGreater(memory.aliased, 0.99 * memory.results)

  def test_prompts_have_their_buckets(self):
    names = [p.name for p in _programs(_LONG, prompts=(3, 40, 33))]
    self.assertContainsSubset(
      ['prefill of 16 tokens', 'prefill of 64 tokens'], names
    )

  def test_a_long_prompt_goes_through_parts(self):
    found = _programs(_LONG | {'sampler.prefill_tokens': 16}, prompts=(3, 40))
    loops = {p.name: p.loops for p in found}
    self.assertEqual(loops['prefill of 16 tokens'], ())
    self.assertEqual(loops['prefill of 64 tokens'], ('parts',))


class OrderTest(absltest.TestCase):
  def test_an_array_keeps_its_places_in_another_order_of_devices(self):
    devices = planned.devices()
    here = NamedSharding(Mesh(np.array(devices), ('a',)), P('a'))
    there = NamedSharding(Mesh(np.array(devices[::-1]), ('b',)), P('b'))
    seen = step_programs._as_seen_by(here, there)
    self.assertEqual([*seen.mesh.devices.flat], [*there.mesh.devices.flat])
    self.assertEqual(
      seen.devices_indices_map((8,)), here.devices_indices_map((8,))
    )


if __name__ == '__main__':
  absltest.main()

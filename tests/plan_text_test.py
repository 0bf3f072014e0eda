"""Tests of `planning.plan_text` and `planning.plan_json`."""

import json

from absl.testing import absltest

import planned
from dapo_jax.planning import (
  compiling,
  estimate,
  job_plan,
  plan_json,
  plan_text,
  step_time,
  sweep,
)

_FLAGS = {'mesh.tensor': 4, 'model.remat': 'full'}


class TextTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.plan = planned.plan()
    cls.text = plan_text.render(cls.plan)

  def test_it_says_where_and_whether_it_fits(self):
    first, *_, last = self.text.splitlines()
    self.assertIn('on v5e:2x2 (v5litepod-4): 4 chips of 15.75 GiB', first)
    self.assertStartsWith(last, 'It fits. (dapo_jax')
    self.assertIn('jax ', last)
    for name in ('rollout', 'update'):
      self.assertRegex(self.text, rf'{name} +\d\.\d\d of 15.75  fits')

  def test_what_is_computed_once_is_told_too(self):
    self.assertRegex(self.text, r'  prefill of 16 tokens, once: products \d')
    self.assertRegex(
      self.text, r'  update, one of its micro-batches of 32 .*: products \d'
    )

  def test_every_program_has_its_memory(self):
    for report in self.plan.programs:
      self.assertRegex(self.text, rf'  {report.name} +\d\.\d\d ')

  def test_wires_have_their_axes(self):
    self.assertRegex(self.text, r'all-gather along \w+ \(x \d')

  def test_times_are_called_estimates(self):
    self.assertIn('Estimates (from a roofline', self.text)
    self.assertIn('nothing was measured', self.text)

  def test_what_does_not_fit_is_said(self):
    small = self.plan.slices.chip._replace(hbm_gib=1e-5)
    phases = tuple(
      p._replace(limit_bytes=100, bytes=200) for p in self.plan.phases
    )
    plan = self.plan._replace(
      phases=phases, slices=self.plan.slices._replace(chip=small)
    )
    text = plan_text.render(plan)
    self.assertIn('DOES NOT FIT', text)
    self.assertIn('It does not fit.', text)
    # Which phase more chips would help is another question then.
    self.assertRegex(self.text, 'takes (clearly )?longer')
    self.assertNotRegex(text, 'takes (clearly )?longer')

  def test_memories_are_told_apart(self):
    first, *rest = self.plan.programs
    fault = compiling.Fault('vmem', 'CompileTimeScopedVmemOom')
    first = first._replace(memory=None, fault=fault)
    text = plan_text.render(self.plan._replace(programs=(first, *rest)))
    self.assertIn('(VMEM)', text)
    self.assertIn('It does not fit.', text)

  def test_without_compiling_it_says_so(self):
    text = plan_text.render(planned.plan(compiles=False))
    self.assertIn('nothing was compiled', text)
    self.assertNotIn('Sent by a chip', text)


class RatioTest(absltest.TestCase):
  def test_it_is_of_a_whole_micro_batch(self):
    plan = planned.plan(compiles=False, wanted=lambda p: p.name == 'update')
    # Forward and twice that backward, nothing again, of rows of 32: products
    # of layers and the head; dense attention is all pairs, twice the causal.
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    pairs = 2 * 32 * 4 * 8
    place = 2 * (2 * (layer + pairs) + 32 * 320)
    computed = plan.programs[0].work.matmul_flops[1] * 4
    self.assertAlmostEqual(computed / (2 * 32 * place), 3, delta=0.35)
    self.assertBetween(plan_text.flops_ratio(plan), 0.9, 1.5)


class ChoicesTest(absltest.TestCase):
  _CHOICES = (
    sweep.Choice(_FLAGS, 12 * 2**30, estimate.Range(100.0, 200.0), ''),
    sweep.Choice({'mesh.tensor': 1}, 0, None, 'memory'),
  )

  def test_flags_are_what_is_typed(self):
    (text,) = plan_text.choices({'update': self._CHOICES})
    lines = text.splitlines()
    self.assertIn(
      '       12.00  100 to 200 s    --config.mesh.tensor=4 '
      '--config.model.remat=full',
      lines,
    )
    self.assertEndsWith(lines[-1], 'DOES NOT FIT: memory')

  def test_none_that_fits_is_said(self):
    (text,) = plan_text.choices({'update': self._CHOICES[1:]})
    self.assertIn('None of these fits', text)


class JsonTest(absltest.TestCase):
  def test_it_is_json_of_the_same_numbers(self):
    plan = planned.plan(compiles=False)
    made = plan_json.as_json(plan) | plan_json.choices(
      {'update': ChoicesTest._CHOICES}
    )
    read = json.loads(json.dumps(made))
    self.assertEqual(read['chips_count'], 4)
    self.assertEqual(read['fits'], plan.fits)
    self.assertEqual(
      set(read['programs']), {report.name for report in plan.programs}
    )
    self.assertEqual(
      read['phases']['rollout']['total_gib'], plan.phases[0].bytes / 2**30
    )
    self.assertEqual(read['choices']['update'][0]['time_s'], [100.0, 200.0])
    # Of the phase, of which the program of this name is a part.
    time = step_time.of_plan(plan)
    self.assertEqual(
      read['times_s']['update'], [time.update.low_s, time.update.high_s]
    )
    one = time.programs['update']
    self.assertLess(one.low_s, time.update.low_s)
    self.assertEqual(read['program_times_s']['update'], [one.low_s, one.high_s])
    self.assertIsInstance(plan, job_plan.Plan)


if __name__ == '__main__':
  absltest.main()

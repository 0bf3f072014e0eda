"""The plan of DAPO's own job, compiled for slices that are not there.

Needs libtpu: `pip install -e .[tpu]` on Linux.
"""

import concurrent.futures
import multiprocessing
import os
import resource
import tempfile
from typing import NamedTuple
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

import absent_tpus
from dapo_jax import config as config_lib
from dapo_jax.planning import (
  compiling,
  job_plan,
  model_shapes,
  plan_text,
  step_programs,
  sweep,
  topology,
  workload,
)

pytest.importorskip('libtpu')

_GIB = 2**30
_FILE = 'configs/dapo_qwen2p5_32b.py'
_SOURCES = ('--config.data.source=a', '--config.eval.source=b')


setUpModule = absent_tpus.forget_cache
tearDownModule = absent_tpus.keep_cache


def _plan(name, *flags, wanted=('update',), num_slices=1):
  """Returns the plan of some programs, compiled anew."""
  config = config_lib.load(_FILE, [*_SOURCES, *flags])
  with tempfile.TemporaryDirectory() as home:
    with mock.patch.dict(os.environ, {'XDG_CACHE_HOME': home}):
      return job_plan.make(
        config,
        model_shapes.spec(config),
        topology.parse(name, num_slices=num_slices),
        workload.of_config(config),
        wanted=lambda program: program.name in wanted,
      )


class _Recomputed(NamedTuple):
  """What is known of an update, and what it took to know it."""

  memory: compiling.Memory
  flops_ratio: float
  rss_gib: float


def _recomputed(name, tensor):
  """Returns it of a process that compiles nothing else."""
  absent_tpus.forget_cache()
  plan = _plan(name, f'--config.mesh.tensor={tensor}')
  rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return _Recomputed(
    plan.programs[0].memory, plan_text.flops_ratio(plan), rss_kib / 2**20
  )


@pytest.mark.slow
class UpdateTest(parameterized.TestCase):
  """Qwen2.5-32B, rows of 22,528 tokens."""

  @parameterized.parameters(
    # Slice, tensor, most memory of a chip in GiB.
    ('v5p:4x4x8', 4, 20.0),
    ('v6e:16x16', 8, 12.0),
    ('v5e:16x16', 8, 8.5),
  )
  def test_it_fits_where_everything_is_recomputed(self, name, tensor, gib):
    # The compiler keeps memory from one program to the next.
    with concurrent.futures.ProcessPoolExecutor(
      1, multiprocessing.get_context('spawn')
    ) as pool:
      found = pool.submit(_recomputed, name, tensor).result()
    self.assertLess(found.memory.total, gib * _GIB)
    # The state is held once.
    self.assertGreater(found.memory.aliased, 0.99 * found.memory.results)
    self.assertLess(found.flops_ratio, 1.30)
    self.assertLess(found.rss_gib, 4)

  def test_little_is_recomputed_where_there_is_room(self):
    plan = _plan('v5p:4x4x8', '--config.model.remat=dots')
    self.assertIsNone(plan.programs[0].fault)
    self.assertLess(plan_text.flops_ratio(plan), 1.15)

  def test_two_slices_talk_through_their_hosts(self):
    plan = _plan(
      'v5p:4x4x4',
      '--config.mesh.data=2',
      '--config.mesh.fsdp=16',
      num_slices=2,
    )
    (report,) = plan.programs
    self.assertIsNone(report.fault)
    # A chip's share of the gradient, in float32, once a micro-batch at least:
    # half of it is sent to the other slice and half of the sum back.
    share = 4 * 32.76e9 / 64
    self.assertGreater(report.work.dcn_bytes[1], 0.9 * share)
    over = {axes for _, axes, dcn, *_ in report.sent if dcn}
    self.assertEqual(over, {('data',)})


@pytest.mark.slow
class LogprobsTest(parameterized.TestCase):
  """A model of 7B; its log-probs on one host."""

  @parameterized.parameters(
    ('v5p:2x2x1', 4), ('v6e:2x4', 4), ('v5litepod-8', 4)
  )
  def test_logits_of_a_row_never_exist_at_once(self, name, tensor):
    plan = _plan(
      name,
      '--config.model.path=Qwen/Qwen2.5-7B',
      f'--config.mesh.tensor={tensor}',
      f'--config.sampler.tensor={tensor}',
      '--config.sampler.cache_gib=2',
      wanted=('old log-probs',),
    )
    # Rows are on all chips of a host, or on half of them: the weights in the
    # products' type are there at once, 14.2 GiB / 4. The logits of a row of
    # 22,528 tokens would be another 12.8 GiB / 4.
    self.assertLess(plan.programs[0].memory.temporary, (14.2 / 4 + 1.5) * _GIB)


@pytest.mark.slow
class WholeTest(absltest.TestCase):
  def test_everything_fits_v5p_256(self):
    names = {
      'policy in the type of sampling',
      'policy to the engines',
      'prefill of 512 tokens',
      'prefill of 2048 tokens',
      'insertion of 16 slots',
      'decode chunk',
      'old log-probs',
      'update',
    }
    plan = _plan('v5p-256', wanted=names)
    self.assertEqual({report.name for report in plan.programs}, names)
    self.assertEmpty(plan.faults)
    self.assertTrue(plan.fits)
    # An engine keeps its pages in place.
    decode = next(r for r in plan.programs if r.name == 'decode chunk')
    self.assertLess(decode.memory.temporary, 2 * _GIB)


@pytest.mark.slow
class SweepTest(absltest.TestCase):
  def test_the_engine_that_comes_first_fits(self):
    # Of 14B each step copies weights whose width no tile divides, 1.7 GiB.
    config = config_lib.load(
      'configs/dcpo_qwen2p5_math.py:dcpo_14b',
      [*_SOURCES, '--config.mesh.tensor=8'],
    )
    job = (
      model_shapes.spec(config),
      topology.parse('v5litepod-64'),
      workload.of_config(config),
    )
    with tempfile.TemporaryDirectory() as home:
      with mock.patch.dict(os.environ, {'XDG_CACHE_HOME': home}):
        first = sweep.engines(config, *job)[0]
        self.assertEqual(first.why_not, '')
        plan = job_plan.make(
          sweep.with_flags(config, first.flags),
          *job,
          wanted=lambda program: program.phase == step_programs.ROLLOUT,
        )
    self.assertTrue(plan.fits)


if __name__ == '__main__':
  absltest.main()

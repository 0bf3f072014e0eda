"""Plans of a tiny run, with virtual devices in the place of a slice's chips."""

import os
import tempfile
from unittest import mock

import jax

import tiny_run
from dapo_jax.planning import job_plan, model_shapes, topology, workload

SLICES = topology.parse('v5e:2x2')
_CHANGES = {
  'mesh.fsdp': 2,
  'mesh.tensor': 2,
  'sampler.tensor': 2,
  'learner.micro_batch_rows': None,
}


def config(changes=None):
  """Returns the configuration: FSDP 2 x tensor 2, slots over 2."""
  return tiny_run.config({**_CHANGES, **(changes or {})})


def devices():
  """Returns the four devices."""
  return jax.devices()[:4]


def plan(changes=None, **options) -> job_plan.Plan:
  """Returns the plan of that configuration with changes."""
  made = config(changes)
  with tempfile.TemporaryDirectory() as home:
    with mock.patch.dict(os.environ, {'XDG_CACHE_HOME': home}):
      return job_plan.make(
        made,
        model_shapes.spec(made),
        SLICES,
        workload.of_config(made),
        devices=devices(),
        **options,
      )

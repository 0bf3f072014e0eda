"""A configuration on devices that may be absent: its meshes, as shapes.

What a run puts on its devices and keeps there is known from shapes alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import FrozenConfigDict

from dapo_jax.model import decoder
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import job as job_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.sampling import decode
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import programs as sampling_programs
from dapo_jax.training import (
  layout,
  losses,
  packing,
  update,
  update_programs,
)


class Setup(NamedTuple):
  """A configuration on devices: where it is computed, and by what."""

  config: FrozenConfigDict
  model: decoder.Abstract
  mesh: Mesh
  engine_mesh: Mesh
  limits: limits_lib.Limits
  shares: shares_lib.Shares
  learning: update_programs.UpdatePrograms
  sampling: sampling_programs.Programs

  @property
  def rows_shape(self) -> tuple[int, int, int]:
    """(M, R, T) of a minibatch's packed rows."""
    return layout.rows_shape(self.config, self.mesh)

  @property
  def attention(self) -> str:
    """How rows are attended to: 'splash', 'chunked' or 'dense'."""
    return nnx.merge(self.model.graphdef, self.model.shapes).rows.attention


def setup(
  config: FrozenConfigDict,
  spec: spec_lib.Spec,
  devices: Sequence[jax.Device],
  island: Callable[[Sequence[jax.Device]], Sequence[jax.Device]] = list,
) -> Setup:
  """Returns how a configuration is computed on these devices.

  Args:
    config: the run's.
    spec: its model.
    devices: all of them.
    island: maps an engine's devices to those that its programs are compiled
      for.

  Raises:
    ValueError: where it does not fit them, as a run would say.
  """
  mesh = layout.update_mesh(config, devices)
  model = layout.update_model(config, spec, mesh)
  processes = len({device.process_index for device in devices})
  shares = shares_lib.of(
    job_lib.Job(0, processes), devices, engine_chips=config.sampler.engine_chips
  )
  own_mesh, limits = layout.engine(config, model, devices, shares)
  own = np.array(island([*own_mesh.devices.flat]))
  engine_mesh = Mesh(
    own.reshape(own_mesh.devices.shape),
    own_mesh.axis_names,
    axis_types=own_mesh.axis_types,
  )
  learning = update_programs.make(
    config,
    model,
    mesh,
    losses.policy_loss(config),
    temperature=config.rollout.temperature,
    with_critic=config.advantage.estimator == 'gae',
  )
  sampling = sampling_programs.make(
    model,
    limits,
    engine_mesh,
    eos_ids=(spec.vocab_size - 1,),
    engines=mesh_lib.engines_mesh(devices, own_mesh),
  )
  return Setup(
    config, model, mesh, engine_mesh, limits, shares, learning, sampling
  )


def held_bytes(s: Setup) -> dict[str, int]:
  """Returns what a device holds of each thing that outlives a program, [B].

  'params' and 'moments' of the policy as it is trained, 'critic' and 'critic
  moments' of a critic of its own, 'reference', 'engine params', 'slots',
  'prefix' (of the longest prompt that waits for slots), and 'rows': all
  minibatches of a step, with what is known of their tokens.
  """
  state = update_programs.abstract_state(s.learning)
  critic, config = state.critic, s.config
  minibatches = config.rollout.prompts_per_step / (
    config.learner.minibatch_prompts
  )
  return {
    'params': placement.device_bytes(state.params),
    'moments': placement.device_bytes(state.opt_state),
    'critic': placement.device_bytes(critic and critic.params),
    'critic moments': placement.device_bytes(critic and critic.opt_state),
    'reference': placement.device_bytes(policy_params(s))
    if has_reference(s)
    else 0,
    'engine params': placement.device_bytes(engine_params(s)),
    'slots': placement.device_bytes(slots(s)),
    'prefix': placement.device_bytes(prefix(s, s.limits.prompt_tokens)),
    'rows': round(
      minibatches * placement.device_bytes((rows(s), experience(s)))
    ),
  }


def params_count(s: Setup) -> int:
  """Returns the number of the policy's parameters."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(s.model.shapes))


def cache_token_bytes(s: Setup) -> float:
  """Returns what the cache holds of a token on all devices of an engine, [B].

  A copy, where heads can't be split, counts.
  """
  cache = slots(s).cache
  limits = s.limits
  shards = s.engine_mesh.shape[mesh_lib.SLOT_AXIS]
  if limits.cache == 'paged':
    tokens = limits_lib.shard_pages(limits, shards) * limits.page_tokens
    per_device = placement.device_bytes(cache.pages) / tokens
  else:
    tokens = limits.slots // shards * limits_lib.cache_tokens(limits)
    per_device = placement.device_bytes(cache) / tokens
  return per_device * s.engine_mesh.shape['tensor']


def engine_params(s: Setup) -> Any:
  """Returns the parameters as an engine holds them."""
  return sampling_programs.params_shapes(s.sampling, s.model.shapes)


def slots(s: Setup) -> decode.DecodeState:
  """Returns the slots of an engine."""
  return sampling_programs.state_shapes(s.model, s.limits, s.engine_mesh)


def prefix(s: Setup, prompt_tokens: int) -> decode.Prefix:
  """Returns a prefilled prompt, its heads split as prefilling leaves them."""
  bucket = limits_lib.bucket_tokens(prompt_tokens)
  scalar = jax.ShapeDtypeStruct((), jnp.int32)
  with jax.set_mesh(s.engine_mesh):
    found = jax.eval_shape(
      s.sampling.prefill,
      engine_params(s),
      jax.ShapeDtypeStruct((bucket,), jnp.int32),
      scalar,
    )
  if found.k.shape[2] % s.engine_mesh.shape['tensor']:
    return found
  where = NamedSharding(s.engine_mesh, PartitionSpec(None, None, 'tensor'))
  k, v = placement.abstract((found.k, found.v), (where, where))
  return found._replace(k=k, v=v)


def policy_params(s: Setup) -> Any:
  """Returns the shapes of a policy without a value head, as it is trained."""
  places = mesh_lib.shardings(
    s.model.shapes, s.model.logical_axes, s.mesh, mesh_lib.UPDATE_RULES
  )
  return placement.abstract(s.model.shapes, places)


def has_reference(s: Setup) -> bool:
  """Says whether the objective has a reference policy."""
  return losses.needs_reference(s.config)


def rows(s: Setup) -> packing.Rows:
  """Returns a minibatch's packed rows."""
  return packing.Rows(*(_field(s, kind) for kind in packing.ROW_TYPES))


def experience(s: Setup) -> update.Experience:
  """Returns what is known of a minibatch's tokens before its update."""
  field = _field(s, jnp.float32)
  known = update.Experience(field, field)
  if has_reference(s):
    known = known._replace(logp_ref=field)
  if s.learning.critic is not None:
    known = known._replace(value_old=field, returns=field)
  return known


def _field(s: Setup, dtype: Any) -> jax.ShapeDtypeStruct:
  """Returns the shape of a field of a minibatch's rows, [M, R, T]."""
  return jax.ShapeDtypeStruct(
    s.rows_shape,
    dtype,
    sharding=mesh_lib.row_sharding(s.mesh, leading_axes=1),
  )

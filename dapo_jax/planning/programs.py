"""Every program that the loop of a configuration runs, from shapes alone.

The functions are those of the loop; their arguments are shapes with places on
devices that may be absent. Beside each stands what else a device holds while it
runs, for what does not fit is found out by the sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from ml_collections import FrozenConfigDict

from dapo_jax.model import decoder
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import job as job_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.sampling import decode, insertion, pages
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import programs as sampling_programs
from dapo_jax.training import (
  layout,
  losses,
  packing,
  row_plan,
  update,
  update_programs,
)

ROLLOUT, UPDATE = 'rollout', 'update'
_FLOAT_ROWS = ('is_response', 'token_weight', 'logp_sampler')


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


class Program(NamedTuple):
  """A program, and what a device holds beside its arguments and results."""

  name: str
  phase: str  # ROLLOUT or UPDATE
  jitted: Any  # what `jax.jit` returns
  args: tuple[Any, ...]
  kwargs: Mapping[str, Any]
  mesh: Mesh
  # What each loop goes through whose trip count is an argument, in order.
  loops: tuple[str, ...]
  # Names of what is held beside, see `held_bytes`.
  beside: tuple[str, ...]


def setup(
  config: FrozenConfigDict,
  spec: spec_lib.Spec,
  devices: Sequence[jax.Device],
) -> Setup:
  """Returns how a configuration is computed on these devices.

  Raises:
    ValueError: where it does not fit them, as a run would say.
  """
  mesh = layout.update_mesh(config, devices)
  model = layout.update_model(config, spec, mesh)
  processes = len({device.process_index for device in devices})
  shares = shares_lib.of(
    job_lib.Job(0, processes), devices, engine_chips=config.sampler.engine_chips
  )
  engine_mesh, limits = layout.engine(config, model, devices, shares)
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
    engines=mesh_lib.engines_mesh(devices, engine_mesh),
  )
  return Setup(
    config, model, mesh, engine_mesh, limits, shares, learning, sampling
  )


def all_of(s: Setup, *, prompt_tokens: Sequence[int]) -> list[Program]:
  """Returns the programs of a rollout step, in its order.

  Args:
    s: the configuration on its devices.
    prompt_tokens: lengths of prompts whose prefill is wanted.
  """
  return [*_rollout(s, prompt_tokens), *update_phase(s)]


def held_bytes(s: Setup) -> dict[str, int]:
  """Returns what a device holds of each thing that outlives a program, [B].

  'params' and 'moments' of the policy as it is trained, 'critic' (a state of
  its own), 'reference', 'engine params', 'slots', and 'rows': all minibatches
  of a step, with what is known of their tokens.
  """
  state = update_programs.abstract_state(s.learning)
  config = s.config
  minibatches = config.rollout.prompts_per_step / (
    config.learner.minibatch_prompts
  )
  return {
    'params': device_bytes(state.params),
    'moments': device_bytes(state.opt_state),
    'critic': device_bytes(state.critic),
    'reference': device_bytes(_policy_params(s)) if _has_reference(s) else 0,
    'engine params': device_bytes(_engine_params(s)),
    'slots': device_bytes(_slots(s)),
    'rows': round(minibatches * device_bytes((_rows(s), _experience(s)))),
  }


def device_bytes(shapes: Any) -> int:
  """Returns what one device holds of arrays, [B]."""
  return sum(
    int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize
    for x in jax.tree.leaves(shapes)
  )


def update_phase(s: Setup) -> list[Program]:
  """Returns the programs that learn from a filled step."""
  state = update_programs.abstract_state(s.learning)
  rows, known = _rows(s), _experience(s)
  count, rate = _scalar(s.mesh, jnp.int32), _scalar(s.mesh, jnp.float32)
  loops = row_loops(s.config)
  policy, rest = ('params', 'moments'), ('critic', 'reference', 'rows')

  def one(name: str, jitted: Callable, *args: Any, beside: Sequence[str]):
    # Rows are counted once: an argument's share of them is small.
    return Program(name, UPDATE, jitted, args, {}, s.mesh, loops, tuple(beside))

  critic = s.learning.critic
  found = [
    one(
      'old log-probs',
      s.learning.old_logprobs,
      state.params,
      rows,
      count,
      beside=('moments', *rest),
    )
  ]
  if _has_reference(s):
    found.append(
      one(
        'reference log-probs',
        s.learning.reference_logprobs,
        _policy_params(s),
        rows,
        count,
        beside=(*policy, 'critic', 'rows'),
      )
    )
  if critic is not None:
    valued = state.params if critic.shares else state.critic.params
    found.append(
      one('values', critic.values, valued, rows, count, beside=(*policy, *rest))
    )
  own = state._replace(critic=None)
  found.append(
    one('update', s.learning.update, own, rows, known, count, rate, beside=rest)
  )
  if critic is not None and not critic.shares:
    found.append(
      one(
        'critic update',
        critic.update,
        state.critic,
        rows,
        known,
        count,
        rate,
        beside=(*policy, 'reference', 'rows'),
      )
    )
  return found


def row_loops(config: FrozenConfigDict) -> tuple[str, ...]:
  """Returns what the loops of a program over packed rows go through."""
  widths = row_plan.widths(layout.row_tokens(config))
  return tuple(f'micro-batches of {width} tokens a row' for width in widths)


def _rollout(s: Setup, prompt_tokens: Sequence[int]) -> list[Program]:
  """Returns the programs that move the policy and sample from it."""
  params, slots = _engine_params(s), _slots(s)
  state = ('params', 'moments', 'critic', 'reference')
  one = lambda name, jitted, args, kwargs, loops, beside: Program(
    name, ROLLOUT, jitted, args, kwargs, s.engine_mesh, loops, beside
  )
  buckets = sorted({limits_lib.bucket_tokens(n) for n in prompt_tokens})
  prefills = [
    one(
      f'prefill of {bucket} tokens',
      s.sampling.prefill,
      (params, jax.ShapeDtypeStruct((bucket,), jnp.int32), _count()),
      {},
      ('parts',) if bucket > s.limits.prefill_tokens else (),
      (*state, 'slots'),
    )
    for bucket in buckets
  ]
  with jax.set_mesh(s.engine_mesh):
    prefix = jax.eval_shape(prefills[-1].jitted, *prefills[-1].args)
  sizes = limits_lib.pool_sizes(
    s.limits, s.engine_mesh.shape[mesh_lib.SLOT_AXIS]
  )
  return [
    *_moving(s),
    *prefills,
    one(
      'insertion of 16 slots',
      s.sampling.insert_group,
      (),
      {'state': slots, 'prefix': prefix, 'samples': _samples(s, sizes)},
      (),
      (*state, 'engine params'),
    ),
    one(
      'decode chunk',
      s.sampling.chunk,
      (params,),
      {
        'state': slots,
        'max_steps': _count(),
        'leave_after': _count(),
        'attend_blocks': _blocks(s),
      },
      ('steps',),
      state,
    ),
  ]


def _moving(s: Setup) -> list[Program]:
  """Returns the two programs that bring the policy to all engines."""
  params = update_programs.abstract_state(s.learning).params
  prepared = jax.eval_shape(s.sampling.prepare, params)
  # As XLA passes a weight's places on, which nothing here changes.
  places = _prepared_places(s, prepared)
  moved = jax.tree.map(_as_seen_by, places, s.sampling.params_everywhere)
  return [
    Program(
      'policy in the type of sampling',
      ROLLOUT,
      s.sampling.prepare,
      (params,),
      {},
      s.mesh,
      (),
      ('moments', 'critic', 'reference'),
    ),
    Program(
      'policy to the engines',
      ROLLOUT,
      jax.jit(lambda x: x, out_shardings=s.sampling.params_everywhere),
      (_placed(prepared, moved),),
      {},
      mesh_lib.engines_mesh([*s.mesh.devices.flat], s.engine_mesh),
      (),
      ('params', 'moments', 'critic', 'reference'),
    ),
  ]


def _prepared_places(s: Setup, prepared: Any) -> Any:
  """Returns where the prepared weights are: as the trained ones."""
  trained = mesh_lib.shardings(
    s.model.shapes, s.model.logical_axes, s.mesh, mesh_lib.UPDATE_RULES
  )
  if not isinstance(prepared['block'], tuple):
    return trained
  layer = jax.tree.map(
    lambda where: NamedSharding(s.mesh, _without_layers(where.spec)),
    trained['block'],
  )
  return trained | {'block': (layer,) * len(prepared['block'])}


def _without_layers(spec: jax.sharding.PartitionSpec):
  return jax.sharding.PartitionSpec(*spec[1:])


def _as_seen_by(where: NamedSharding, there: NamedSharding) -> NamedSharding:
  """Returns `where` in the order of devices of `there`.

  A program knows one order of its devices: this is how `jax.device_put` asks
  for one that moves arrays from an order to another.
  """
  order = [*there.mesh.devices.flat]
  number = {device: i for i, device in enumerate(order)}
  mesh = Mesh(
    np.asarray(order).reshape(where.mesh.devices.shape), where.mesh.axis_names
  )
  ids = tuple(number[device] for device in where.mesh.devices.flat)
  return NamedSharding(mesh, where.spec, _logical_device_ids=ids)


def _engine_params(s: Setup) -> Any:
  return sampling_programs.params_shapes(s.sampling, s.model.shapes)


def _slots(s: Setup) -> decode.DecodeState:
  return sampling_programs.state_shapes(s.model, s.limits, s.engine_mesh)


def _samples(s: Setup, sizes: pages.Sizes) -> insertion.Samples:
  nowhere = insertion.nowhere(
    insertion.WIDTHS[-1],
    slots=s.limits.slots,
    pages=np.zeros(sizes.row_pages, np.int32),
  )
  padded = insertion.padded(nowhere, slots=s.limits.slots)
  return padded if s.limits.cache == 'paged' else padded._replace(pages=None)


def _blocks(s: Setup) -> int | None:
  """Returns of how many blocks a step reads whole rows; None of pages."""
  if s.limits.cache == 'paged':
    return None
  return limits_lib.blocks_for(s.limits, limits_lib.cache_tokens(s.limits))


def _policy_params(s: Setup) -> Any:
  """Returns the shapes of a policy without a value head, as it is trained."""
  places = mesh_lib.shardings(
    s.model.shapes, s.model.logical_axes, s.mesh, mesh_lib.UPDATE_RULES
  )
  return _placed(s.model.shapes, places)


def _has_reference(s: Setup) -> bool:
  return losses.needs_reference(s.config)


def _rows(s: Setup) -> packing.Rows:
  kinds = [
    jnp.float32 if name in _FLOAT_ROWS else jnp.int32
    for name in packing.Rows._fields
  ]
  return packing.Rows(*(_field(s, kind) for kind in kinds))


def _experience(s: Setup) -> update.Experience:
  field = _field(s, jnp.float32)
  known = update.Experience(field, field)
  if _has_reference(s):
    known = known._replace(logp_ref=field)
  if s.learning.critic is not None:
    known = known._replace(value_old=field, returns=field)
  return known


def _field(s: Setup, dtype: Any) -> jax.ShapeDtypeStruct:
  """Returns the shape of a field of a minibatch's rows, [M, R, T]."""
  return jax.ShapeDtypeStruct(
    layout.rows_shape(s.config, s.mesh),
    dtype,
    sharding=mesh_lib.row_sharding(s.mesh, leading_axes=1),
  )


def _placed(shapes: Any, places: Any) -> Any:
  one = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
  return jax.tree.map(one, shapes, places)


def _scalar(mesh: Mesh, dtype: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((), dtype, sharding=mesh_lib.replicated(mesh))


def _count() -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((), jnp.int32)

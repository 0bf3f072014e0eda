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

from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.planning import job_shapes
from dapo_jax.sampling import insertion, pages
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import programs as sampling_programs
from dapo_jax.training import (
  layout,
  row_plan,
  update_programs,
)

ROLLOUT, UPDATE = 'rollout', 'update'
# What is held whatever is done.
STATE = ('params', 'moments', 'critic', 'critic moments', 'reference')
MOVING = ('policy in the type of sampling', 'policy to the engines')
PREFILL, DECODE = 'prefill', 'decode chunk'
POLICY_UPDATE, CRITIC_UPDATE = 'update', 'critic update'
INSERTED = insertion.WIDTHS[-1]
INSERTION = f'insertion of {INSERTED} slots'


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
  # Names of what is held beside, see `job_shapes.held_bytes`.
  beside: tuple[str, ...]
  # Devices that share its products; None = all of the mesh.
  sharing: int | None = None


def all_of(
  s: job_shapes.Setup, *, prompt_tokens: Sequence[int]
) -> list[Program]:
  """Returns the programs of a rollout step, in its order.

  Args:
    s: the configuration on its devices.
    prompt_tokens: lengths of prompts whose prefill is wanted.
  """
  return [*_rollout(s, prompt_tokens), *update_phase(s)]


def update_phase(s: job_shapes.Setup) -> list[Program]:
  """Returns the programs that learn from a filled step."""
  state = update_programs.abstract_state(s.learning)
  rows, known = job_shapes.rows(s), job_shapes.experience(s)
  count, rate = _scalar(s.mesh, jnp.int32), _scalar(s.mesh, jnp.float32)
  loops = row_loops(s.config)
  policy, critics = ('params', 'moments'), ('critic', 'critic moments')
  rest = (*critics, 'reference', 'rows')

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
  if job_shapes.has_reference(s):
    found.append(
      one(
        'reference log-probs',
        s.learning.reference_logprobs,
        job_shapes.policy_params(s),
        rows,
        count,
        beside=(*policy, *critics, 'rows'),
      )
    )
  if critic is not None:
    # Of all that is held its argument is not beside it.
    own = 'params' if critic.shares else 'critic'
    found.append(
      one(
        'values',
        critic.values,
        state.params if critic.shares else state.critic.params,
        rows,
        count,
        beside=[name for name in (*policy, *rest) if name != own],
      )
    )
  actor = state._replace(critic=None)
  found.append(
    one(
      *(POLICY_UPDATE, s.learning.update, actor, rows, known, count, rate),
      beside=rest,
    )
  )
  if critic is not None and not critic.shares:
    found.append(
      one(
        CRITIC_UPDATE,
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


def prefill_name(prompt_tokens: int) -> str:
  """Returns the name of the program that prefills a prompt."""
  return f'{PREFILL} of {limits_lib.bucket_tokens(prompt_tokens)} tokens'


def row_loops(config: FrozenConfigDict) -> tuple[str, ...]:
  """Returns what the loops of a program over packed rows go through."""
  widths = row_plan.widths(layout.row_tokens(config))
  return tuple(f'micro-batches of {width} tokens a row' for width in widths)


def _rollout(
  s: job_shapes.Setup, prompt_tokens: Sequence[int]
) -> list[Program]:
  """Returns the programs that move the policy and sample from it."""
  params, slots = job_shapes.engine_params(s), job_shapes.slots(s)
  one = lambda name, jitted, args, kwargs, loops, beside: Program(
    name, ROLLOUT, jitted, args, kwargs, s.engine_mesh, loops, beside
  )
  buckets = sorted({limits_lib.bucket_tokens(n) for n in prompt_tokens})
  prefills = [
    one(
      prefill_name(bucket),
      s.sampling.prefill,
      (params, jax.ShapeDtypeStruct((bucket,), jnp.int32), _count()),
      {},
      ('parts',) if bucket > s.limits.prefill_tokens else (),
      (*STATE, 'slots'),
    )._replace(sharing=s.engine_mesh.shape['tensor'])
    for bucket in buckets
  ]
  prefix = job_shapes.prefix(s, buckets[-1])
  sizes = limits_lib.pool_sizes(
    s.limits, s.engine_mesh.shape[mesh_lib.SLOT_AXIS]
  )
  return [
    *_moving(s),
    *prefills,
    one(
      INSERTION,
      s.sampling.insert_group,
      (),
      {'state': slots, 'prefix': prefix, 'samples': _samples(s, sizes)},
      (),
      (*STATE, 'engine params'),
    ),
    one(
      DECODE,
      s.sampling.chunk,
      (params,),
      {
        'state': slots,
        'max_steps': _count(),
        'leave_after': _count(),
        'attend_blocks': _blocks(s),
      },
      ('steps',),
      (*STATE, 'prefix'),
    ),
  ]


def _moving(s: job_shapes.Setup) -> list[Program]:
  """Returns the two programs that bring the policy to all engines."""
  params = update_programs.abstract_state(s.learning).params
  prepared = jax.eval_shape(s.sampling.prepare, params)
  # As XLA passes a weight's places on, which nothing here changes.
  places = sampling_programs.params_places(
    s.model,
    s.mesh,
    stacked=not isinstance(prepared['block'], tuple),
    rules=mesh_lib.UPDATE_RULES,
  )
  moved = jax.tree.map(_as_seen_by, places, s.sampling.params_everywhere)
  return [
    Program(
      MOVING[0],
      ROLLOUT,
      s.sampling.prepare,
      (params,),
      {},
      s.mesh,
      (),
      tuple(name for name in STATE if name != 'params'),
    ),
    Program(
      MOVING[1],
      ROLLOUT,
      jax.jit(lambda x: x, out_shardings=s.sampling.params_everywhere),
      (placement.abstract(prepared, moved),),
      {},
      mesh_lib.engines_mesh([*s.mesh.devices.flat], s.engine_mesh),
      (),
      STATE,
    ),
  ]


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


def _samples(s: job_shapes.Setup, sizes: pages.Sizes) -> insertion.Samples:
  nowhere = insertion.nowhere(
    INSERTED,
    slots=s.limits.slots,
    pages=np.zeros(sizes.row_pages, np.int32),
  )
  padded = insertion.padded(nowhere, slots=s.limits.slots)
  return padded if s.limits.cache == 'paged' else padded._replace(pages=None)


def _blocks(s: job_shapes.Setup) -> int | None:
  """Returns of how many blocks a step reads whole rows; None of pages."""
  if s.limits.cache == 'paged':
    return None
  return limits_lib.blocks_for(s.limits, limits_lib.cache_tokens(s.limits))


def _scalar(mesh: Mesh, dtype: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((), dtype, sharding=mesh_lib.replicated(mesh))


def _count() -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((), jnp.int32)

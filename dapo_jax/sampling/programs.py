"""The programs of an engine: the functions of `decode`, jitted for one mesh.

They can be compiled for devices that are not there: everything they take has
a shape and a place that follow from the model, the limits and the mesh.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dapo_jax.model import decoder
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.sampling import cache_layout, decode
from dapo_jax.sampling import limits as limits_lib


class Programs(NamedTuple):
  """Jitted functions; those that return a state donate the one they take."""

  # Parameters of the policy -> as the others take them: `prepare`, then to the
  # places on all engines, of which this one's are taken.
  place: Callable[[decoder.Params], decoder.Params]
  prepare: Callable[[decoder.Params], decoder.Params]
  params_everywhere: Any
  params_shardings: Any
  empty: Callable[[], decode.DecodeState]
  prefill: Callable[..., decode.Prefix]
  insert_group: Callable[..., decode.DecodeState]
  set_pages: Callable[..., decode.DecodeState]
  end_slots: Callable[..., decode.DecodeState]
  step: Callable[..., decode.DecodeState]
  chunk: Callable[..., tuple[decode.DecodeState, jax.Array]]
  # What the host reads.
  look: Callable[[decode.DecodeState], tuple[jax.Array, jax.Array]]
  take_rows: Callable[..., tuple[jax.Array, jax.Array]]
  take_columns: Callable[..., jax.Array]


def make(
  model: decoder.Abstract,
  limits: limits_lib.Limits,
  mesh: Mesh,
  *,
  eos_ids: Sequence[int],
  engines: Mesh | None = None,
) -> Programs:
  """Returns the programs; compiles none.

  Args:
    model: the decoder.
    limits: sizes.
    mesh: the engine's devices.
    eos_ids: the tokens that end a response.
    engines: the devices of all engines, where parameters come from; None = of
      this one.
  """
  layout = cache_layout.make(model, limits, mesh)
  state = decode.state_shardings(layout, mesh)
  jit = functools.partial(jax.jit, out_shardings=state, donate_argnames='state')
  step = functools.partial(decode.step, layout, model.graphdef, tuple(eos_ids))
  places = functools.partial(params_places, model, stacked=layout.stacked)
  everywhere, island = places(engines or mesh), places(mesh)
  # Of the engine's type before they are moved: fewer bytes.
  for_sampling = jax.jit(
    functools.partial(decoder.for_sampling, model, stacked=layout.stacked)
  )
  look = lambda state: (state.live, state.generated)
  read = {}
  if not state.live.is_fully_addressable:
    # Every process of the engine reads all slots.
    read = {'out_shardings': mesh_lib.replicated(mesh)}
    look = jax.jit(look, **read)
  return Programs(
    place=functools.partial(
      placement.to_island,
      for_sampling,
      engines=everywhere,
      island=island,
    ),
    prepare=for_sampling,
    params_everywhere=everywhere,
    params_shardings=island,
    empty=jax.jit(
      functools.partial(decode.empty_state, layout, limits),
      out_shardings=state,
    ),
    prefill=jax.jit(
      functools.partial(decode.prefill, model.graphdef, limits.prefill_tokens)
    ),
    insert_group=jit(functools.partial(decode.insert_group, layout)),
    set_pages=jit(decode.set_pages),
    end_slots=jit(decode.end_slots),
    step=jit(step),
    chunk=jit(
      functools.partial(decode.chunk, step),
      out_shardings=(state, None),
      static_argnames='attend_blocks',
    ),
    look=look,
    take_rows=jax.jit(decode.take_rows, **read),
    take_columns=jax.jit(decode.take_columns, static_argnames='count', **read),
  )


def params_places(
  model: decoder.Abstract,
  mesh: Mesh,
  *,
  stacked: bool,
  rules: Mapping[str, str | None] = mesh_lib.ENGINE_RULES,
) -> Any:
  """Returns where the parameters are that sampling reads.

  Args:
    model: the decoder.
    mesh: the devices.
    stacked: whether the layers of a block are one array.
    rules: which axes are split over what.
  """
  places = mesh_lib.shardings(model.shapes, model.logical_axes, mesh, rules)
  if stacked:
    return places
  # Layers are split over nothing.
  layer = jax.tree.map(
    lambda place: NamedSharding(mesh, P(*place.spec[1:])), places['block']
  )
  return places | {'block': (layer,) * model.spec.layers}


def params_shapes(programs: Programs, params: decoder.Params) -> decoder.Params:
  """Returns the shapes and places of what `place` returns, for ahead of time.

  Args:
    programs: of the engine.
    params: shapes of the policy's parameters.
  """
  shapes = jax.eval_shape(programs.prepare, params)
  return placement.abstract(shapes, programs.params_shardings)


def state_shapes(
  model: decoder.Abstract, limits: limits_lib.Limits, mesh: Mesh
) -> Any:
  """Returns the state's shapes, types and places, for ahead of time."""
  layout = cache_layout.make(model, limits, mesh)
  shapes = jax.eval_shape(functools.partial(decode.empty_state, layout, limits))
  return placement.abstract(shapes, decode.state_shardings(layout, mesh))

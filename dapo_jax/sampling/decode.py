"""The decoding slots and the device programs over them.

Pure functions of the parameters and the state; `engine` compiles them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, UInt32

from dapo_jax.model import decoding, kv_cache, paged_cache
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import cache_layout, insertion, token_choice
from dapo_jax.sampling import limits as limits_lib


class Prefix(NamedTuple):
  """A prefilled prompt: it says nothing of a sample, so samples share it.

  The last prompt token is fed again by the first decode step, which gives
  the logits of the first response token.
  """

  k: Float[Array, 'L T K H']
  v: Float[Array, 'L T K H']
  last_token: Int[Array, '']
  length_tokens: Int[Array, '']


class DecodeState(NamedTuple):
  """All slots. A slot that is not live stands still."""

  cache: kv_cache.KVCache | paged_cache.PagedCache
  token: Int[Array, ' S']  # fed next
  position: Int[Array, ' S']  # of that token
  generated: Int[Array, ' S']  # response tokens so far
  limit: Int[Array, ' S']  # most response tokens
  live: Bool[Array, ' S']
  sample_key: UInt32[Array, 'S 2']
  choice: token_choice.Choice
  out_tokens: Int[Array, 'S M']
  out_logp: Float[Array, 'S M']


def state_shardings(layout: cache_layout.Layout, mesh: Mesh) -> DecodeState:
  """Returns where the slots live: split over the mesh, heads as weights."""
  slot = NamedSharding(mesh, P(mesh_lib.SLOT_AXIS))
  others = {f: slot for f in DecodeState._fields}
  others['cache'] = layout.shardings
  others['choice'] = token_choice.Choice(slot, slot, slot, slot)
  return DecodeState(**others)


def empty_state(
  layout: cache_layout.Layout, limits: limits_lib.Limits
) -> DecodeState:
  """Returns slots of which none is live."""
  s, m = limits.slots, limits.response_tokens
  zeros = lambda *shape, dtype=jnp.int32: jnp.zeros(shape, dtype)
  return DecodeState(
    cache=layout.empty(),
    token=zeros(s),
    position=zeros(s),
    generated=zeros(s),
    limit=zeros(s),
    live=zeros(s, dtype=jnp.bool_),
    sample_key=zeros(s, 2, dtype=jnp.uint32),
    choice=jax.tree.map(
      lambda x: jnp.full(s, x), token_choice.as_arrays(token_choice.Choice(0.0))
    ),
    out_tokens=zeros(s, m),
    out_logp=zeros(s, m, dtype=jnp.float32),
  )


def prefill(graphdef: Any, part_tokens: int, params, tokens, length) -> Prefix:
  """Returns the prefix of one padded prompt of `length` real tokens.

  A prompt longer than `part_tokens` is computed in parts, so that scores never
  exist for all pairs of its tokens; parts of padding alone are left out.
  """
  model, layers = decoding.bind(graphdef, params)
  if len(tokens) <= part_tokens:
    k, v = decoding.prefill(model, layers, tokens[None])
    return Prefix(k[:, 0], v[:, 0], tokens[length - 1], length)
  spec = model.spec
  shape = (spec.layers, 1, len(tokens), spec.kv_heads, spec.head_dim)
  nothing = jnp.zeros(shape, model.dtype)

  def part(i, keys_values):
    begin = i * part_tokens
    mine = jax.lax.dynamic_slice_in_dim(tokens, begin, part_tokens)
    return decoding.prefill_part(
      model, layers, mine[None], keys_values, begin=begin
    )

  parts = -(-length // part_tokens)
  k, v = jax.lax.fori_loop(0, parts, part, (nothing, nothing))
  return Prefix(k[:, 0], v[:, 0], tokens[length - 1], length)


def take_rows(state: DecodeState, slots: Int[Array, ' G']):
  """Returns the response tokens and log-probs of some slots."""
  return state.out_tokens[slots], state.out_logp[slots]


def take_columns(
  out_tokens: Int[Array, 'S M'],
  slots: Int[Array, ' k'],
  begins: Int[Array, ' k'],
  *,
  count: int,
) -> Int[Array, 'k _']:
  """Returns `count` tokens of some slots, each from its own place on.

  Where fewer are left, the last so many.
  """
  one = lambda slot, begin: jax.lax.dynamic_slice(
    out_tokens, (slot, begin), (1, count)
  )[0]
  return jax.vmap(one)(slots, begins)


def insert_group(
  layout: cache_layout.Layout,
  *,
  state: DecodeState,
  prefix: Prefix,
  samples: insertion.Samples,
) -> DecodeState:
  """Returns the state with one prefix in the slots that exist."""
  slots = samples.slots
  put = lambda field, value: field.at[slots].set(value, mode='drop')
  return state._replace(
    cache=layout.insert(
      state.cache, prefix.k, prefix.v, slots=slots, pages=samples.pages
    ),
    token=put(state.token, prefix.last_token),
    position=put(state.position, prefix.length_tokens - 1),
    generated=put(state.generated, 0),
    limit=put(state.limit, samples.limits_tokens),
    live=put(state.live, samples.limits_tokens > 0),
    sample_key=put(state.sample_key, samples.keys),
    choice=jax.tree.map(put, state.choice, samples.choice),
  )


def end_slots(*, state: DecodeState, slots: Bool[Array, ' S']) -> DecodeState:
  """Returns the state with the marked slots no longer live."""
  return state._replace(live=state.live & ~slots)


def set_pages(*, state: DecodeState, table: Int[Array, 'S W']) -> DecodeState:
  """Returns the state in which the slots have these pages of the cache."""
  return state._replace(cache=state.cache._replace(table=table))


def step(
  layout: cache_layout.Layout,
  graphdef: Any,
  eos_ids: tuple[int, ...],
  params,
  state: DecodeState,
  attend_blocks: int | None = None,
):
  """Returns the state one token later: the EOS is kept, then a slot ends."""
  model, layers = decoding.bind(graphdef, params)
  hidden, cache = layout.decode(
    model,
    layers,
    state.token,
    state.cache,
    positions=state.position,
    live=state.live,
    attend_blocks=attend_blocks,
  )
  token, logp = token_choice.choose(
    model.logits(hidden),
    state.sample_key,
    token_number=state.generated,
    choice=state.choice,
  )
  live = state.live
  advance = live.astype(jnp.int32)
  rows = jnp.arange(live.shape[0])
  column = jnp.where(live, state.generated, state.out_tokens.shape[1])
  put = lambda out, value: out.at[rows, column].set(value, mode='drop')
  generated = state.generated + advance
  ended = jnp.isin(token, jnp.asarray(eos_ids)) | (generated >= state.limit)
  return state._replace(
    cache=cache,
    token=jnp.where(live, token, state.token),
    position=state.position + advance,
    generated=generated,
    live=live & ~ended,
    out_tokens=put(state.out_tokens, token),
    out_logp=put(state.out_logp, logp),
  )


def chunk(
  step: Callable,
  params,
  *,
  state: DecodeState,
  max_steps,
  leave_after,
  attend_blocks: int | None = None,
):
  """Returns (state, steps): one program for every number of steps."""
  live_before = jnp.sum(state.live)

  def go_on(carry):
    steps, state = carry
    live = jnp.sum(state.live)
    return (steps < max_steps) & (live > 0) & (live_before - live < leave_after)

  steps, state = jax.lax.while_loop(
    go_on,
    lambda carry: (
      carry[0] + 1,
      step(params, state=carry[1], attend_blocks=attend_blocks),
    ),
    (jnp.int32(0), state),
  )
  return state, steps

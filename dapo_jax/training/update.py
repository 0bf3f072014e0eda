"""The jitted update: log-probs, loss, gradient and optimizer on a mesh.

A minibatch is micro-batches of packed rows. The loss is one weighted sum over
all of its tokens, `sum_t w_t l_t`, whose weights the host took from the whole
minibatch; so micro-batches simply add, and the result is the same, to
rounding, however the tokens are split over rows, micro-batches and devices.

An update whose loss or gradient is not finite moves nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from dapo_jax.model import decoder, token_logprobs
from dapo_jax.objective import diagnostics
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.training import losses, packing, update_stats, value_fit
from dapo_jax.training import micro_batches as micro_batches_lib


class TrainState(NamedTuple):
  """Everything the optimizers change.

  Programs see a state without a critic: each moves one model.
  """

  params: decoder.Params
  opt_state: Any
  # The `TrainState` of a critic with layers of its own; None without one.
  critic: Any = None


class Shared(NamedTuple):
  """How the policy's loss trains a critic that shares its layers."""

  coef: float
  clip: float | None


class Forward(NamedTuple):
  """How log-probs are taken; a part of every program here."""

  model: decoder.Abstract
  temperature: float
  chunk_tokens: int  # whose logits a device holds at one time


class Experience(NamedTuple):
  """What is known of each response token before a rollout's first update."""

  logp_old: Float[Array, 'M R T']
  advantage: Float[Array, 'M R T']
  # Of the reference policy; None without one.
  logp_ref: Float[Array, 'M R T'] | None = None
  # What the critic expected and what came; None without one.
  value_old: Float[Array, 'M R T'] | None = None
  returns: Float[Array, 'M R T'] | None = None


def state_shardings(
  model: decoder.Abstract,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
) -> TrainState:
  """Returns where each array of the state lives: moments as their weights."""
  params = mesh_lib.shardings(
    model.shapes, model.logical_axes, mesh, mesh_lib.UPDATE_RULES
  )
  opt_state = optax.tree_map_params(
    optimizer,
    lambda _, sharding: sharding,
    jax.eval_shape(optimizer.init, model.shapes),
    params,
    transform_non_params=lambda _: mesh_lib.replicated(mesh),
  )
  return TrainState(params, opt_state)


def init_state(
  params: decoder.Params,
  optimizer: optax.GradientTransformation,
  shardings: TrainState,
) -> TrainState:
  """Returns the state of an optimizer that has not moved yet."""
  init = jax.jit(optimizer.init, out_shardings=shardings.opt_state)
  return TrainState(params, init(params))


def abstract_state(
  model: decoder.Abstract,
  optimizer: optax.GradientTransformation,
  shardings: TrainState,
) -> TrainState:
  """Returns the state's shapes with their shardings; allocates nothing."""
  shapes = TrainState(
    model.shapes, jax.eval_shape(optimizer.init, model.shapes)
  )
  return placement.abstract(shapes, shardings)


def make_old_logprobs(forward: Forward) -> Callable:
  """Returns the jitted pass that is taken before a rollout's first update.

  It maps (params, rows, number of micro-batches) to the log-probs of the
  behaviour policy, [M, R, T], as the trainer computes them, and their
  `RolloutStats`. They stay on the device.
  """

  def old_logprobs(params, rows: packing.Rows, micro_batches):
    model = nnx.merge(forward.model.graphdef, params)

    def body(carry, i, cut):
      logp_old, stats = carry
      part = cut(rows)
      hidden = hidden_states(model, part)
      out = _logprobs(forward, model, hidden, part, entropy=True)
      stats = update_stats.add(stats, _stats(out, part))
      return micro_batches_lib.put(logp_old, i, out.logp), stats

    zeros = update_stats.RolloutStats(*(jnp.zeros(()),) * 5)
    nothing = (jnp.zeros_like(rows.token_weight), zeros)
    return micro_batches_lib.fold(body, nothing, rows, micro_batches)

  return jax.jit(old_logprobs)


def make_logprobs(forward: Forward) -> Callable:
  """Returns the jitted pass that takes log-probs of response tokens alone.

  It maps (params, rows, number of micro-batches) to them, [M, R, T].
  """

  def logprobs(params, rows: packing.Rows, micro_batches):
    model = nnx.merge(forward.model.graphdef, params)

    def body(found, i, cut):
      part = cut(rows)
      hidden = hidden_states(model, part)
      out = _logprobs(forward, model, hidden, part, entropy=False)
      return micro_batches_lib.put(found, i, out.logp)

    nothing = jnp.zeros_like(rows.token_weight)
    return micro_batches_lib.fold(body, nothing, rows, micro_batches)

  return jax.jit(logprobs)


def make_update(
  forward: Forward,
  token_loss: losses.TokenLoss,
  optimizer: optax.GradientTransformation,
  shardings: TrainState,
  *,
  entropy: bool = False,
  shared: Shared | None = None,
) -> Callable:
  """Returns the jitted update of a policy, see `make_step`.

  Args:
    forward: how log-probs are taken.
    token_loss: the loss of each token.
    optimizer: gives the direction of a gradient.
    shardings: of the state.
    entropy: whether the loss asks for the policy's entropy.
    shared: how a value head on the policy is trained; None without one.
  """

  def micro_loss(params, part: packing.Rows, known: Experience):
    model = nnx.merge(forward.model.graphdef, params)
    hidden = hidden_states(model, part)
    out = _logprobs(forward, model, hidden, part, entropy=entropy)
    loss, ratios = token_loss(_tokens(out, part, known))
    values = None
    if shared:
      more, values = value_fit.loss(
        model.values(hidden),
        known.value_old,
        known.returns,
        counts=part.token_weight > 0,
        clip=shared.clip,
      )
      loss += shared.coef * more
    stats = update_stats.TokenStats(ratios, values)
    return jnp.sum(loss * part.token_weight), stats

  nothing = update_stats.TokenStats(
    diagnostics.empty(), value_fit.nothing() if shared else None
  )
  return make_step(micro_loss, optimizer, shardings, nothing=nothing)


def make_step(
  micro_loss: Callable,
  optimizer: optax.GradientTransformation,
  shardings: TrainState,
  *,
  nothing: update_stats.TokenStats,
) -> Callable:
  """Returns a jitted gradient step over all micro-batches.

  It maps (state, rows, experience, number of micro-batches, learning rate) to
  (state, UpdateStats) and donates the state. The number of micro-batches and
  the rate are arrays: no value of them compiles anything. Where the loss or an
  entry of the gradient is not finite, the state is as it was.

  Args:
    micro_loss: maps (params, rows, experience) of a micro-batch to its part
      of the loss and its statistics.
    optimizer: gives the direction of a gradient.
    shardings: of the state.
    nothing: the statistics of no token.
  """

  def step(state, rows, experience, micro_batches, lr):
    def body(carry, _, cut):
      loss, stats, grads = carry
      (more, more_stats), more_grads = jax.value_and_grad(
        micro_loss, has_aux=True
      )(state.params, cut(rows), cut(experience))
      grads = jax.tree.map(jnp.add, grads, more_grads)
      grads = jax.lax.with_sharding_constraint(grads, shardings.params)
      return loss + more, update_stats.merge(stats, more_stats), grads

    zeros = jax.tree.map(jnp.zeros_like, state.params)
    loss, stats, grads = micro_batches_lib.fold(
      body, (jnp.zeros(()), nothing, zeros), rows, micro_batches
    )
    norm, faults = update_stats.norm_and_faults(loss, grads)

    def move():
      direction, opt_state = optimizer.update(
        grads, state.opt_state, state.params
      )
      params = jax.tree.map(lambda p, d: p - lr * d, state.params, direction)
      return TrainState(params, opt_state)

    # A branch, not a choice of values: it begins when all faults are known.
    kept = jax.lax.cond(jnp.any(faults), lambda: state, move)
    return kept, update_stats.UpdateStats(loss, norm, faults, *stats)

  return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))


def _tokens(
  out: token_logprobs.TokenLogprobs, part: packing.Rows, known: Experience
) -> losses.Tokens:
  """Returns what the loss sees: 0 wherever no token counts.

  Chosen before the loss, not after: padding can hold anything, and where the
  loss is NaN a later choice leaves its gradient NaN.
  """
  counts = part.token_weight > 0
  chosen = lambda x: None if x is None else jnp.where(counts, x, 0.0)
  return losses.Tokens(
    logp=chosen(out.logp),
    logp_old=chosen(known.logp_old),
    logp_sampler=chosen(part.logp_sampler),
    advantage=chosen(known.advantage),
    logp_ref=chosen(known.logp_ref),
    entropy=chosen(out.entropy),
    counts=counts,
    segment_ids=jnp.where(counts, part.segment_ids, 0),
  )


def hidden_states(
  model: decoder.Decoder, part: packing.Rows
) -> Float[Array, 'R T D']:
  """Returns a model's final hidden states over the rows of a micro-batch."""
  return model(
    part.tokens,
    positions=part.positions,
    segment_ids=part.segment_ids,
    prefix_ids=part.prefix_ids,
  )


def _logprobs(
  forward: Forward,
  model: decoder.Decoder,
  hidden: Float[Array, 'R T D'],
  part: packing.Rows,
  *,
  entropy: bool,
) -> token_logprobs.TokenLogprobs:
  rows, head = model.rows, model.gathered_head()
  return token_logprobs.token_logprobs(
    hidden,
    part.targets,
    wanted=part.is_response > 0,
    logits=lambda hidden: model.logits(hidden, head),
    temperature=forward.temperature,
    chunk_tokens=forward.chunk_tokens * rows.row_shards,
    entropy=entropy,
    split_vocab=rows.tensor_shards > 1,
  )


def _stats(
  out: token_logprobs.TokenLogprobs, part: packing.Rows
) -> update_stats.RolloutStats:
  mask = part.is_response > 0
  total = lambda x: jnp.sum(x, where=mask)
  gap = jnp.abs(part.logp_sampler - out.logp)
  return update_stats.RolloutStats(
    token_count=jnp.sum(part.is_response),
    entropy_sum=total(out.entropy),
    prob_sum=total(jnp.exp(out.logp)),
    gap_sum=total(gap),
    gap_max=jnp.max(gap, where=mask, initial=0.0),
  )

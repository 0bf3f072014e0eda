"""The jitted update: log-probs, loss, gradient and optimizer on a mesh.

A minibatch is micro-batches of packed rows. The loss is one weighted sum over
all of its tokens, `sum_t w_t l_t`, whose weights the host took from the whole
minibatch; so micro-batches simply add, and the result is the same, to
rounding, however the tokens are split over rows, micro-batches and devices.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from dapo_jax.model import decoder, token_logprobs
from dapo_jax.objective import clip, diagnostics, ratio, surrogate
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.training import packing


class TrainState(NamedTuple):
  """Everything the optimizer changes."""

  params: decoder.Params
  opt_state: Any


class RolloutStats(NamedTuple):
  """Sums over response tokens of the policy that is about to be updated."""

  token_count: Float[Array, '']
  entropy_sum: Float[Array, '']
  prob_sum: Float[Array, '']
  gap_sum: Float[Array, '']  # |logp_sampler - logp_old|
  gap_max: Float[Array, '']


class UpdateStats(NamedTuple):
  """What one update did."""

  loss: Float[Array, '']
  grad_norm: Float[Array, '']
  ratios: diagnostics.RatioStats


class Forward(NamedTuple):
  """How log-probs are taken; a part of every program here."""

  model: decoder.Abstract
  temperature: float
  chunk_tokens: int


# (logp, logp_old, advantage, which tokens count) of a micro-batch -> the
# loss of each token and the statistics of its ratios.
TokenLoss = Callable[
  [Array, Array, Array, Array], tuple[Array, diagnostics.RatioStats]
]


def policy_loss(
  *, clip_low: float, clip_high: float, dual_clip: float | None
) -> TokenLoss:
  """Returns DAPO's token loss (eq. 8 without its sums)."""
  low, high = clip.fixed_bounds(clip_low, clip_high)

  def token_loss(logp, logp_old, advantage, mask):
    r = ratio.token_ratio(logp, logp_old)
    s = surrogate.clipped_surrogate(
      r, advantage, low, high, dual_clip=dual_clip
    )
    return s.loss, diagnostics.ratio_stats(s, r, mask)

  return token_loss


def supervised_loss(logp, logp_old, advantage, mask):
  """Returns the negative log-likelihood of each token, -logp."""
  del logp_old, advantage, mask
  return -logp, diagnostics.empty()


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
  return jax.tree.map(
    lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
    shapes,
    shardings,
  )


def make_old_logprobs(forward: Forward) -> Callable:
  """Returns the jitted pass that is taken before a rollout's first update.

  It maps (params, rows, number of micro-batches) to the log-probs of the
  behaviour policy, [M, R, T], as the trainer computes them, and their
  `RolloutStats`. They stay on the device.
  """

  def old_logprobs(params, rows: packing.Rows, micro_batches):
    def body(i, carry):
      logp_old, stats = carry
      part = _micro_batch(rows, i)
      out = _logprobs(forward, params, part, entropy=True)
      return logp_old.at[i].set(out.logp), _add(stats, _stats(out, part))

    zeros = RolloutStats(*(jnp.zeros(()),) * 5)
    return jax.lax.fori_loop(
      0, micro_batches, body, (jnp.zeros_like(rows.token_weight), zeros)
    )

  return jax.jit(old_logprobs)


def make_update(
  forward: Forward,
  token_loss: TokenLoss,
  optimizer: optax.GradientTransformation,
  shardings: TrainState,
) -> Callable:
  """Returns the jitted update.

  It maps (state, rows, logp_old, number of micro-batches, learning rate) to
  (state, UpdateStats) and donates the state. The number of micro-batches and
  the rate are arrays: no value of them compiles anything.
  """

  def micro_loss(params, part: packing.Rows, logp_old):
    logp = _logprobs(forward, params, part, entropy=False).logp
    counts = part.token_weight > 0
    # Chosen before the loss, not after: padding can hold anything, and where
    # the loss is NaN a later choice leaves its gradient NaN.
    logp, logp_old, advantage = (
      jnp.where(counts, x, 0.0) for x in (logp, logp_old, part.advantage)
    )
    loss, stats = token_loss(logp, logp_old, advantage, counts)
    return jnp.sum(loss * part.token_weight), stats

  def update(state, rows, logp_old, micro_batches, lr):
    def body(i, carry):
      loss, stats, grads = carry
      (more, more_stats), more_grads = jax.value_and_grad(
        micro_loss, has_aux=True
      )(state.params, _micro_batch(rows, i), logp_old[i])
      grads = jax.tree.map(jnp.add, grads, more_grads)
      grads = jax.lax.with_sharding_constraint(grads, shardings.params)
      return loss + more, diagnostics.merge(stats, more_stats), grads

    zeros = jax.tree.map(jnp.zeros_like, state.params)
    loss, stats, grads = jax.lax.fori_loop(
      0, micro_batches, body, (jnp.zeros(()), diagnostics.empty(), zeros)
    )
    direction, opt_state = optimizer.update(
      grads, state.opt_state, state.params
    )
    params = jax.tree.map(lambda p, d: p - lr * d, state.params, direction)
    stats = UpdateStats(loss, optax.tree.norm(grads), stats)
    return TrainState(params, opt_state), stats

  return jax.jit(update, donate_argnums=0, out_shardings=(shardings, None))


def _logprobs(
  forward: Forward, params, part: packing.Rows, *, entropy: bool
) -> token_logprobs.TokenLogprobs:
  model = nnx.merge(forward.model.graphdef, params)
  hidden = model(
    part.tokens,
    positions=part.positions,
    segment_ids=part.segment_ids,
    prefix_ids=part.prefix_ids,
  )
  return token_logprobs.token_logprobs(
    hidden,
    part.targets,
    wanted=part.is_response > 0,
    logits=model.logits,
    temperature=forward.temperature,
    chunk_tokens=forward.chunk_tokens,
    entropy=entropy,
  )


def _micro_batch(rows: packing.Rows, i: Int[Array, '']) -> packing.Rows:
  return packing.Rows(*(field[i] for field in rows))


def _stats(
  out: token_logprobs.TokenLogprobs, part: packing.Rows
) -> RolloutStats:
  mask = part.is_response > 0
  total = lambda x: jnp.sum(x, where=mask)
  gap = jnp.abs(part.logp_sampler - out.logp)
  return RolloutStats(
    token_count=jnp.sum(part.is_response),
    entropy_sum=total(out.entropy),
    prob_sum=total(jnp.exp(out.logp)),
    gap_sum=total(gap),
    gap_max=jnp.max(gap, where=mask, initial=0.0),
  )


def _add(a: RolloutStats, b: RolloutStats) -> RolloutStats:
  total = RolloutStats(*(x + y for x, y in zip(a, b, strict=True)))
  return total._replace(gap_max=jnp.maximum(a.gap_max, b.gap_max))


def rollout_metrics(parts: Sequence[RolloutStats]) -> dict[str, int | float]:
  """Returns the `policy/` metrics of the behaviour policy, on the host."""
  if not parts:
    return {}
  total = functools.reduce(_add, parts)
  tokens = float(total.token_count)
  return {
    'policy/entropy_nats': float(total.entropy_sum) / tokens,
    'policy/mean_prob': float(total.prob_sum) / tokens,
    'policy/sampler_gap_mean_nats': float(total.gap_sum) / tokens,
    'policy/sampler_gap_max_nats': float(total.gap_max),
  }


def update_metrics(parts: Sequence[UpdateStats]) -> dict[str, int | float]:
  """Returns the metrics of a step's updates, on the host.

  Loss and gradient norm are means over the updates; ratios and clip shares
  are over all their tokens.
  """
  if not parts:
    return {'optim/update_count': 0}
  ratios = functools.reduce(diagnostics.merge, [p.ratios for p in parts])
  return {
    'policy/loss': float(np.mean([p.loss for p in parts])),
    'optim/grad_norm': float(np.mean([p.grad_norm for p in parts])),
    'optim/update_count': len(parts),
    **diagnostics.metrics(ratios),
  }

"""The optimizer: AdamW behind a clipped gradient, its rate passed in."""

from typing import Any

import jax
import optax


def adamw(
  *,
  b1: float,
  b2: float,
  eps: float,
  weight_decay: float,
  max_grad_norm: float,
) -> optax.GradientTransformation:
  """Returns the update direction of AdamW, before the learning rate.

  The gradient's global norm is clipped first. Decoupled decay acts on all
  weights but norms and biases: the embedding and a value head decay too. The
  rate is left out: it follows the rollout step, which no optimizer state
  counts.
  """
  return optax.chain(
    optax.clip_by_global_norm(max_grad_norm),
    optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
    optax.add_decayed_weights(weight_decay, mask=_is_matrix),
  )


def warmed_up(lr: float, *, step: int, warmup_steps: int) -> float:
  """Returns lr(s) = lr * min(1, (s + 1) / W): above 0 from the first step."""
  if warmup_steps == 0:
    return lr
  return lr * min(1.0, (step + 1) / warmup_steps)


def _is_matrix(params: Any) -> Any:
  def one(path, _):
    name = str(path[-1].key)
    return not (name.endswith('_norm') or name.endswith('_bias'))

  return jax.tree_util.tree_map_with_path(one, params)

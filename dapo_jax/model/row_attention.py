"""Attention of whole rows: the way to compute it that suits the devices.

All ways give the same values and gradients: 'dense' holds the scores of all
pairs of places, 'chunked' those of a few queries at a time, and 'splash' none:
it is a kernel for TPUs, which does not know shared prompts.
"""

import functools

import jax
from absl import logging
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from dapo_jax.model import attention, chunked_attention, row_layout, splash
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import mesh as mesh_lib

# What the remat policies keep of it goes by this name.
KEPT = 'attention'
# Longer rows are computed in chunks where there is no kernel, [tokens].
_DENSE_TOKENS = 2048


def shares_prompts(
  asked: bool | None, *, attention_kind: str, mesh: Mesh
) -> bool:
  """Returns whether responses are packed behind one copy of their prompt.

  Args:
    asked: `learner.share_prompts`; None = wherever attention can express it.
    attention_kind: `model.attention`.
    mesh: the update's.
  """
  if asked is not None:
    return asked
  on_tpu = _platform(mesh) == 'tpu'
  return not (
    attention_kind == 'splash' or (attention_kind == 'auto' and on_tpu)
  )


def resolved(
  kind: str,
  spec: spec_lib.Spec,
  mesh: Mesh,
  *,
  row_tokens: int,
  shared_prompts: bool,
) -> str:
  """Returns 'dense', 'chunked' or 'splash' for what `model.attention` says.

  It goes by the devices of the mesh, which need not be those of this machine.

  Args:
    kind: one of these, or 'auto'.
    spec: the model.
    mesh: the update's.
    row_tokens: length of a row.
    shared_prompts: whether responses stand behind one copy of their prompt.

  Raises:
    ValueError: where the kernel is asked for and can't be had.
  """
  if kind not in ('auto', 'splash'):
    return kind
  why = _refusal(spec, mesh, shared_prompts=shared_prompts)
  if kind == 'splash':
    if why is not None:
      raise ValueError(
        f'model.attention (splash) is not possible here: {why}; change '
        '--config.model.attention'
      )
    return kind
  if why is None:
    return 'splash'
  kind = 'dense' if row_tokens <= _DENSE_TOKENS else 'chunked'
  if _platform(mesh) == 'tpu':
    logging.warning('attention is %s, not splash: %s', kind, why)
  return kind


def attend(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
  *,
  layout: row_layout.RowLayout,
  segment_ids: Int[Array, 'B T'],
  prefix_ids: Int[Array, 'B T'] | None,
  positions: Int[Array, 'B T'],
  window_tokens: int | None,
) -> Float[Array, 'B T N H']:
  """Returns the attention of whole rows, see `attention.attention`.

  Of padding, segment 0, the result means nothing. 'splash' does not look at
  `prefix_ids`: there, every response must have its own copy of its prompt.
  """
  if layout.attention == 'splash':
    return _splash(q, k, v, segment_ids, window_tokens, layout)
  ways = {'dense': attention.attention, 'chunked': chunked_attention.attend}
  out = ways[layout.attention](
    q,
    k,
    v,
    segment_ids=segment_ids,
    prefix_ids=prefix_ids,
    positions=positions,
    window_tokens=window_tokens,
  )
  return checkpoint_name(out, KEPT)


def _splash(q, k, v, segment_ids, window_tokens, layout):
  mesh = layout.mesh
  local = functools.partial(
    splash.attend,
    window_tokens=window_tokens,
    device_kind=mesh.devices.flat[0].device_kind,
    residual_name=KEPT,
    interpret=layout.interpret,
  )
  rows = mesh_lib.ROW_AXES
  heads = P(rows, None, mesh_lib.UPDATE_RULES['heads'], None)
  # Without `check_vma`, of which the kernel's outputs say nothing.
  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(heads, heads, heads, P(rows, None)),
    out_specs=heads,
    check_vma=False,
  )(q, k, v, segment_ids)


def _refusal(
  spec: spec_lib.Spec, mesh: Mesh, *, shared_prompts: bool
) -> str | None:
  """Returns why the kernel is not for these devices or rows, or None."""
  if _platform(mesh) != 'tpu':
    return f'it is a kernel for TPUs, and the devices are {_platform(mesh)}'
  if shared_prompts:
    return (
      'it does not know prompts that responses share '
      '(--config.learner.share_prompts)'
    )
  return splash.refusal(spec, tensor=mesh.shape['tensor'])


def _platform(mesh: Mesh) -> str:
  return mesh.devices.flat[0].platform

"""Whether an engine's slots fit their share of a device's memory."""

import math

from jax.sharding import Mesh

from dapo_jax.model import decoder
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.parallel import placement
from dapo_jax.sampling import cache_layout, programs
from dapo_jax.sampling import limits as limits_lib


def fitted(
  model: decoder.Abstract,
  limits: limits_lib.Limits,
  mesh: Mesh,
  *,
  cache_gib: float | None,
) -> limits_lib.Limits:
  """Returns the limits with their layout, and as many pages as there is room.

  Args:
    model: the decoder.
    limits: sizes that are asked for; their pages are not looked at.
    mesh: the engine's devices.
    cache_gib: most memory of the slots on a device, [GiB]; None = any.

  Raises:
    ValueError: when the slots, or a single row of pages, need more.
  """
  limits_lib.check(
    limits,
    context_tokens=model.spec.context_tokens,
    shards=mesh.shape[mesh_lib.SLOT_AXIS],
  )
  limits = cache_layout.resolved(model, limits._replace(pages=None), mesh)
  if cache_gib is None:
    return limits
  state = programs.state_shapes(model, limits, mesh)
  if limits.cache == 'paged':
    return _with_pages(state, limits, mesh, cache_gib)
  shards = mesh.shape[mesh_lib.SLOT_AXIS]
  slot_gib = placement.device_bytes(state) * shards / limits.slots / 2**30
  fit = int(cache_gib / slot_gib) * shards
  if limits.slots > fit:
    raise ValueError(
      f'{limits.slots} slots over {shards} devices of {slot_gib:.3g} GiB each '
      f'take {limits.slots * slot_gib / shards:.3g} GiB a device, more than '
      f'sampler.cache_gib ({cache_gib:.3g}); {fit} slots fit; change '
      '--config.sampler.slots, --config.sampler.cache_gib or '
      '--config.rollout.max_response_tokens'
    )
  return limits


def _with_pages(state, limits, mesh, cache_gib) -> limits_lib.Limits:
  pages_bytes = placement.device_bytes(state.cache.pages)
  row = limits_lib.row_pages(limits)
  most = limits_lib.shard_pages(limits, mesh.shape[mesh_lib.SLOT_AXIS])
  page_bytes = pages_bytes // most
  left = cache_gib * 2**30 - (placement.device_bytes(state) - pages_bytes)
  fit = math.floor(left / page_bytes)
  if fit < row:
    raise ValueError(
      f'sampler.cache_gib ({cache_gib:.3g}) has room for {max(0, fit)} pages '
      f'of {limits.page_tokens} tokens ({page_bytes / 2**20:.3g} MiB) a device '
      f'beside the rest of its slots; the longest row takes {row}; change '
      '--config.sampler.cache_gib, --config.sampler.slots or '
      '--config.rollout.max_response_tokens'
    )
  return limits._replace(pages=min(fit, most))

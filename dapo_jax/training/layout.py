"""Where a configuration is computed: its meshes, rows, slots and model.

All of it follows from the configuration, the model's shape and the devices,
which may be absent ones, to compile for.
"""

from collections.abc import Sequence

import jax
from jax.sharding import Mesh
from ml_collections import FrozenConfigDict

from dapo_jax.model import decoder, row_attention, row_layout
from dapo_jax.model import spec as spec_lib
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.rollout import shares as shares_lib
from dapo_jax.sampling import capacity
from dapo_jax.sampling import limits as limits_lib

# Contexts that a model of random weights is built for.
_RANDOM_CONTEXT_TOKENS = 32_768


def row_tokens(config: FrozenConfigDict) -> int:
  """Returns the length of a packed row, [tokens]."""
  longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
  return config.learner.pack_tokens or longest


def micro_batch_rows(config: FrozenConfigDict, mesh: Mesh) -> int:
  """Returns the rows of a micro-batch: as asked, or one a shard of them.

  Raises:
    ValueError: where they do not split evenly.
  """
  shards = mesh_lib.row_shards(mesh)
  rows = config.learner.micro_batch_rows or shards
  if rows % shards:
    raise ValueError(
      f'learner.micro_batch_rows ({rows}) must be divisible by the {shards} '
      'devices that rows are split over (mesh.data x mesh.fsdp), which can be '
      f'{mesh_lib.divisors(rows)}; change '
      '--config.learner.micro_batch_rows or --config.mesh.fsdp'
    )
  return rows


def rows_shape(config: FrozenConfigDict, mesh: Mesh) -> tuple[int, int, int]:
  """Returns the shape of a minibatch's packed rows, (M, R, T).

  It has room for a row for each of the responses.
  """
  rows = micro_batch_rows(config, mesh)
  responses = (
    config.learner.minibatch_prompts * config.rollout.responses_per_prompt
  )
  return -(-responses // rows), rows, row_tokens(config)


def shares_prompts(config: FrozenConfigDict, mesh: Mesh) -> bool:
  """Returns whether responses are packed behind one copy of their prompt."""
  return row_attention.shares_prompts(
    config.learner.share_prompts,
    attention_kind=config.model.attention,
    mesh=mesh,
  )


def random_spec(config: FrozenConfigDict, vocab_size: int) -> spec_lib.Spec:
  """Returns the spec of random weights for so many tokens."""
  c = config.model
  return spec_lib.Spec(
    vocab_size=vocab_size,
    vocab_rows=-(-vocab_size // 64) * 64,
    layers=c.layers,
    embed_dim=c.embed_dim,
    heads=c.heads,
    kv_heads=c.kv_heads,
    head_dim=c.head_dim,
    ffw_dim=c.ffw_dim,
    qkv_bias=True,
    tied_head=c.tied_head,
    rope_theta=c.rope_theta,
    norm_eps=c.norm_eps,
    init_std=c.init_std,
    context_tokens=_RANDOM_CONTEXT_TOKENS,
  )


def update_mesh(
  config: FrozenConfigDict, devices: Sequence[jax.Device]
) -> Mesh:
  """Returns the mesh of the update.

  Raises:
    ValueError: where its axes do not fit the devices or the rows.
  """
  mesh = mesh_lib.update_mesh(
    devices,
    data=config.mesh.data,
    fsdp=config.mesh.fsdp,
    tensor=config.mesh.tensor,
  )
  micro_batch_rows(config, mesh)  # or it is told now
  return mesh


def update_model(
  config: FrozenConfigDict, spec: spec_lib.Spec, mesh: Mesh
) -> decoder.Abstract:
  """Returns the model of a spec, laid out as the update computes it.

  Raises:
    ValueError: where `model.attention` is not possible on these devices.
  """
  c = config.model
  kind = row_attention.resolved(
    c.attention,
    spec,
    mesh,
    row_tokens=row_tokens(config),
    shared_prompts=shares_prompts(config, mesh),
  )
  return decoder.abstract(
    spec,
    compute_dtype=c.compute_dtype,
    remat=c.remat,
    rows=row_layout.RowLayout(kind, mesh),
  )


def engine(
  config: FrozenConfigDict,
  model: decoder.Abstract,
  devices: Sequence[jax.Device],
  shares: shares_lib.Shares,
) -> tuple[Mesh, limits_lib.Limits]:
  """Returns the mesh of this process's engine, and its sizes.

  Args:
    config: the run's.
    model: the policy.
    devices: of all processes.
    shares: the processes and their engines.

  Raises:
    ValueError: where the slots do not fit the devices or their memory.
  """
  mesh = mesh_lib.engine_mesh(
    mesh_lib.of_engine(devices, hosts=shares.hosts, process=shares.job.index),
    tensor=config.sampler.tensor,
  )
  limits = limits_lib.Limits(
    slots=config.sampler.slots,
    prompt_tokens=config.data.max_prompt_tokens,
    response_tokens=config.rollout.max_response_tokens,
    prefill_tokens=config.sampler.prefill_tokens,
    cache=config.sampler.cache,
    page_tokens=config.sampler.page_tokens,
  )
  fitted = capacity.fitted(
    model, limits, mesh, cache_gib=config.sampler.cache_gib
  )
  return mesh, fitted

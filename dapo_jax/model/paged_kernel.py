"""JAX's ragged paged attention, a Pallas kernel for TPUs, as we call it.

What it takes was found by compiling it for v5e, v5p and v6e with JAX 0.10.2;
`tests/tpu_compile_test.py` repeats that. It can't be interpreted on a CPU.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from dapo_jax.model import spec as spec_lib

# Keys and values that are on the chip at one time, [tokens], and queries.
_BLOCK_TOKENS = 1024
_BLOCK_QUERIES = 32
# Of the chip's vector memory; v5p has 64 MiB, v5e and v6e have 128.
_VECTOR_BYTES = 32 * 2**20
# The table of pages stands in the scalar memory of 1 MiB, in rows of 128
# numbers of 4 bytes; the rest is for what else the kernel keeps there.
_TABLE_BYTES = 896 * 2**10


def refusal(
  spec: spec_lib.Spec,
  *,
  tensor: int,
  dtype: DTypeLike,
  table_shape: tuple[int, int],
) -> str | None:
  """Returns why the kernel can't serve a model, or None.

  Args:
    spec: the model.
    tensor: devices that its heads are split over.
    dtype: of keys and values.
    table_shape: slots and pages a slot, on one device.
  """
  if spec.head_dim != 128:
    return f'its heads have {spec.head_dim} entries, not 128'
  words = 2 * spec.kv_heads // tensor * jnp.dtype(dtype).itemsize / 4
  if words not in (1, 2, 4) and words % 8:
    return (
      f'{spec.kv_heads} key heads in {jnp.dtype(dtype).name} over {tensor} '
      'devices fill no whole registers'
    )
  slots, pages = table_shape
  if slots * -(-pages // 128) * 128 * 4 > _TABLE_BYTES:
    return (
      f'a table of {slots} slots x {pages} pages a device exceeds '
      f'{_TABLE_BYTES // 2**10} KiB; with larger --config.sampler.page_tokens '
      'or fewer --config.sampler.slots it would fit'
    )
  return None


def attend(
  q: Float[Array, 'S N H'],
  pages: Float[Array, 'Q p X H'],
  *,
  table: Int[Array, 'S W'],
  positions: Int[Array, ' S'],
  window_tokens: int | None,
) -> Float[Array, 'S N H']:
  """Returns attention of one query a slot over its pages, up to its position.

  Inside `shard_map` only: a Mosaic kernel is not partitioned.
  """
  # It costs an import of Pallas, which only TPUs need.
  from jax.experimental.pallas.ops.tpu import ragged_paged_attention as kernel

  slots = q.shape[0]
  block_pages = max(1, min(_BLOCK_TOKENS // pages.shape[1], table.shape[1]))
  return kernel.ragged_paged_attention(
    q,
    pages,
    positions + 1,
    table,
    jnp.arange(slots + 1, dtype=jnp.int32),
    jnp.array([slots], jnp.int32),
    sm_scale=q.shape[-1] ** -0.5,
    sliding_window=window_tokens,
    num_kv_pages_per_block=block_pages,
    num_queries_per_block=_BLOCK_QUERIES,
    vmem_limit_bytes=_VECTOR_BYTES,
  )

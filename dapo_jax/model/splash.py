"""JAX's splash attention, a Pallas kernel for TPUs, as we call it.

It never holds the scores of a row, forward or backward. What it takes, and
how much memory it needs, was found by compiling it for v5e, v5p and v6e with
JAX 0.10.2; `tests/tpu_compile_test.py` repeats that. It can be interpreted on
a CPU, which is for tests.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dapo_jax.model import spec as spec_lib

# The kernel's registers are so wide; every block is a multiple.
_LANES = 128


class Blocks(NamedTuple):
  """How many tokens the kernel takes at a time."""

  queries: int
  keys: int  # fetched; the backward pass keeps dq once for each such block
  computed_keys: int  # of those fetched


# By `Device.device_kind`: v5e, v5p, v6e. Larger blocks are fetched less often;
# at twice these sizes a kernel exceeds the vector memory it is given.
_BLOCKS = {
  'TPU v5 lite': Blocks(512, 2048, 512),
  'TPU v5': Blocks(1024, 2048, 512),
  'TPU v6 lite': Blocks(1024, 2048, 512),
}
_OTHER_BLOCKS = Blocks(512, 1024, 512)


def refusal(spec: spec_lib.Spec, *, tensor: int) -> str | None:
  """Returns why the kernel can't compute a model's attention, or None.

  Args:
    spec: the model.
    tensor: devices that its heads are split over.
  """
  for name, heads in (('query', spec.heads), ('key', spec.kv_heads)):
    if heads % tensor:
      return f'its {heads} {name} heads are not divisible by {tensor} devices'
  if spec.head_dim % 8:
    return f'its heads have {spec.head_dim} entries, no multiple of 8'
  return None


def blocks(row_tokens: int, device_kind: str) -> tuple[Blocks, int]:
  """Returns the kernel's blocks and the length that rows are padded to.

  Rows that are longer than a block of queries are padded to whole ones, so
  that no length is left with tiny blocks.
  """
  most = _BLOCKS.get(device_kind, _OTHER_BLOCKS)
  unit = min(512, most.queries)
  if row_tokens <= unit:
    length = -(-row_tokens // _LANES) * _LANES
    return Blocks(length, length, length), length
  length = -(-row_tokens // unit) * unit
  queries, keys = (
    max(n for n in range(unit, size + 1, unit) if length % n == 0)
    for size in most[:2]
  )
  return Blocks(queries, keys, min(most.computed_keys, keys)), length


def attend(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
  segment_ids: Int[Array, 'B T'],
  *,
  window_tokens: int | None,
  device_kind: str,
  residual_name: str,
  interpret: bool = False,
) -> Float[Array, 'B T N H']:
  """Returns causal softmax attention inside each segment of each row.

  As `attention.attention` does, but padding, segment 0, takes no part: what it
  holds reaches nothing, and its output is 0. A window counts places, which
  inside a segment are as far apart as positions.

  Inside `shard_map` only: a Mosaic kernel is not partitioned.

  Args:
    q: queries, not scaled.
    k: keys.
    v: values.
    segment_ids: of the places; 0 is padding.
    window_tokens: how many places one attends to, itself included; None = all
      before it.
    device_kind: chooses the blocks.
    residual_name: the `checkpoint_name` of what the backward pass needs beside
      q, k and v: the output and the logarithm of its normalisation.
    interpret: without the kernel's compiler.
  """
  # They cost an import of Pallas, which only TPUs need.
  from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as kernels,
  )

  tokens, heads, head_dim = q.shape[1:]
  sizes, length = blocks(tokens, device_kind)
  kernel = kernels.make_splash_mha(
    _mask(length, heads, window_tokens),
    block_sizes=kernels.BlockSizes(
      block_q=sizes.queries,
      block_kv=sizes.keys,
      block_kv_compute=sizes.computed_keys,
      block_q_dkv=sizes.queries,
      block_kv_dkv=sizes.keys,
      block_kv_dkv_compute=sizes.computed_keys,
      # One pass for dq, dk and dv: five products, not seven.
      use_fused_bwd_kernel=True,
    ),
    head_shards=1,
    q_seq_shards=1,
    residual_checkpoint_name=residual_name,
    interpret=interpret,
  )
  real = segment_ids > 0
  clean = lambda x: jnp.where(real[:, :, None, None], x, 0)

  def padded(x):
    x = jnp.pad(clean(x), ((0, 0), (0, length - tokens), (0, 0), (0, 0)))
    return jnp.swapaxes(x, 1, 2)

  # The kernel does not scale.
  scaled = (q * jnp.float32(head_dim**-0.5)).astype(q.dtype)
  ids = jnp.pad(segment_ids, ((0, 0), (0, length - tokens)))
  one = lambda q, k, v, ids: kernel(q, k, v, kernels.SegmentIds(ids, ids))
  out = jax.vmap(one)(padded(scaled), padded(k), padded(v), ids)
  return clean(jnp.swapaxes(out, 1, 2)[:, :tokens])


def _mask(length: int, heads: int, window_tokens: int | None):
  """Returns what a place may see of its row, whatever the segments."""
  from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as masks,
  )

  shape = (length, length)
  if window_tokens is None:
    one = masks.CausalMask(shape)
  else:
    one = masks.LocalMask(shape, (window_tokens - 1, 0), offset=0)
  return masks.MultiHeadMask([one] * heads)

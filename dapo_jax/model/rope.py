"""Rotary positions of queries and keys."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dapo_jax.model import spec as spec_lib


def frequencies(spec: spec_lib.Spec) -> Float[np.ndarray, ' pairs']:
  """Returns the angle a position of each of H/2 pairs, [radians].

  f_i = theta^(-2i/H). Llama 3's scaling, with r_i = original context *
  f_i / 2 pi the turns of a pair within the original context, and
  s_i = (r_i - low) / (high - low), cut to [0, 1], makes it
  f_i * (s_i + (1 - s_i) / factor): fast pairs stay, slow ones are stretched.

  In double precision, on the host: what is wrong with a frequency is
  multiplied by the position, and TPUs' float32 powers are approximate.
  """
  half = spec.head_dim // 2
  plain = spec.rope_theta ** (-np.arange(half) / half)
  scaling = spec.rope_scaling
  if scaling is None:
    return plain
  turns = scaling.original_context_tokens * plain / (2 * np.pi)
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
  return plain * (kept + (1 - kept) / scaling.factor)


def rotate(
  x: Float[Array, 'B T N H'],
  positions: Int[Array, 'B T'],
  *,
  frequencies: Float[np.ndarray, ' pairs'],
) -> Float[Array, 'B T N H']:
  """Rotates the pairs (i, i + H/2) by position * frequency, in float32."""
  angle = positions[..., None, None] * jnp.asarray(frequencies, jnp.float32)
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return out.astype(x.dtype)

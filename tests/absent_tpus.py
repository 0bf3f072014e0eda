"""Compiles for TPUs that are not there, without jax's cache on disk.

The cache takes programs for absent devices, and can't read them.
"""

import jax
from jax.experimental.compilation_cache import compilation_cache


def forget_cache() -> None:
  """Turns the cache off; for setUpModule."""
  jax.config.update('jax_enable_compilation_cache', False)
  compilation_cache.reset_cache()


def keep_cache() -> None:
  """Turns the cache on again; for tearDownModule."""
  jax.config.update('jax_enable_compilation_cache', True)
  compilation_cache.reset_cache()

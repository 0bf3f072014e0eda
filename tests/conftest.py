"""What every test runs with: 8 virtual CPU devices and a compilation cache.

Set here, before any test imports jax, so that `pytest FILE` does as `make
test` does.
"""

import os
import pathlib

_ROOT = pathlib.Path(__file__).resolve().parents[1]

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '') + ' --xla_force_host_platform_device_count=8'
)
# XLA:CPU blocks a thread for every collective a device waits in; with no more
# threads than devices, two collectives at once wait for each other for ever.
os.environ.setdefault('NPROC', '64')
# Programs compiled in one run are read back in the next.
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(_ROOT / '.cache/jax'))
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')

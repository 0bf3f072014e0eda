"""Moves words from the processes that have them to those that need them.

An all-to-all over one device of each process, in parts of one size: however
much there is to move, and between whichever processes, one program does it.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Int, UInt32

from dapo_jax.parallel import job as job_lib

# Words from one process to another in a part.
_PART_WORDS = 16_384
_AXIS = 'process'


def all_to_all(
  job: job_lib.Job,
  outgoing: Sequence[UInt32[np.ndarray, ' _']],
  sizes_words: Int[np.ndarray, 'processes processes'],
  *,
  what: str,
) -> list[UInt32[np.ndarray, ' _']]:
  """Returns what each process sends to this one, by its number.

  Args:
    job: the processes.
    outgoing: what this process sends to each.
    sizes_words: how much each sends (first axis) to each (second): all
      processes know it of all, and nothing is moved where it says 0.
    what: names this for those that wait.
  """
  if job.count == 1:
    return list(outgoing)
  parts = -(-int(sizes_words.max()) // _PART_WORDS)
  received = np.zeros((job.count, parts * _PART_WORDS), np.uint32)
  if parts:
    job.meet(what)
  for i in range(parts):
    here = slice(i * _PART_WORDS, (i + 1) * _PART_WORDS)
    sent = np.zeros((job.count, _PART_WORDS), np.uint32)
    for to, words in enumerate(outgoing):
      part = words[here]
      sent[to, : len(part)] = part
    received[:, here] = _swapped(sent)
  of = sizes_words[:, job.index]
  return [row[:n] for row, n in zip(received, of, strict=True)]


def _swapped(
  sent: UInt32[np.ndarray, 'processes words'],
) -> UInt32[np.ndarray, 'processes words']:
  """Returns row j of what process i gave, at i in process j."""
  mesh = _mesh()
  count = mesh.devices.size
  mine = mesh.local_devices[0]
  everywhere = jax.make_array_from_single_device_arrays(
    (count, *sent.shape),
    NamedSharding(mesh, P(_AXIS)),
    [jax.device_put(sent[None], mine)],
  )
  [shard] = _swap(mesh)(everywhere).addressable_shards
  return np.asarray(shard.data)[:, 0]


@functools.cache
def _mesh() -> Mesh:
  first = {}
  for device in jax.devices():
    first.setdefault(device.process_index, device)
  return Mesh(np.array([first[i] for i in sorted(first)]), _AXIS)


@functools.cache
def _swap(mesh: Mesh):
  """Returns the program that splits over the receivers, not the senders."""
  return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P(None, _AXIS)))

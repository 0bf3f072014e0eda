"""Tests of `sampling.cache_layout`."""

import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tiny_model
from dapo_jax.model import decoding
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import cache_layout

_LIMITS = tiny_engine.LIMITS._replace(page_tokens=8)  # rows of 4 pages


def _tpu_mesh(*, slot=1, tensor=1):
  """Returns what is looked at of a mesh of TPUs."""
  device = types.SimpleNamespace(platform='tpu')
  return mock.Mock(
    spec=jax.sharding.Mesh,
    devices=np.array([[device] * tensor] * slot),
    shape={'slot': slot, 'tensor': tensor},
  )


class ResolvedTest(parameterized.TestCase):
  def _kind(self, model, limits, mesh):
    """Returns the layout; nothing else of the limits changes."""
    found = cache_layout.resolved(model, limits, mesh)
    self.assertEqual(found._replace(cache=limits.cache), limits)
    return found.cache

  @parameterized.parameters(
    ('auto', 'dense'),
    ('dense', 'dense'),
    ('dense_int8', 'dense_int8'),
    ('paged', 'paged'),
  )
  def test_elsewhere_rows_are_whole_unless_told(self, asked, given):
    limits = _LIMITS._replace(cache=asked)
    with self.assertNoLogs('absl'):
      found = self._kind(tiny_engine.model(), limits, mesh_lib.local_mesh())
    self.assertEqual(found, given)

  @parameterized.parameters(
    ('auto', 'paged'),
    ('paged', 'paged'),
    ('dense', 'dense'),
    ('dense_int8', 'dense_int8'),
  )
  def test_on_tpus_the_kernel_decides(self, asked, given):
    limits = _LIMITS._replace(cache=asked)
    model = tiny_model.model(head_dim=128, compute_dtype='bfloat16')
    with self.assertNoLogs('absl'):
      found = self._kind(model, limits, _tpu_mesh())
    self.assertEqual(found, given)

  @parameterized.parameters('auto', 'paged')
  def test_what_it_refuses_is_dense_and_says_why_once(self, asked):
    limits = _LIMITS._replace(cache=asked)
    model, mesh = tiny_engine.model(), _tpu_mesh()
    with self.assertLogs('absl') as logs:
      # For the memory, then for the engine.
      limits = cache_layout.resolved(model, limits, mesh)
      limits = cache_layout.resolved(model, limits, mesh)
    self.assertEqual(limits.cache, 'dense')
    self.assertLen(logs.output, 1)
    self.assertRegex(logs.output[0], 'kept whole, not in pages: .* 12 entries')

  def test_it_is_asked_about_what_a_device_holds(self):
    model = tiny_model.model(
      head_dim=128, heads=12, kv_heads=12, compute_dtype='bfloat16'
    )
    limits = _LIMITS._replace(slots=4096, cache='auto')
    for slot, tensor, given in (
      (1, 1, 'dense'),
      (4, 3, 'paged'),  # 4 heads of 1,024 slots
      (4, 2, 'dense'),  # 6 heads
      (1, 3, 'dense'),  # 4,096 slots
    ):
      mesh = _tpu_mesh(slot=slot, tensor=tensor)
      self.assertEqual(self._kind(model, limits, mesh), given)


class LayoutTest(parameterized.TestCase):
  @parameterized.parameters('dense', 'dense_int8', 'paged')
  def test_shards_are_of_slots_and_of_heads(self, kind):
    mesh = mesh_lib.engine_mesh(jax.devices()[:8], tensor=2)
    limits = _LIMITS._replace(cache=kind)
    layout = cache_layout.make(tiny_engine.model(), limits, mesh)
    bytes_of = lambda x, shape: np.prod(shape) * x.dtype.itemsize
    whole = sum(
      bytes_of(x, x.shape)
      for x in jax.tree.leaves(jax.eval_shape(layout.empty))
    )
    shard = jax.tree.map(
      lambda x, where: bytes_of(x, where.shard_shape(x.shape)),
      jax.eval_shape(layout.empty),
      layout.shardings,
    )
    shard = sum(jax.tree.leaves(shard))
    # An eighth each; of a table of pages a quarter.
    table = 8 * 4 * 4 if kind == 'paged' else 0
    self.assertEqual(shard, (whole - table) / 8 + table / 4)

  def test_a_slot_that_is_not_live_writes_into_no_page(self):
    model = tiny_engine.model()
    limits = _LIMITS._replace(slots=2, cache='paged')
    layout = cache_layout.make(model, limits, mesh_lib.local_mesh())
    bound = decoding.bind(model.graphdef, tiny_engine.params())
    _, after = layout.decode(
      *bound,
      jnp.array([3, 4]),
      layout.empty(),
      positions=jnp.array([1, 2]),
      live=jnp.array([True, False]),
      attend_blocks=None,
    )
    written = np.asarray(after.pages).any(axis=(3, 4))
    # In both layers the second entry of the first slot's first page.
    self.assertEqual(np.argwhere(written).tolist(), [[0, 0, 1], [1, 0, 1]])


if __name__ == '__main__':
  absltest.main()

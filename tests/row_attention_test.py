"""Tests of `model.row_attention`, and of the ways it has: all are one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import tiny_model
import tolerances
from dapo_jax.model import (
  attention,
  chunked_attention,
  row_attention,
  row_layout,
  splash,
)
from dapo_jax.parallel import mesh as mesh_lib


def _mesh(fsdp=1, tensor=1):
  return mesh_lib.update_mesh(
    jax.devices()[: fsdp * tensor], data=1, fsdp=fsdp, tensor=tensor
  )


def _qkv(rows, tokens, *, heads=4, kv_heads=2, dtype='float32'):
  rng = np.random.default_rng(tokens)
  draw = lambda n: jnp.asarray(
    rng.standard_normal((rows, tokens, n, 16)), dtype
  )
  return draw(heads), draw(kv_heads), draw(kv_heads)


def _segments(rows, tokens, *, padding):
  """Returns rows of segments of uneven lengths, then padding."""
  rng = np.random.default_rng(rows)
  ids = np.zeros((rows, tokens), np.int32)
  for row in ids:
    ends = np.sort(rng.integers(1, tokens - padding, size=3))
    row[: tokens - padding] = 1 + np.searchsorted(
      ends, np.arange(tokens - padding), side='right'
    )
  return jnp.asarray(ids)


def _positions(segment_ids):
  """Returns the place of each token in its segment."""
  ids = np.asarray(segment_ids)
  found = np.zeros_like(ids)
  for row, out in zip(ids, found, strict=True):
    for n in np.unique(row):
      out[row == n] = np.arange((row == n).sum())
  return jnp.asarray(found)


def _chunked(*qkv, block_tokens=64, **ids):
  return chunked_attention.attend(*qkv, block_tokens=block_tokens, **ids)


def _splash(*qkv, segment_ids, prefix_ids, positions, window_tokens, mesh):
  return row_attention.attend(
    *qkv,
    layout=row_layout.RowLayout('splash', mesh, interpret=True),
    segment_ids=segment_ids,
    prefix_ids=prefix_ids,
    positions=positions,
    window_tokens=window_tokens,
  )


def _value_and_grads(way, qkv, segment_ids, *, window=None, prefix_ids=None):
  """Returns what real places are given, and a gradient of all of it."""
  positions = _positions(segment_ids)

  def loss(q, k, v):
    out = way(
      q,
      k,
      v,
      segment_ids=segment_ids,
      prefix_ids=prefix_ids,
      positions=positions,
      window_tokens=window,
    )
    real = (segment_ids > 0)[..., None, None]
    out = jnp.where(real, out, 0).astype(jnp.float32)
    weight = jnp.cos(jnp.arange(out.size)).reshape(out.shape)
    return jnp.sum(out * weight), out

  grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
  (_, out), grads = grad(*qkv)
  return out, *grads


class _Test(parameterized.TestCase):
  def assert_equal_to_dense(self, way, qkv, segment_ids, **how):
    dtype = str(qkv[0].dtype)
    exact = tuple(x.astype(jnp.float32) for x in qkv)
    wanted = _value_and_grads(attention.attention, exact, segment_ids, **how)
    found = _value_and_grads(way, qkv, segment_ids, **how)
    for name, a, b in zip(
      ('out', 'dq', 'dk', 'dv'), wanted, found, strict=True
    ):
      b = np.asarray(b, np.float32)
      # Sums of many terms are as exact as they are large.
      scale = max(1.0, np.abs(a).max()) if name != 'out' else 1.0
      gap = np.abs(a - b).max() / scale
      self.assertLessEqual(gap, tolerances.ATTENTION[dtype], name)

  def assert_padding_reaches_nothing(self, way, qkv, segment_ids):
    padding = (segment_ids == 0)[..., None, None]
    spoilt = tuple(jnp.where(padding, jnp.nan, x) for x in qkv)
    wanted = _value_and_grads(way, qkv, segment_ids)
    for a, b in zip(
      wanted, _value_and_grads(way, spoilt, segment_ids), strict=True
    ):
      np.testing.assert_array_equal(a, b)


class ChunkedTest(_Test):
  @parameterized.parameters((64, None), (200, 20), (333, None))
  def test_it_is_the_dense_one(self, tokens, window):
    self.assert_equal_to_dense(
      _chunked,
      _qkv(2, tokens),
      _segments(2, tokens, padding=9),
      window=window,
    )

  def test_it_is_in_bfloat16(self):
    self.assert_equal_to_dense(
      _chunked, _qkv(2, 200, dtype='bfloat16'), _segments(2, 200, padding=9)
    )

  @parameterized.parameters(None, 50)
  def test_responses_share_a_prompt(self, window):
    # A prompt of 60, and responses of 70 and of 50 that see it; then another
    # sequence; then padding.
    ids = np.repeat([1, 2, 3, 4, 0], [60, 70, 50, 30, 7])[None]
    prefixes = np.repeat([1, 1, 1, 4, 0], [60, 70, 50, 30, 7])[None]
    qkv, ids = _qkv(1, 217), jnp.asarray(ids)
    shared = jnp.asarray(prefixes)
    self.assert_equal_to_dense(
      _chunked, qkv, ids, prefix_ids=shared, window=window
    )
    alone, behind = (
      _value_and_grads(_chunked, qkv, ids, prefix_ids=p)[0][0, 130]
      for p in (ids, shared)
    )
    self.assertGreater(np.abs(alone - behind).max(), 1e-2)

  def test_padding_reaches_nothing(self):
    self.assert_padding_reaches_nothing(
      _chunked, _qkv(2, 100), _segments(2, 100, padding=9)
    )

  def test_an_empty_row_is_finite(self):
    for x in _value_and_grads(_chunked, _qkv(1, 100), jnp.zeros((1, 100), int)):
      np.testing.assert_array_equal(x, np.zeros_like(x))

  def test_memory_grows_with_the_row_not_with_its_square(self):
    def temp_bytes(way, tokens):
      shape = jax.ShapeDtypeStruct((1, tokens, 2, 16), jnp.float32)
      ids = jax.ShapeDtypeStruct((1, tokens), jnp.int32)

      def loss(q, ids):
        out = way(
          q,
          q,
          q,
          segment_ids=ids,
          prefix_ids=None,
          positions=None,
          window_tokens=None,
        )
        return jnp.sum(jnp.sin(out))

      compiled = jax.jit(jax.grad(loss)).lower(shape, ids).compile()
      return compiled.memory_analysis().temp_size_in_bytes

    # Scores of all pairs are 2 heads * 1024^2 * 4 bytes = 8 MiB.
    self.assertGreater(temp_bytes(attention.attention, 1024), 8 * 2**20)
    self.assertLess(temp_bytes(_chunked, 1024), 4 * 2**20)


def _kernel_on(mesh):
  return functools.partial(_splash, mesh=mesh)


class SplashTest(_Test):
  """The kernel, interpreted."""

  def test_it_is_the_dense_one_on_4_devices(self):
    # Two blocks of queries and of keys on two shards of rows and of heads.
    self.assert_equal_to_dense(
      _kernel_on(_mesh(fsdp=2, tensor=2)),
      _qkv(2, 700),
      _segments(2, 700, padding=33),
    )

  def test_padding_reaches_nothing(self):
    # The first row is nothing but padding.
    ids = _segments(2, 100, padding=9).at[0].set(0)
    way, qkv = _kernel_on(_mesh()), _qkv(2, 100)
    self.assert_padding_reaches_nothing(way, qkv, ids)
    for x in _value_and_grads(way, qkv, ids):
      np.testing.assert_array_equal(x[0], np.zeros_like(x[0]))


@pytest.mark.slow
class EverySplashTest(_Test):
  """The same of more lengths, windows, heads, types and meshes."""

  @parameterized.product(
    tokens=(100, 513, 1100),
    window=(None, 90),
    heads=((2, 1), (4, 4), (6, 2)),
    dtype=('float32', 'bfloat16'),
  )
  def test_it_is_the_dense_one(self, tokens, window, heads, dtype):
    self.assert_equal_to_dense(
      _kernel_on(_mesh()),
      _qkv(2, tokens, heads=heads[0], kv_heads=heads[1], dtype=dtype),
      _segments(2, tokens, padding=33),
      window=window,
    )

  @parameterized.parameters((8, 1), (2, 4), (1, 2), (4, 2))
  def test_it_is_the_dense_one_on_more_devices(self, fsdp, tensor):
    self.assert_equal_to_dense(
      _kernel_on(_mesh(fsdp=fsdp, tensor=tensor)),
      _qkv(8, 300, heads=8, kv_heads=4),
      _segments(8, 300, padding=12),
      window=40,
    )


class BlocksTest(parameterized.TestCase):
  @parameterized.product(
    tokens=(1, 128, 129, 500, 513, 2049, 5000, 22_528, 22_529),
    kind=('TPU v5 lite', 'TPU v5', 'TPU v6 lite', 'cpu'),
  )
  def test_they_divide_a_row_that_is_little_longer(self, tokens, kind):
    found, length = splash.blocks(tokens, kind)
    self.assertBetween(length, tokens, tokens + 511)
    for block in found:
      self.assertEqual(block % 128, 0)
    self.assertEqual(length % found.queries, 0)
    self.assertEqual(length % found.keys, 0)
    self.assertEqual(found.keys % found.computed_keys, 0)

  def test_a_row_of_dapo_has_the_largest(self):
    self.assertEqual(
      splash.blocks(22_528, 'TPU v5'), ((1024, 2048, 512), 22_528)
    )


@dataclasses.dataclass(frozen=True)
class _Device:
  """A device that is not there, as of a topology to compile for."""

  platform: str
  id: int
  device_kind: str = ''
  process_index: int = 0


def _absent(platform, *, tensor=1):
  """Returns an update's mesh of devices that are not there."""
  devices = [_Device(platform, i) for i in range(tensor)]
  return Mesh(np.array(devices).reshape(1, 1, -1), ('data', 'fsdp', 'tensor'))


class ChoiceTest(parameterized.TestCase):
  def _resolved(self, kind, mesh, *, tokens=100, shared=False, **spec):
    return row_attention.resolved(
      kind,
      tiny_model.spec(**{'head_dim': 16, **spec}),
      mesh,
      row_tokens=tokens,
      shared_prompts=shared,
    )

  @parameterized.parameters(
    ('cpu', 2048, 'dense'),
    ('cpu', 2049, 'chunked'),
    ('gpu', 22_528, 'chunked'),
    ('tpu', 100, 'splash'),
    ('tpu', 22_528, 'splash'),
  )
  def test_auto_goes_by_the_devices_and_the_length(self, platform, tokens, way):
    self.assertEqual(
      self._resolved('auto', _absent(platform), tokens=tokens), way
    )

  @parameterized.parameters(
    ({'shared': True}, 'share_prompts'),
    ({'mesh': _absent('tpu', tensor=3)}, '4 query heads .* 3 devices'),
    ({'mesh': _absent('tpu', tensor=4)}, '2 key heads .* 4 devices'),
    ({'head_dim': 12}, '12 entries'),
  )
  def test_auto_says_why_a_tpu_goes_without_the_kernel(self, how, why):
    how = {'mesh': _absent('tpu'), 'tokens': 3000} | how
    with self.assertLogs(level='WARNING') as logs:
      self.assertEqual(self._resolved('auto', **how), 'chunked')
    self.assertLen(logs.output, 1)
    self.assertRegex(logs.output[0], f'chunked, not splash: .*{why}')
    with self.assertRaisesRegex(ValueError, rf'{why}.*--config\.model\.att'):
      self._resolved('splash', **how)

  def test_the_kernel_is_refused_where_there_is_no_tpu(self):
    with self.assertRaisesRegex(
      ValueError, r'TPUs.* cpu; change --config\.model\.attention'
    ):
      self._resolved('splash', _mesh())

  @parameterized.parameters('dense', 'chunked')
  def test_what_is_asked_for_is_done(self, kind):
    for platform in ('cpu', 'tpu'):
      self.assertEqual(
        self._resolved(kind, _absent(platform), tokens=9999), kind
      )

  @parameterized.parameters(
    ('auto', 'cpu', True),
    ('auto', 'gpu', True),
    ('auto', 'tpu', False),
    ('splash', 'tpu', False),
    ('chunked', 'tpu', True),
    ('dense', 'tpu', True),
  )
  def test_prompts_are_shared_wherever_attention_can(self, kind, platform, can):
    shares = functools.partial(
      row_attention.shares_prompts, attention_kind=kind, mesh=_absent(platform)
    )
    self.assertEqual(shares(None), can)
    self.assertEqual((shares(True), shares(False)), (True, False))


class PlacedTest(absltest.TestCase):
  def test_the_kernel_leaves_rows_and_heads_where_they_are(self):
    mesh = _mesh(fsdp=2, tensor=2)
    where = NamedSharding(mesh, P(('data', 'fsdp'), None, 'tensor', None))
    qkv = jax.device_put(_qkv(2, 100), where)
    ids = _segments(2, 100, padding=9)
    call = jax.jit(
      lambda *qkv: _splash(
        *qkv,
        segment_ids=ids,
        prefix_ids=None,
        positions=ids,
        window_tokens=None,
        mesh=mesh,
      )
    )
    compiled = call.lower(*qkv).compile()
    [found] = jax.tree.leaves(compiled.output_shardings)
    self.assertTrue(found.is_equivalent_to(where, 4))
    for word in ('all-gather', 'all-reduce', 'all-to-all'):
      self.assertNotIn(word, compiled.as_text())


if __name__ == '__main__':
  absltest.main()

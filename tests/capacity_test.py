"""Tests of `sampling.capacity`."""

import jax
from absl.testing import absltest, parameterized

import tiny_engine
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import capacity

# Per slot: 20 tokens and log-probs, 4 int32, a bool, a choice of 4, a key.
_OTHERS = 20 * 8 + 4 * 4 + 1 + 4 * 4 + 8
# 2 layers, keys and values, 2 heads of 12, float32.
_TOKEN = 2 * 2 * 2 * 12 * 4


def _fitted(cache, cache_bytes, *, devices=1, tensor=1):
  return capacity.fitted(
    tiny_engine.model(),
    tiny_engine.LIMITS._replace(cache=cache, page_tokens=8),
    mesh_lib.engine_mesh(jax.devices()[:devices], tensor=tensor),
    cache_gib=None if cache_bytes is None else cache_bytes / 2**30,
  )


class DenseTest(parameterized.TestCase):
  @parameterized.parameters((1, 1, 8), (8, 1, 1), (8, 2, 2))
  def test_slots_fit_by_the_byte(self, devices, tensor, shard_slots):
    # A row is 32 entries.
    row = 32 * _TOKEN // tensor + _OTHERS
    where = dict(devices=devices, tensor=tensor)
    limits = _fitted('auto', shard_slots * row, **where)
    self.assertEqual(limits.cache, 'dense')
    with self.assertRaisesRegex(
      ValueError, r'^8 slots over .* slots fit; change --config.sampler.slots'
    ):
      _fitted('auto', shard_slots * row - 1, **where)

  @parameterized.parameters('auto', 'paged')
  def test_slots_that_the_devices_cannot_share_are_refused(self, cache):
    with self.assertRaisesRegex(ValueError, r'\(4\).*\(8\).*sampler.slots'):
      capacity.fitted(
        tiny_engine.model(),
        tiny_engine.LIMITS._replace(slots=4, cache=cache),
        mesh_lib.engine_mesh(jax.devices()[:8], tensor=1),
        cache_gib=1.0,
      )

  def test_without_a_budget_all_fit(self):
    self.assertEqual(_fitted('auto', None).cache, 'dense')


class PagedTest(parameterized.TestCase):
  @parameterized.parameters((1, 1, 8), (8, 2, 2))
  def test_the_budget_beside_the_slots_is_pages(
    self, devices, tensor, shard_slots
  ):
    where = dict(devices=devices, tensor=tensor)
    page = 8 * _TOKEN // tensor
    others = shard_slots * (_OTHERS + 4 * 4)  # a row of the table is 4 pages
    fit = lambda size: _fitted('paged', size, **where).pages
    self.assertEqual(fit(others + 5 * page), 5)
    self.assertEqual(fit(others + 6 * page - 1), 5)
    # No more than the slots could fill.
    self.assertEqual(fit(others + 999 * page), shard_slots * 4)

  def test_the_longest_row_has_to_fit(self):
    page, others = 8 * _TOKEN, 8 * (_OTHERS + 16)
    self.assertEqual(_fitted('paged', others + 4 * page).pages, 4)
    with self.assertRaisesRegex(
      ValueError,
      r'room for 3 pages of 8 tokens .* takes 4; .*--config.sampler.cache_gib',
    ):
      _fitted('paged', others + 4 * page - 1)
    with self.assertRaisesRegex(ValueError, r'room for 0 pages'):
      _fitted('paged', 10)

  def test_without_a_budget_there_are_all_pages(self):
    self.assertIsNone(_fitted('paged', None).pages)


if __name__ == '__main__':
  absltest.main()

"""Tests of `sampling.limits`."""

import functools

from absl.testing import absltest, parameterized

from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import pages


class RowTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, 16), (16, 16), (17, 32), (100, 128), (32768, 32768)
  )
  def test_a_prompt_gets_the_next_power_of_two(self, length, bucket):
    self.assertEqual(limits_lib.bucket_tokens(length), bucket)

  def test_a_prompt_beyond_the_last_bucket_is_refused(self):
    with self.assertRaisesRegex(
      ValueError, '32769 .*32768.*--config.data.max_prompt_tokens'
    ):
      limits_lib.bucket_tokens(32769)

  @parameterized.parameters(
    (12, 20, 32),  # 12 + 20
    (17, 3, 32),  # the bucket of 17
    (16, 1, 17),
  )
  def test_the_cache_holds_padded_prompts_and_whole_rows(
    self, prompt, response, cache
  ):
    limits = limits_lib.Limits(
      slots=1, prompt_tokens=prompt, response_tokens=response
    )
    self.assertEqual(limits_lib.cache_tokens(limits), cache)

  def test_a_row_is_held_by_so_many_blocks(self):
    # 32 + 256 entries are four blocks of 72; 16 + 40 are one.
    blocks = functools.partial(
      limits_lib.blocks_for, limits_lib.Limits(4, 32, 256)
    )
    found = [blocks(n) for n in (1, 72, 73, 144, 145, 216, 217, 288, 999)]
    self.assertEqual(found, [1, 1, 2, 2, 3, 3, 4, 4, 4])
    self.assertEqual(limits_lib.blocks_for(limits_lib.Limits(4, 16, 40), 56), 1)


class PagesTest(absltest.TestCase):
  def test_there_are_as_many_as_all_slots_could_fill_unless_told(self):
    limits = limits_lib.Limits(8, 12, 20, cache='paged', page_tokens=16)
    self.assertEqual(limits_lib.row_pages(limits), 2)
    self.assertEqual(limits_lib.row_pages(limits._replace(page_tokens=8)), 4)
    self.assertEqual(
      limits_lib.pool_sizes(limits, 2),
      pages.Sizes(
        slots=8, shards=2, shard_pages=8, page_tokens=16, row_pages=2
      ),
    )
    fewer = limits_lib.pool_sizes(limits._replace(pages=3), 2)
    self.assertEqual(fewer.shard_pages, 3)

  def test_whole_rows_are_pages_too(self):
    limits = limits_lib.Limits(8, 12, 20, cache='dense')
    self.assertEqual(
      limits_lib.pool_sizes(limits, 2),
      pages.Sizes(
        slots=8, shards=1, shard_pages=8, page_tokens=32, row_pages=1
      ),
    )


class CheckTest(parameterized.TestCase):
  @parameterized.parameters(
    (dict(prefill_tokens=24), r'of 24 tokens.*--config.sampler.prefill_tokens'),
    (dict(page_tokens=12), r'has 12 tokens.*--config.sampler.page_tokens'),
    (dict(page_tokens=2048), r'2048 tokens.*--config.sampler.page_tokens'),
    (dict(pages=0), r'0 pages .* row \(1\); change .*cache_gib'),
    (dict(slots=7), r'slots \(7\).*\(2\); change --config.sampler.slots'),
    (dict(response_tokens=89), r'of 12 .* of 89 .*\(100\).*max_prompt_tokens'),
  )
  def test_what_does_not_go_together_is_refused(self, changes, message):
    limits = limits_lib.Limits(8, 12, 20)
    check = functools.partial(limits_lib.check, context_tokens=100, shards=2)
    check(limits)
    with self.assertRaisesRegex(ValueError, message):
      check(limits._replace(**changes))


if __name__ == '__main__':
  absltest.main()

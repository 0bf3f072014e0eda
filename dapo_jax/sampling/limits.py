"""The sizes of an engine, and what follows from them."""

import itertools
from typing import NamedTuple

from dapo_jax.model import kv_cache
from dapo_jax.sampling import pages

# The padded prompt lengths that JetStream's own tokenizer code produces.
PREFILL_BUCKETS_TOKENS = tuple(2**i for i in range(4, 16))

# A kernel's block of keys holds whole pages.
PAGES_TOKENS = tuple(2**i for i in range(3, 11))


class Limits(NamedTuple):
  """Sizes of an engine."""

  slots: int
  prompt_tokens: int
  response_tokens: int
  # A longer prompt is prefilled in parts of so many tokens.
  prefill_tokens: int = 1024
  # Layout of keys and values: 'dense', 'dense_int8', 'paged', or 'auto' for
  # what suits model and devices.
  cache: str = 'auto'
  # Of the paged one: tokens of a page; pages of a shard of the slots, None =
  # as many as its slots could ever fill.
  page_tokens: int = 64
  pages: int | None = None


def bucket_tokens(length_tokens: int) -> int:
  """Returns the smallest padded prompt length that holds this many tokens."""
  for bucket in PREFILL_BUCKETS_TOKENS:
    if length_tokens <= bucket:
      return bucket
  raise ValueError(
    f'a prompt of {length_tokens} tokens is longer than the longest prefill '
    f'bucket ({PREFILL_BUCKETS_TOKENS[-1]}); change '
    '--config.data.max_prompt_tokens'
  )


def cache_tokens(limits: Limits) -> int:
  """Returns the cache entries of a whole row, the prompt's padding included."""
  return max(
    bucket_tokens(limits.prompt_tokens),
    limits.prompt_tokens + limits.response_tokens,
  )


def blocks_for(limits: Limits, longest_tokens: int) -> int:
  """Returns how many blocks of whole rows hold so many tokens."""
  sizes = kv_cache.block_tokens(cache_tokens(limits))
  ends = itertools.accumulate(sizes)
  return 1 + sum(end < longest_tokens for end in list(ends)[:-1])


def row_pages(limits: Limits) -> int:
  """Returns the pages of the longest row."""
  longest = limits.prompt_tokens + limits.response_tokens
  return -(-longest // limits.page_tokens)


def shard_pages(limits: Limits, shards: int) -> int:
  """Returns the pages of a shard of the slots."""
  if limits.pages is not None:
    return limits.pages
  return limits.slots // shards * row_pages(limits)


def pool_sizes(limits: Limits, shards: int) -> pages.Sizes:
  """Returns the sizes of the pool that the slots' pages come from.

  A whole row is a page, and each slot has one.
  """
  if limits.cache == 'paged':
    return pages.Sizes(
      slots=limits.slots,
      shards=shards,
      shard_pages=shard_pages(limits, shards),
      page_tokens=limits.page_tokens,
      row_pages=row_pages(limits),
    )
  return pages.Sizes(
    slots=limits.slots,
    shards=1,
    shard_pages=limits.slots,
    page_tokens=cache_tokens(limits),
    row_pages=1,
  )


def check(limits: Limits, *, context_tokens: int, shards: int) -> None:
  """Raises a ValueError for sizes that do not go together.

  Args:
    limits: the sizes.
    context_tokens: of the model.
    shards: devices that the slots are split over.
  """
  if limits.prefill_tokens not in PREFILL_BUCKETS_TOKENS:
    raise ValueError(
      f'prompts are prefilled in parts of {limits.prefill_tokens} tokens; it '
      f'must be one of {PREFILL_BUCKETS_TOKENS}; change '
      '--config.sampler.prefill_tokens'
    )
  if limits.page_tokens not in PAGES_TOKENS:
    raise ValueError(
      f'a page of the cache has {limits.page_tokens} tokens; it must be one '
      f'of {PAGES_TOKENS}; change --config.sampler.page_tokens'
    )
  if limits.pages is not None and limits.pages < row_pages(limits):
    raise ValueError(
      f'a pool of {limits.pages} pages is smaller than the longest row '
      f'({row_pages(limits)}); change --config.sampler.cache_gib'
    )
  longest = limits.prompt_tokens + limits.response_tokens
  if longest > context_tokens:
    raise ValueError(
      f'a prompt of {limits.prompt_tokens} and a response of '
      f"{limits.response_tokens} tokens exceed the model's context "
      f'({context_tokens}); change '
      '--config.data.max_prompt_tokens or '
      '--config.rollout.max_response_tokens'
    )
  if limits.slots % shards:
    raise ValueError(
      f'the slots ({limits.slots}) must be divisible by the devices they '
      f'are split over ({shards}); change --config.sampler.slots'
    )

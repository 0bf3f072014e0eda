"""Tests that the sampler keeps nothing: a million tokens through one engine.

What the process holds after the first tenth is what it holds at the end.
"""

import collections
import gc
import os
import pathlib
import sys
from typing import NamedTuple

import jax
import numpy as np
import pytest
from absl.testing import absltest

import tiny_engine
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import scheduler, stop_strings

_CALLS = 10
_LIMITS = limits_lib.Limits(slots=32, prompt_tokens=40, response_tokens=60)
# Of 8 responses, which have 22 tokens on average.
_REQUESTS = 600
_STATM = pathlib.Path('/proc/self/statm')  # Linux
# 370 bytes of each of the 43,000 responses after the first tenth.
_RSS_GROWTH_BYTES = 16 * 2**20
# Objects of Python, numbers and strings included: one of 43 responses.
_PYTHON_GROWTH_BLOCKS = 1000


class _Held(NamedTuple):
  """What the process holds between two calls."""

  rss_bytes: int
  arrays: int  # on devices
  array_bytes: int
  scheduler_objects: int
  python_blocks: int


class _Call(NamedTuple):
  """What was seen during a call."""

  tokens: int
  finishes: frozenset[str]
  most_arrays: int
  most_array_bytes: int
  # Of each type of the scheduler's, at every hundredth chunk.
  objects: list[collections.Counter[str]]


def _held() -> _Held:
  gc.collect()
  pages = int(_STATM.read_text().split()[1]) if _STATM.exists() else 0
  return _Held(
    pages * os.sysconf('SC_PAGE_SIZE'),
    *_arrays(),
    _scheduler_objects().total(),
    sys.getallocatedblocks(),
  )


def _arrays() -> tuple[int, int]:
  arrays = jax.live_arrays()
  return len(arrays), sum(x.nbytes for x in arrays)


def _scheduler_objects() -> collections.Counter[str]:
  types = (type(x) for x in gc.get_objects())
  name = scheduler.__name__
  return collections.Counter(t.__name__ for t in types if t.__module__ == name)


def _call(engine, params, *, seed: int, requests: int = _REQUESTS) -> _Call:
  """Samples for prompts of all lengths; keeps nothing of what it gets."""
  rng = np.random.default_rng(seed)
  prompts = [
    rng.integers(61, size=1 + i % 40).astype(np.int32) for i in range(requests)
  ]
  stops = stop_strings.finder(tiny_engine.Tokenizer().decode, ['qq', 'b'])
  arrays, objects, tokens, finishes = [], [], 0, set()

  def report(_):
    if len(arrays) % 100 == 0:
      objects.append(_scheduler_objects())
    arrays.append(_arrays())

  for _, group in scheduler.generate(
    engine,
    params,
    tiny_engine.requests(samples=8, prompts=prompts),
    tiny_engine.sampling(
      seed=seed, limit_tokens=60, chunk_tokens=8, find_stop=stops
    ),
    report=report,
  ):
    tokens += sum(len(completion.tokens) for completion in group)
    finishes |= {completion.finish for completion in group}
  most = (max(x) for x in zip(*arrays, strict=True))
  return _Call(tokens, frozenset(finishes), *most, objects)


@pytest.mark.slow
class SoakTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    engine = tiny_engine.build(limits=_LIMITS)
    params = engine.place(tiny_engine.params())
    _call(engine, params, seed=0, requests=64)
    cls.calls, cls.held = [], []
    with tiny_engine.compilations() as cls.compiled:
      for seed in range(1, 1 + _CALLS):
        cls.calls.append(_call(engine, params, seed=seed))
        cls.held.append(_held())

  def test_there_were_a_million_tokens_and_all_ways_to_end(self):
    self.assertGreater(sum(call.tokens for call in self.calls), 1_000_000)
    for call in self.calls:
      self.assertEqual(call.finishes, {'eos', 'stop', 'length'})

  def test_nothing_was_compiled(self):
    self.assertEmpty(self.compiled)

  def test_arrays_are_as_many_and_as_large(self):
    first, last = self.held[0], self.held[-1]
    self.assertEqual(last.arrays, first.arrays)
    self.assertEqual(last.array_bytes, first.array_bytes)

  def test_during_a_call_too(self):
    # What rows have ended, and of which prompts, varies: a few kilobytes.
    first, last = self.calls[0], self.calls[-1]
    self.assertLess(abs(last.most_arrays - first.most_arrays), 16)
    self.assertLess(last.most_array_bytes, 1.01 * first.most_array_bytes)

  def test_objects_of_python_are_as_many(self):
    first, last = self.held[0], self.held[-1]
    self.assertEqual(last.scheduler_objects, 0)
    grown = last.python_blocks - first.python_blocks
    self.assertLess(grown, _PYTHON_GROWTH_BLOCKS)

  def test_the_scheduler_has_no_more_of_them_late_in_a_call(self):
    for call in self.calls:
      self.assertGreater(len(call.objects), 4)
      first, last = call.objects[0], call.objects[-1]
      # Groups of which a part has ended: at most one a slot.
      most = first + collections.Counter(dict.fromkeys(last, 8 * _LIMITS.slots))
      self.assertLessEqual(last, most)

  @absltest.skipUnless(_STATM.exists(), 'needs /proc')
  def test_the_process_is_as_large(self):
    grown = self.held[-1].rss_bytes - self.held[0].rss_bytes
    self.assertLess(grown, _RSS_GROWTH_BYTES)


if __name__ == '__main__':
  absltest.main()

"""The rollout loop over each kind of cache."""

import functools
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tolerances
from dapo_jax.sampling import scheduler, stop_strings, token_choice

# Rows of up to 12 + 20 tokens are 4 pages of 8.
_PAGED = tiny_engine.LIMITS._replace(cache='paged', page_tokens=8)


@functools.cache
def _params(engine):
  return engine.place(tiny_engine.params())


def _generate(engine, requests=None, **changes):
  """Returns ({request: its completions}, reports)."""
  reports = []
  groups = scheduler.generate(
    engine,
    _params(engine),
    tiny_engine.requests() if requests is None else requests,
    tiny_engine.sampling(**changes),
    report=reports.append,
  )
  return dict(groups), reports


@functools.cache
def _dense():
  return _generate(tiny_engine.build())[0]


class PagedTest(parameterized.TestCase):
  def _assert_as_dense(self, found, want=None):
    want = _dense() if want is None else want
    self.assertEqual(sorted(found), sorted(want))
    for index, group in found.items():
      for a, b in zip(group, want[index], strict=True):
        self.assertEqual(a.tokens.tolist(), b.tokens.tolist())
        np.testing.assert_allclose(a.logp, b.logp, atol=tolerances.DECODE_LOGP)
        self.assertEqual(a.finish, b.finish)

  # 4 pages hold one row of the longest; 32 hold 8.
  @parameterized.parameters((8, None), (64, None), (8, 4), (8, 9))
  def test_tokens_are_those_of_whole_rows_in_any_pool(self, page_tokens, pages):
    limits = _PAGED._replace(page_tokens=page_tokens, pages=pages)
    found, reports = _generate(tiny_engine.build(limits=limits))
    self._assert_as_dense(found)
    kept = sum(len(c.tokens) for group in found.values() for c in group)
    made = sum(r.tokens for r in reports)
    lost = sum(r.lost_tokens for r in reports)
    self.assertEqual(made - lost, kept)
    evicted = sum(r.evicted for r in reports)
    self.assertEqual(evicted > 0, pages is not None)
    self.assertEqual(lost > 0, pages is not None)

  def test_a_row_that_gives_way_is_looked_at_for_stop_strings_anew(self):
    stops = stop_strings.finder(tiny_engine.Tokenizer().decode, ['b'])
    engine = tiny_engine.build(limits=_PAGED._replace(pages=5))
    found, reports = _generate(engine, find_stop=stops)
    want, _ = _generate(tiny_engine.build(), find_stop=stops)
    self._assert_as_dense(found, want)
    self.assertGreater(sum(r.evicted for r in reports), 0)
    finishes = {c.finish for group in found.values() for c in group}
    self.assertIn('stop', finishes)

  @parameterized.parameters((1, 5), (2, None))
  def test_on_8_devices(self, tensor, pages):
    limits = _PAGED._replace(pages=pages)
    engine = tiny_engine.build(devices=8, tensor=tensor, limits=limits)
    self._assert_as_dense(_generate(engine)[0])

  def test_nothing_compiles_after_the_first_call(self):
    engine = tiny_engine.build(limits=_PAGED._replace(pages=9))
    first, _ = _generate(engine)
    with tiny_engine.compilations() as compiled:
      again, _ = _generate(engine)
      _generate(engine, tiny_engine.requests(samples=3)[:1])
    self.assertEmpty(compiled)
    for index, group in first.items():
      for a, b in zip(group, again[index], strict=True):
        np.testing.assert_array_equal(a.logp, b.logp)

  def test_one_program_decodes_rows_of_any_length(self):
    # In whole rows, 312 entries are four blocks, with a program for each.
    limits = _PAGED._replace(slots=4, response_tokens=300)
    engine = tiny_engine.build(limits=limits)
    with tiny_engine.compilations() as compiled:
      _generate(engine)
    self.assertEqual(compiled.count('jit(chunk)'), 1)

  def test_what_pages_held_before_spoils_nothing(self):
    engine = tiny_engine.build(limits=_PAGED._replace(pages=9))
    state = engine.init_decode_state()
    # Finite, as all that is ever written: see paged_cache_test.
    bad = jax.tree.map(lambda x: x + 1e30, state.cache.pages)
    state = state._replace(cache=state.cache._replace(pages=bad))
    with mock.patch.object(engine, 'init_decode_state', lambda: state):
      self._assert_as_dense(_generate(engine)[0])

  def test_through_jetstreams_methods(self):
    rows = []
    for engine in (tiny_engine.build(limits=_PAGED), tiny_engine.build()):
      state, params = engine.init_decode_state(), _params(engine)
      for slot, prompt in ((5, tiny_engine.PROMPTS[1]), (0, np.arange(1, 4))):
        padded = np.zeros(16, np.int32)
        padded[: len(prompt)] = prompt
        prefix = engine.prefill(
          params=params, padded_tokens=padded, true_length=len(prompt)
        )
        with mock.patch.object(token_choice, 'sample_keys', _fixed_keys):
          state = engine.insert(prefix, state, slot=slot)
      tokens = []
      for _ in range(12):
        state, result = engine.generate(params, state)
        tokens.append(np.asarray(result.data)[[0, 5]].tolist())
      rows.append(tokens)
    self.assertEqual(*rows)

  def test_jetstreams_requests_want_pages_of_their_own(self):
    engine = tiny_engine.build(limits=_PAGED._replace(pages=9))
    params = _params(engine)
    prefix = engine.prefill(
      params=params, padded_tokens=np.ones(16, np.int32), true_length=3
    )
    with self.assertRaisesRegex(
      ValueError,
      r'9 pages .* 8 slots x 4 .*; change --config.sampler.cache_gib',
    ):
      engine.insert(prefix, engine.init_decode_state(), slot=0)


def _fixed_keys(*_, samples):
  return np.arange(2 * samples, dtype=np.uint32).reshape(samples, 2)


class Int8Test(absltest.TestCase):
  def test_log_probs_are_near_those_of_the_whole_numbers(self):
    limits = tiny_engine.LIMITS._replace(cache='dense_int8')
    engine = tiny_engine.build(limits=limits)
    self.assertEqual(engine.limits.cache, 'dense_int8')
    found, _ = _generate(engine)
    gaps = []
    for index, group in found.items():
      for a, b in zip(group, _dense()[index], strict=True):
        # As far as they say the same, and the first token that differs.
        same = np.cumprod(
          [x == y for x, y in zip(a.tokens, b.tokens, strict=False)]
        ).sum()
        gaps += np.abs(a.logp[:same] - b.logp[:same]).tolist()
    self.assertGreater(len(gaps), 100)
    self.assertGreater(max(gaps), 0)
    self.assertLess(np.mean(gaps), tolerances.INT8_CACHE_LOGP_MEAN)


if __name__ == '__main__':
  absltest.main()

"""The rollout loop over a cache in pages: the same tokens, less memory."""

import functools

import jax
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tolerances
from dapo_jax.sampling import scheduler

# Rows of up to 12 + 20 tokens are 4 pages of 8.
_LIMITS = tiny_engine.LIMITS._replace(cache='paged', page_tokens=8)


@functools.cache
def _params(engine):
  return jax.device_put(tiny_engine.params(), engine.params_shardings)


def _generate(engine, requests=None, sampling=None, params=None):
  """Returns ({request: its completions}, reports)."""
  reports = []
  groups = scheduler.generate(
    engine,
    _params(engine) if params is None else params,
    tiny_engine.requests() if requests is None else requests,
    tiny_engine.sampling() if sampling is None else sampling,
    report=reports.append,
  )
  return dict(groups), reports


@functools.cache
def _dense():
  return _generate(tiny_engine.build())[0]


class SamenessTest(parameterized.TestCase):
  def _assert_as_dense(self, found, want=None):
    want = _dense() if want is None else want
    self.assertEqual(sorted(found), sorted(want))
    for index, group in found.items():
      for a, b in zip(group, want[index], strict=True):
        self.assertEqual(a.tokens.tolist(), b.tokens.tolist())
        np.testing.assert_allclose(a.logp, b.logp, atol=tolerances.DECODE_LOGP)
        self.assertEqual(a.finish, b.finish)

  @parameterized.parameters(8, 16, 64)
  def test_the_tokens_are_those_of_whole_rows(self, page_tokens):
    limits = _LIMITS._replace(page_tokens=page_tokens)
    found, reports = _generate(tiny_engine.build(limits=limits))
    self._assert_as_dense(found)
    self.assertEqual(sum(r.evicted for r in reports), 0)

  @parameterized.parameters(4, 6, 9, 12)
  def test_of_a_pool_too_small_for_all_rows_too(self, pages):
    limits = _LIMITS._replace(pages=pages)
    found, reports = _generate(tiny_engine.build(limits=limits))
    self._assert_as_dense(found)
    kept = sum(len(c.tokens) for group in found.values() for c in group)
    made = sum(r.tokens for r in reports)
    lost = sum(r.lost_tokens for r in reports)
    self.assertEqual(made - lost, kept)
    if pages == 9:
      self.assertGreater(sum(r.evicted for r in reports), 0)

  @parameterized.product(tensor=(1, 2), pages=(None, 5))
  def test_on_8_devices(self, tensor, pages):
    limits = _LIMITS._replace(pages=pages)
    engine = tiny_engine.build(devices=8, tensor=tensor, limits=limits)
    self._assert_as_dense(_generate(engine)[0])

  def test_through_jetstreams_methods(self):
    engines = [tiny_engine.build(limits=_LIMITS), tiny_engine.build()]
    rows = []
    for engine in engines:
      state = engine.init_decode_state()
      params = _params(engine)
      for slot, prompt in ((5, tiny_engine.PROMPTS[1]), (0, np.arange(1, 4))):
        padded = np.zeros(16, np.int32)
        padded[: len(prompt)] = prompt
        prefix = engine.prefill(
          params=params, padded_tokens=padded, true_length=len(prompt)
        )
        # Noise that depends on how often this engine was asked would differ.
        engine._served_count = slot
        state = engine.insert(prefix, state, slot=slot)
      tokens = []
      for _ in range(12):
        state, result = engine.generate(params, state)
        tokens.append(np.asarray(result.data)[[0, 5]].tolist())
      rows.append(tokens)
    self.assertEqual(*rows)


if __name__ == '__main__':
  absltest.main()

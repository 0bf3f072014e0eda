"""Tests that decoding with a cache gives what one pass over whole rows gives.

At every position of a cache in blocks: through the scheduler and the engine,
with rows of all lengths that cross every border of a block, in slots that were
used before.
"""

import functools
import itertools

import jax
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tiny_model
import tolerances
from dapo_jax.model import kv_cache
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import scheduler

_LIMITS = limits_lib.Limits(slots=4, prompt_tokens=48, response_tokens=216)
_ROW_TOKENS = 48 + 216
# A prompt of each length, and the most tokens of its two samples. The lengths
# are the shortest, both sides of two buckets, and the longest. Long rows stand
# before short ones and after them: slots are full of what others left.
_REQUESTS = (
  (1, (216, 70)),
  (15, (3, 216)),
  (16, (20, 1)),
  (17, (216, 50)),
  (32, (2, 40)),
  (33, (120, 216)),
  (47, (90, 7)),
  (48, (216, 216)),
)


def _serve(prefill_tokens: int, chunk_tokens: int):
  """Returns (prompt, its samples) of every request, and what chunks did."""
  # An end that never comes: a response has as many tokens as it may have.
  engine = engine_lib.Engine(
    tiny_engine.model(),
    tiny_engine.Tokenizer(eos_ids=(63,)),
    mesh_lib.local_mesh(),
    _LIMITS._replace(prefill_tokens=prefill_tokens),
    seed=0,
  )
  rng = np.random.default_rng(0)
  requests = [
    scheduler.Request(
      i, rng.integers(61, size=tokens).astype(np.int32), 2, np.array(most)
    )
    for i, (tokens, most) in enumerate(_REQUESTS)
  ]
  reports = []
  groups = scheduler.generate(
    engine,
    engine.place(tiny_engine.params()),
    requests,
    tiny_engine.sampling(limit_tokens=216, chunk_tokens=chunk_tokens),
    report=reports.append,
  )
  return [(requests[i].prompt_tokens, group) for i, group in groups], reports


@functools.cache
def _logp_of_whole_rows(rows: tuple[tuple[int, ...], ...]) -> np.ndarray:
  """Returns the log-probs of all tokens after each place of each row."""
  model, params = tiny_engine.model(), tiny_engine.params()
  padded = [row + (0,) * (_ROW_TOKENS - len(row)) for row in rows]
  hidden = tiny_model.hidden(model, params, np.array(padded, np.int32))
  logits = tiny_model.module(model, params).logits(hidden)
  return np.asarray(jax.nn.log_softmax(logits))


class TeacherForcingTest(parameterized.TestCase):
  @parameterized.parameters(
    (1024, 32),
    # Prompts of 17 tokens and more in two or three parts.
    (16, 7),
  )
  def test_log_probs_of_every_position(self, prefill_tokens, chunk_tokens):
    groups, reports = _serve(prefill_tokens, chunk_tokens)
    # 16 samples on 4 slots, of which none rests while anything waits.
    last = max(i for i, report in enumerate(reports) if report.prefills)
    self.assertGreater(last, 10)
    self.assertEqual({report.busy_frac for report in reports[:last]}, {1.0})
    served = [(prompt, c) for prompt, group in groups for c in group]
    rows = [(*prompt.tolist(), *c.tokens.tolist()) for prompt, c in served]
    expected = _logp_of_whole_rows(tuple(rows))
    seen = set()
    for row, logp, (prompt, completion) in zip(
      rows, expected, served, strict=True
    ):
      at = np.arange(len(prompt), len(row))
      np.testing.assert_allclose(
        completion.logp,
        logp[at - 1, np.array(row)[at]],
        atol=tolerances.DECODE_LOGP,
        err_msg=f'{len(prompt)} tokens of prompt, {len(at)} of response',
      )
      seen.update(at.tolist())
    self.assertEqual(seen, {*range(1, _ROW_TOKENS)})

  def test_rows_cross_every_border_and_fill_the_cache(self):
    blocks = kv_cache.block_tokens(limits_lib.cache_tokens(_LIMITS))
    self.assertLen(blocks, 4)
    self.assertEqual(sum(blocks), _ROW_TOKENS)
    rows = [(t, t + limit) for t, most in _REQUESTS for limit in most]
    for border in itertools.accumulate(blocks):
      self.assertGreater(sum(b < border <= e for b, e in rows), 1, border)


if __name__ == '__main__':
  absltest.main()

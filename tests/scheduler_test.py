"""Tests of `sampling.scheduler`."""

import collections
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tiny_model
import tolerances
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import scheduler, token_choice


class _Log:
  """Reports of a call, and which rows and groups came when."""

  def __init__(self):
    self.reports = []
    self.groups = {}
    self.order = []
    self.reports_before = []

  def tokens(self):
    """Returns {request: the tokens of each sample}."""
    return {
      index: [completion.tokens.tolist() for completion in group]
      for index, group in self.groups.items()
    }


@functools.cache
def _params(engine):
  return jax.device_put(tiny_engine.params(), engine.params_shardings)


def _generate(requests, sampling=None, *, engine=None, params=None) -> _Log:
  engine = tiny_engine.build() if engine is None else engine
  params = _params(engine) if params is None else params
  sampling = tiny_engine.sampling() if sampling is None else sampling
  log = _Log()
  for index, group in scheduler.generate(
    engine, params, requests, sampling, report=log.reports.append
  ):
    assert index not in log.groups, 'a request was served twice'
    log.groups[index] = group
    log.order.append(index)
    log.reports_before.append(len(log.reports))
  return log


@functools.cache
def _plain() -> _Log:
  """Returns 5 prompts of 4 samples on 8 slots of 1 device, chunks of 5."""
  return _generate(tiny_engine.requests())


class LogProbTest(parameterized.TestCase):
  @parameterized.parameters(1.0, 0.6)
  def test_they_are_those_of_whole_rows_the_eos_included(self, temperature):
    log = _generate(
      tiny_engine.requests(), tiny_engine.sampling(temperature=temperature)
    )
    rows, spans, expected = [], [], []
    for index, group in log.groups.items():
      prompt = tiny_engine.PROMPTS[index]
      for completion in group:
        self.assertEqual(completion.tokens.shape, completion.logp.shape)
        row = np.zeros(32, np.int32)
        row[: len(prompt)] = prompt
        row[len(prompt) :][: len(completion.tokens)] = completion.tokens
        rows.append(row)
        spans.append((len(prompt), len(completion.tokens)))
        expected.append(completion)
    rows = np.stack(rows)
    model, params = tiny_engine.model(), tiny_engine.params()
    hidden = tiny_model.hidden(model, params, rows)
    logits = tiny_model.module(model, params).logits(hidden)
    logp = np.asarray(jax.nn.log_softmax(logits / temperature))
    for i, (start, count) in enumerate(spans):
      at = np.arange(start, start + count)
      np.testing.assert_allclose(
        expected[i].logp,
        logp[i, at - 1, rows[i, at]],
        atol=tolerances.DECODE_LOGP,
      )
    finishes = {completion.finish for completion in expected}
    self.assertEqual(finishes, {'eos', 'length'})

  def test_greedy_ones_are_taken_at_temperature_1(self):
    model, params = tiny_engine.model(), tiny_engine.params()
    log = _generate(
      tiny_engine.requests(samples=1), tiny_engine.sampling(temperature=0.0)
    )
    for index, (completion,) in log.groups.items():
      row = np.concatenate([tiny_engine.PROMPTS[index], completion.tokens])
      row = np.pad(row, (0, 32 - len(row)))[None]
      hidden = tiny_model.hidden(model, params, row)
      logits = tiny_model.module(model, params).logits(hidden)[0]
      at = (
        len(tiny_engine.PROMPTS[index]) - 1 + np.arange(len(completion.tokens))
      )
      np.testing.assert_array_equal(completion.tokens, logits.argmax(-1)[at])
      logp = jax.nn.log_softmax(logits).max(-1)[at]
      np.testing.assert_allclose(
        completion.logp, logp, atol=tolerances.DECODE_LOGP
      )


class SamenessTest(parameterized.TestCase):
  """The same tokens, whatever serves them."""

  def _assert_as_plain(self, log):
    self.assertEqual(log.tokens(), _plain().tokens())
    for index, group in log.groups.items():
      for a, b in zip(group, _plain().groups[index], strict=True):
        np.testing.assert_allclose(a.logp, b.logp, atol=tolerances.DECODE_LOGP)
        self.assertEqual(a.finish, b.finish)

  @parameterized.parameters(0.0, 1.0)
  def test_a_batch_of_lengths_gives_each_prompt_what_it_gives_alone(
    self, temperature
  ):
    sampling = tiny_engine.sampling(temperature=temperature)
    requests = tiny_engine.requests()
    together = _generate(requests, sampling).tokens()
    for index, request in enumerate(requests):
      alone = _generate([request], sampling).tokens()
      self.assertEqual(alone[0], together[index])

  @parameterized.parameters(4, 32)
  def test_with_other_slots(self, slots):
    limits = tiny_engine.LIMITS._replace(slots=slots)
    self._assert_as_plain(
      _generate(tiny_engine.requests(), engine=tiny_engine.build(limits=limits))
    )

  @parameterized.parameters(1, 32)
  def test_with_other_chunks(self, chunk_tokens):
    sampling = tiny_engine.sampling(chunk_tokens=chunk_tokens)
    self._assert_as_plain(_generate(tiny_engine.requests(), sampling))

  @parameterized.parameters(1, 2)
  def test_on_8_devices(self, tensor):
    engine = tiny_engine.build(devices=8, tensor=tensor)
    self._assert_as_plain(_generate(tiny_engine.requests(), engine=engine))

  def test_in_another_order(self):
    order = [3, 0, 4, 2, 1]
    requests = tiny_engine.requests()
    log = _generate([requests[i] for i in order])
    for place, index in enumerate(order):
      self.assertEqual(log.tokens()[place], _plain().tokens()[index])

  def test_with_fewer_samples_the_first_are_the_same(self):
    log = _generate(tiny_engine.requests(samples=2))
    for index, rows in log.tokens().items():
      self.assertEqual(rows, _plain().tokens()[index][:2])

  def test_the_same_call_again_is_equal_to_the_bit(self):
    again = _generate(tiny_engine.requests())
    self.assertEqual(again.order, _plain().order)
    for index, group in again.groups.items():
      for a, b in zip(group, _plain().groups[index], strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.logp, b.logp)


class NoiseTest(absltest.TestCase):
  def test_samples_redraws_purposes_and_seeds_differ(self):
    prompt = tiny_engine.PROMPTS[1]
    # Without an EOS on the way, 20 tokens of about 4 nats each.
    rows = []
    requests = [scheduler.Request(o, prompt, 4) for o in (7, 8)]
    for changes in (
      {},
      {'seed': 6},
      {'purpose': token_choice.Purpose.EVAL},
    ):
      log = _generate(requests, tiny_engine.sampling(**changes))
      rows += [tuple(r) for group in log.tokens().values() for r in group]
    self.assertLen(rows, 24)
    long = [row for row in rows if len(row) > 3]
    self.assertGreater(len(long), 12)
    self.assertLen(set(long), len(long))


class ServiceTest(absltest.TestCase):
  def test_every_request_is_served_whole(self):
    log = _plain()
    self.assertCountEqual(log.order, range(5))
    for group in log.groups.values():
      self.assertLen(group, 4)

  def test_a_group_larger_than_the_slots_is_served(self):
    limits = tiny_engine.LIMITS._replace(slots=4)
    engine = tiny_engine.build(limits=limits)
    requests = tiny_engine.requests(samples=11, prompts=tiny_engine.PROMPTS[:2])
    log = _generate(requests, engine=engine)
    self.assertLen(log.groups[0], 11)
    self.assertEqual(log.tokens(), _generate(requests).tokens())
    self.assertEqual(sum(r.prefills for r in log.reports), 2)

  def test_a_prompt_is_prefilled_once(self):
    self.assertEqual(sum(r.prefills for r in _plain().reports), 5)
    # 8 slots take the first two groups of 4, and no third.
    self.assertEqual(_plain().reports[0].prefills, 2)

  def test_the_first_come_is_first_served(self):
    # Of length-3 responses all slots end together: groups in their order.
    prompts = tiny_engine.PROMPTS * 2
    engine, params = _never_ending()
    log = _generate(
      tiny_engine.requests(prompts=prompts),
      tiny_engine.sampling(limit_tokens=3, chunk_tokens=3),
      engine=engine,
      params=params,
    )
    self.assertEqual(log.order, list(range(10)))
    # Two groups a chunk.
    self.assertEqual([r.prefills for r in log.reports], [2] * 5)

  def test_groups_come_while_others_are_decoded(self):
    log = _plain()
    self.assertLess(log.reports_before[0], len(log.reports))
    self.assertLess(log.reports_before[0], log.reports_before[-1])
    self.assertEqual(log.reports_before[-1], len(log.reports))

  def test_a_sample_may_have_a_limit_of_its_own(self):
    engine, params = _never_ending()
    limits = np.array([3, 1, 20, 7])
    request = scheduler.Request(5, tiny_engine.PROMPTS[0], 4, limits)
    log = _generate([request], engine=engine, params=params)
    self.assertEqual([len(row) for row in log.tokens()[0]], limits.tolist())

  def test_the_device_decodes_while_a_group_is_looked_at(self):
    # 2 groups of 4 on 4 slots: when the first comes, the second has begun.
    engine, params = _never_ending()
    engine = tiny_engine.build(limits=tiny_engine.LIMITS._replace(slots=4))
    chunks = []
    generate_chunk = engine.generate_chunk
    with mock.patch.object(
      engine,
      'generate_chunk',
      lambda *args, **how: chunks.append(how) or generate_chunk(*args, **how),
    ):
      requests = tiny_engine.requests(prompts=tiny_engine.PROMPTS[:2])
      samples = scheduler.generate(
        engine, params, requests, tiny_engine.sampling(limit_tokens=1),
        report=lambda _: None,
      )  # fmt: skip
      next(samples)
      self.assertLen(chunks, 2)
      self.assertLen(list(samples), 1)
      self.assertLen(chunks, 2)

  def test_no_requests_are_no_work(self):
    log = _generate([])
    self.assertEqual((log.groups, log.reports), ({}, []))

  def test_too_long_a_prompt_is_refused_by_the_flag(self):
    requests = tiny_engine.requests(prompts=[np.ones(13, np.int32)])
    with self.assertRaisesRegex(
      ValueError, '13 tokens.*--config.data.max_prompt_tokens'
    ):
      _generate(requests)


@functools.cache
def _never_ending():
  """Returns an engine without an end id, and its parameters."""
  engine = engine_lib.Engine(
    tiny_engine.model(),
    tiny_engine.Tokenizer(eos_ids=(63,)),
    mesh_lib.local_mesh(),
    tiny_engine.LIMITS,
    seed=0,
  )
  return engine, tiny_engine.params()


class FinishTest(parameterized.TestCase):
  """A model whose next token is certain: 30, 31, ...; 60, 0, 1, 50."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    model, cls.params = tiny_engine.chain({1: 50, 40: 51})
    cls.engine = engine_lib.Engine(
      model,
      # Padding is an end id here: rows are known by their lengths.
      tiny_engine.Tokenizer(eos_ids=(50, 51), pad_id=50),
      mesh_lib.local_mesh(),
      tiny_engine.LIMITS,
      seed=0,
    )

  def _complete(self, prompt, limit_tokens=20):
    requests = tiny_engine.requests(samples=1, prompts=[np.int32(prompt)])
    sampling = tiny_engine.sampling(limit_tokens=limit_tokens)
    log = _generate(requests, sampling, engine=self.engine, params=self.params)
    [completion] = log.groups[0]
    self.assertLen(completion.logp, len(completion.tokens))
    return completion.tokens.tolist(), completion.finish

  @parameterized.parameters(
    # Prompt, limit, response, finish.
    ([60], 20, [0, 1, 50], 'eos'),
    ([9, 39], 20, [40, 51], 'eos'),
    # The first token ends.
    ([40], 20, [51], 'eos'),
    ([40], 1, [51], 'eos'),
    # The EOS is the last token there is room for.
    ([60], 3, [0, 1, 50], 'eos'),
    ([60], 2, [0, 1], 'length'),
    ([30], 1, [31], 'length'),
    ([20], 20, [*range(21, 41)], 'length'),
    ([21], 20, [*range(22, 41), 51], 'eos'),
    # End ids in the prompt end nothing.
    ([50, 51, 1], 20, [50], 'eos'),
  )
  def test_a_response_ends_by_any_eos_or_at_the_limit(
    self, prompt, limit_tokens, tokens, finish
  ):
    self.assertEqual(self._complete(prompt, limit_tokens), (tokens, finish))


class ReportTest(absltest.TestCase):
  def test_they_add_up_to_all_tokens(self):
    for log in (
      _plain(),
      _generate(tiny_engine.requests(), tiny_engine.sampling(chunk_tokens=1)),
    ):
      tokens = sum(len(row) for group in log.tokens().values() for row in group)
      self.assertEqual(sum(r.tokens for r in log.reports), tokens)

  def test_a_chunk_is_no_longer_than_asked(self):
    for report in _plain().reports:
      self.assertBetween(report.steps, 1, 5)
      self.assertBetween(report.tokens, 1, report.steps * report.slots)
      self.assertEqual(report.slots, 8)
      self.assertGreater(report.seconds, 0)

  def test_busy_is_the_share_of_slot_steps_with_a_token(self):
    report = scheduler.ChunkReport(
      steps=5, tokens=30, prefills=0, slots=8, seconds=1.0
    )
    self.assertEqual(report.busy_frac, 0.75)
    self.assertEqual(report._replace(steps=0, tokens=0).busy_frac, 0)

  def test_free_slots_are_filled_while_requests_wait(self):
    engine, params = _never_ending()
    log = _generate(
      tiny_engine.requests(prompts=tiny_engine.PROMPTS[:4]),
      tiny_engine.sampling(limit_tokens=4, chunk_tokens=32),
      engine=engine,
      params=params,
    )
    # 16 samples of 4 tokens on 8 slots: two full chunks.
    self.assertEqual([r.busy_frac for r in log.reports], [1.0, 1.0])

  def test_a_chunk_is_left_for_a_free_slot_only_while_requests_wait(self):
    sampling = tiny_engine.sampling(chunk_tokens=32)
    requests = tiny_engine.requests(samples=8, prompts=tiny_engine.PROMPTS[:1])
    self.assertLen(_generate(requests, sampling).reports, 1)
    waiting = tiny_engine.requests(samples=9, prompts=tiny_engine.PROMPTS[:1])
    log = _generate(waiting, sampling)
    shortest = min(len(row) for row in log.tokens()[0][:8])
    self.assertEqual(log.reports[0].steps, shortest)
    self.assertGreater(len(log.reports), 1)


class CompilationTest(absltest.TestCase):
  def test_nothing_compiles_after_the_first_call(self):
    engine, params = tiny_engine.build(), tiny_engine.params()
    _generate(tiny_engine.requests(), engine=engine, params=params)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(61, size=n).astype(np.int32) for n in (2, 5, 9)]
    new = jax.tree.map(jnp.copy, params)
    with tiny_engine.compilations() as compiled:
      for requests, changes in (
        # Other lengths in the bucket, fewer requests, one alone, more.
        (tiny_engine.requests(prompts=prompts), {}),
        (tiny_engine.requests()[:1], {}),
        (tiny_engine.requests(prompts=prompts * 3), {}),
        (tiny_engine.requests(), {'temperature': 0.0}),
        (tiny_engine.requests(), {'temperature': 0.7, 'limit_tokens': 3}),
        (tiny_engine.requests(), {'chunk_tokens': 7, 'seed': 9}),
        (tiny_engine.requests(), {'purpose': token_choice.Purpose.EVAL}),
      ):
        sampling = tiny_engine.sampling(**changes)
        _generate(requests, sampling, engine=engine, params=new)
    self.assertEmpty(compiled)

  def test_one_prefill_program_a_bucket(self):
    limits = tiny_engine.LIMITS._replace(prompt_tokens=40)
    engine = tiny_engine.build(limits=limits)
    rng = np.random.default_rng(1)
    prompts = [
      rng.integers(61, size=n).astype(np.int32) for n in (5, 9, 13, 40)
    ]
    params = _params(engine)
    with tiny_engine.compilations() as compiled:
      _generate(
        tiny_engine.requests(prompts=prompts), engine=engine, params=params
      )
    count = collections.Counter(compiled)
    # Buckets 16 and 64.
    self.assertEqual(count['jit(prefill)'], 2)
    self.assertEqual(count['jit(insert_group)'], 2)
    self.assertEqual(count['jit(chunk)'], 1)
    # Besides them the empty state, and the keys of a group.
    self.assertLessEqual(count.total(), 7)


class InterruptionTest(absltest.TestCase):
  def test_an_error_in_report_leaves_nothing_behind(self):
    engine = tiny_engine.build()

    def report(chunk):
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      list(
        scheduler.generate(
          engine,
          _params(engine),
          tiny_engine.requests(),
          tiny_engine.sampling(),
          report=report,
        )
      )
    again = _generate(tiny_engine.requests(), engine=engine)
    self.assertEqual(again.tokens(), _plain().tokens())

  def test_a_reader_may_leave_early_or_read_two_at_once(self):
    engine = tiny_engine.build()
    begin = lambda: scheduler.generate(
      engine,
      _params(engine),
      tiny_engine.requests(),
      tiny_engine.sampling(),
      report=lambda _: None,
    )
    left = begin()
    next(left)
    left.close()
    for (a, group), (b, other) in zip(begin(), begin(), strict=True):
      self.assertEqual(a, b)
      for x, y in zip(group, other, strict=True):
        np.testing.assert_array_equal(x.tokens, y.tokens)

  def test_completions_do_not_change_later(self):
    groups = scheduler.generate(
      tiny_engine.build(),
      _params(tiny_engine.build()),
      tiny_engine.requests(),
      tiny_engine.sampling(),
      report=lambda _: None,
    )
    seen = []
    for _, group in groups:
      seen += [(c, c.tokens.copy(), c.logp.copy()) for c in group]
    for completion, tokens, logp in seen:
      np.testing.assert_array_equal(completion.tokens, tokens)
      np.testing.assert_array_equal(completion.logp, logp)


if __name__ == '__main__':
  absltest.main()

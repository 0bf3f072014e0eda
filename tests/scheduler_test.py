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
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import scheduler, stop_strings, token_choice


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
  return engine.place(tiny_engine.params())


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


# Of 61 tokens some 12 may be drawn.
_FILTERS = dict(temperature=0.9, top_k=40, top_p=0.7, min_p=0.03)


@functools.cache
def _plain(filtered: bool = False) -> _Log:
  """Returns 5 prompts of 4 samples on 8 slots of 1 device, chunks of 5."""
  filters = _FILTERS if filtered else {}
  return _generate(tiny_engine.requests(), tiny_engine.sampling(**filters))


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

  def test_filtered_ones_are_of_all_tokens_too(self):
    model, params = tiny_engine.model(), tiny_engine.params()
    for index, group in _plain(filtered=True).groups.items():
      prompt = tiny_engine.PROMPTS[index]
      for completion in group:
        row = np.concatenate([prompt, completion.tokens])
        row = np.pad(row, (0, 32 - len(row)))[None]
        hidden = tiny_model.hidden(model, params, row)
        logits = tiny_model.module(model, params).logits(hidden)[0]
        at = len(prompt) - 1 + np.arange(len(completion.tokens))
        logp = jax.nn.log_softmax(logits / _FILTERS['temperature'])
        np.testing.assert_allclose(
          completion.logp,
          logp[at, completion.tokens],
          atol=tolerances.DECODE_LOGP,
        )


class FilterTest(absltest.TestCase):
  def test_they_take_tokens_away(self):
    count = lambda log: len(
      {token for group in log.tokens().values() for r in group for token in r}
    )
    narrow = tiny_engine.sampling(top_k=2)
    self.assertLess(count(_generate(tiny_engine.requests(), narrow)), 40)
    self.assertGreater(count(_plain()), 55)

  def test_with_one_token_left_it_is_greedy(self):
    requests = tiny_engine.requests(samples=2)
    greedy = _generate(requests, tiny_engine.sampling(temperature=0.0))
    for filters in (dict(top_k=1), dict(top_p=1e-6), dict(min_p=1.0)):
      log = _generate(requests, tiny_engine.sampling(**filters))
      self.assertEqual(log.tokens(), greedy.tokens())


class SamenessTest(parameterized.TestCase):
  """The same tokens, whatever serves them."""

  def _sampling(self, filtered, **changes):
    filters = _FILTERS if filtered else {}
    return tiny_engine.sampling(**filters, **changes)

  def _assert_as_plain(self, log, filtered=False):
    plain = _plain(filtered=filtered)
    self.assertEqual(log.tokens(), plain.tokens())
    for index, group in log.groups.items():
      for a, b in zip(group, plain.groups[index], strict=True):
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

  @parameterized.product(slots=(4, 32, 256), filtered=(False, True))
  def test_with_other_slots(self, slots, filtered):
    engine = tiny_engine.build(limits=tiny_engine.LIMITS._replace(slots=slots))
    log = _generate(
      tiny_engine.requests(), self._sampling(filtered), engine=engine
    )
    self._assert_as_plain(log, filtered)

  @parameterized.product(chunk_tokens=(1, 7, 32), filtered=(False, True))
  def test_with_other_chunks(self, chunk_tokens, filtered):
    sampling = self._sampling(filtered, chunk_tokens=chunk_tokens)
    log = _generate(tiny_engine.requests(), sampling)
    self._assert_as_plain(log, filtered)

  @parameterized.product(tensor=(1, 2), filtered=(False, True))
  def test_on_8_devices(self, tensor, filtered):
    engine = tiny_engine.build(devices=8, tensor=tensor)
    log = _generate(
      tiny_engine.requests(), self._sampling(filtered), engine=engine
    )
    self._assert_as_plain(log, filtered)

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

  def test_a_pad_is_a_token_like_others(self):
    model, params = tiny_engine.chain({1: 50})
    for pad_id in (0, 32):
      engine = engine_lib.Engine(
        model,
        tiny_engine.Tokenizer(eos_ids=(50,), pad_id=pad_id),
        mesh_lib.local_mesh(),
        tiny_engine.LIMITS,
        seed=0,
      )
      sampling = tiny_engine.sampling(limit_tokens=4)
      for prompt, expected in (
        ([59], ([60, 0, 1, 50], 'eos')),
        # 32 within, and as the last token.
        ([59, 30], ([31, 32, 33, 34], 'length')),
        ([28], ([29, 30, 31, 32], 'length')),
      ):
        requests = tiny_engine.requests(samples=1, prompts=[np.int32(prompt)])
        log = _generate(requests, sampling, engine=engine, params=params)
        [completion] = log.groups[0]
        found = completion.tokens.tolist(), completion.finish
        self.assertEqual(found, expected)
        self.assertLen(completion.logp, 4)


def _stopping(*strings: str, **changes) -> scheduler.Sampling:
  decode = tiny_engine.Tokenizer().decode
  return tiny_engine.sampling(
    find_stop=stop_strings.finder(decode, strings), **changes
  )


class StopTest(parameterized.TestCase):
  # Of the letters of the plain responses, which are ids, 'a' being 0.
  _STRINGS = ('f', 'qq', 'bk')

  def _expected(self, completion):
    """Returns tokens and finish of a plain response that strings stop."""
    decode = tiny_engine.Tokenizer().decode
    tokens = completion.tokens.tolist()
    for n in range(1, len(tokens) + 1):
      if any(s in decode(tokens[:n]) for s in self._STRINGS):
        return tokens[:n], 'stop'
    return tokens, completion.finish

  def _assert_stopped(self, log):
    finishes = set()
    for index, group in _plain().groups.items():
      for a, b in zip(log.groups[index], group, strict=True):
        tokens, finish = self._expected(b)
        self.assertEqual((a.tokens.tolist(), a.finish), (tokens, finish))
        logp = b.logp[: len(tokens)]
        np.testing.assert_allclose(a.logp, logp, atol=tolerances.DECODE_LOGP)
        finishes.add(finish)
    self.assertEqual(finishes, {'stop', 'eos', 'length'})

  @parameterized.parameters(1, 7, 32)
  def test_with_any_chunks(self, chunk_tokens):
    sampling = _stopping(*self._STRINGS, chunk_tokens=chunk_tokens)
    self._assert_stopped(_generate(tiny_engine.requests(), sampling))

  @parameterized.parameters(4, 32)
  def test_with_any_slots(self, slots):
    engine = tiny_engine.build(limits=tiny_engine.LIMITS._replace(slots=slots))
    sampling = _stopping(*self._STRINGS)
    log = _generate(tiny_engine.requests(), sampling, engine=engine)
    self._assert_stopped(log)

  @parameterized.parameters(1, 2)
  def test_on_8_devices(self, tensor):
    engine = tiny_engine.build(devices=8, tensor=tensor)
    sampling = _stopping(*self._STRINGS)
    log = _generate(tiny_engine.requests(), sampling, engine=engine)
    self._assert_stopped(log)

  def test_reports_add_up_to_the_tokens_that_stay(self):
    log = _generate(tiny_engine.requests(), _stopping(*self._STRINGS))
    tokens = sum(len(row) for group in log.tokens().values() for row in group)
    self.assertEqual(sum(r.tokens for r in log.reports), tokens)

  def _chain(self, prompts, *strings, **changes):
    """Returns what 30, 31, ... and 60, 0, 1, 50 give, where 50 ends."""
    model, params = tiny_engine.chain({1: 50})
    engine = engine_lib.Engine(
      model,
      tiny_engine.Tokenizer(eos_ids=(50,)),
      mesh_lib.local_mesh(),
      tiny_engine.LIMITS,
      seed=0,
    )
    requests = tiny_engine.requests(
      samples=1, prompts=[np.int32(p) for p in prompts]
    )
    sampling = _stopping(*strings, **changes)
    return _generate(requests, sampling, engine=engine, params=params)

  @parameterized.parameters(
    # Prompt, string, limit, response, finish; 'b' is 1, 'g' is 6.
    ([2], 'fg', 20, [3, 4, 5, 6], 'stop'),
    # In the prompt it stops nothing.
    ([2, 3, 4], 'de', 20, [*range(5, 25)], 'length'),
    # With the last token there is room for, or with the next.
    ([2], 'fg', 4, [3, 4, 5, 6], 'stop'),
    ([2], 'fg', 3, [3, 4, 5], 'length'),
    # The EOS after it is no longer part of the response.
    ([60], 'ab', 20, [0, 1], 'stop'),
    ([60], 'bc', 20, [0, 1, 50], 'eos'),
  )
  def test_by_hand(self, prompt, string, limit_tokens, tokens, finish):
    for chunk_tokens in (1, 3, 32):
      log = self._chain(
        [prompt], string, limit_tokens=limit_tokens, chunk_tokens=chunk_tokens
      )
      [completion] = log.groups[0]
      self.assertEqual(completion.tokens.tolist(), tokens)
      self.assertEqual(completion.finish, finish)
      self.assertLen(completion.logp, len(tokens))

  def test_slots_become_free(self):
    # 24 prompts on 8 slots; each stops after 4 of at most 20 tokens.
    log = self._chain([[2]] * 24, 'g', chunk_tokens=4)
    self.assertEqual([r.steps for r in log.reports], [4, 4, 4])
    self.assertEqual([r.busy_frac for r in log.reports], [1.0, 1.0, 1.0])
    self.assertEqual([r.prefills for r in log.reports], [8, 8, 8])

  def test_a_slot_that_nobody_waits_for_rests(self):
    # One stops after 4 tokens, the other goes on to 20.
    log = self._chain([[2], [30]], 'g', chunk_tokens=4)
    self.assertEqual([r.tokens for r in log.reports], [8, 4, 4, 4, 4])
    self.assertEqual(log.order, [0, 1])


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


class PoisonTest(absltest.TestCase):
  """A cache in four blocks whose slots hold NaN and inf from before."""

  def test_what_a_slot_held_before_spoils_nothing(self):
    limits = limits_lib.Limits(slots=4, prompt_tokens=12, response_tokens=300)
    engine, params = tiny_engine.build(limits=limits), tiny_engine.params()
    self.assertLen(engine.init_decode_state().cache.k[0], 4)
    prompts = tiny_engine.PROMPTS
    sampling = tiny_engine.sampling(limit_tokens=80)
    clean = _generate(tiny_engine.requests(), sampling, engine=engine)
    state = engine.init_decode_state()
    bad = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), params)
    prefix = engine.prefill_prompt(bad, prompts[0])
    for slot in range(4):
      keys = np.zeros((1, 2), np.uint32)
      choice = token_choice.Choice(temperature=1.0)
      samples = engine_lib.Samples(
        np.array([slot]), keys, np.array([300]), choice
      )
      state = engine.insert_group(prefix, state, samples)
    state, _ = engine.generate_chunk(bad, state, max_steps=300, leave_after=9)
    with mock.patch.object(engine, 'init_decode_state', lambda: state):
      after = _generate(tiny_engine.requests(), sampling, engine=engine)
    self.assertEqual(after.tokens(), clean.tokens())
    for group in after.groups.values():
      for completion in group:
        self.assertTrue(np.isfinite(completion.logp).all())


class CompilationTest(absltest.TestCase):
  def test_longer_rows_and_more_requests_compile_nothing_new(self):
    limits = limits_lib.Limits(slots=4, prompt_tokens=12, response_tokens=290)
    engine, params = tiny_engine.build(limits=limits), tiny_engine.params()
    params = _params(engine)
    short = tiny_engine.sampling(limit_tokens=3)
    _generate(tiny_engine.requests(), short, engine=engine, params=params)
    with tiny_engine.compilations() as compiled:
      for count, limit in ((1, 290), (5, 100), (9, 200)):
        prompts = (tiny_engine.PROMPTS * 2)[:count]
        _generate(
          tiny_engine.requests(prompts=prompts, samples=3),
          tiny_engine.sampling(limit_tokens=limit),
          engine=engine,
          params=params,
        )
    self.assertEqual(compiled, [])

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
    # Of one, of 4 and of 16 samples.
    self.assertEqual(count['jit(insert_group)'], 2 * 3)
    self.assertEqual(count['jit(chunk)'], 1)
    # Besides them the empty state, the keys, and how rows are read.
    self.assertLessEqual(count.total(), 12)


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

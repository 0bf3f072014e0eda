"""Tests of `sampling.driver`, under JetStream's own orchestrator."""

import asyncio
import contextlib
import dataclasses
import io
import threading
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

import tiny_engine
import tiny_model
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import driver as driver_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import jetstream_compat, scheduler, token_choice

_orchestrator = jetstream_compat.load_orchestrator()
_pb = _orchestrator.jetstream_pb2
_SOON_S = 20  # far more than anything here takes


def _engine(*, temperature, weights=None, tokenizer=None):
  model, params = weights or (tiny_engine.model(), tiny_engine.params())
  engine = engine_lib.Engine(
    model,
    tokenizer or tiny_engine.Tokenizer(),
    mesh_lib.local_mesh(),
    tiny_engine.LIMITS,
    seed=3,
    serve_temperature=temperature,
  )
  engine.set_params(engine.place(params))
  return engine


@dataclasses.dataclass
class _Reply:
  """What a request got before its end."""

  tokens: list[int]
  text: str
  messages: int
  error: Exception | None = None


async def _ask(driver, prompt, max_tokens=20, **fields):
  if isinstance(prompt, str):
    fields['text_content'] = _pb.DecodeRequest.TextContent(text=prompt)
  else:
    fields['token_content'] = _pb.DecodeRequest.TokenContent(token_ids=prompt)
  request = _pb.DecodeRequest(max_tokens=max_tokens, **fields)
  reply = _Reply([], '', 0)
  try:
    async for message in _orchestrator.LLMOrchestrator(driver).Decode(request):
      [sample] = message.stream_content.samples
      reply.tokens += sample.token_ids
      reply.text += sample.text
      reply.messages += 1
  except Exception as error:
    reply.error = error
  return reply


def _ask_all(driver, *requests):
  """Returns the replies to requests that come at once, in their order."""

  async def gather():
    return await asyncio.gather(*requests_of(driver))

  requests_of = lambda driver: [_ask(driver, *r) for r in requests]
  return asyncio.run(asyncio.wait_for(gather(), _SOON_S))


async def _leave(driver):
  """Asks for 20 tokens and does not wait for them."""
  asyncio.ensure_future(_ask(driver, tiny_engine.PROMPTS[0].tolist()))
  await asyncio.sleep(0.05)


@contextlib.contextmanager
def _driver(engine):
  """Yields a driver; afterwards none of its threads is left."""
  before = set(threading.enumerate())
  engine.warm_up()
  driver = driver_lib.Driver(engine, engine.tokenizer.encode)
  try:
    yield driver
  finally:
    driver.stop()
    left = set(threading.enumerate()) - before
  assert not left, left


class _Gate:
  """Lets an engine's decode steps through one by one."""

  def __init__(self, engine):
    self._generate = engine.generate
    self._steps = threading.Semaphore(0)
    self.calls = 0
    engine.generate = self

  def __call__(self, params, state):
    self._steps.acquire(timeout=_SOON_S)
    self.calls += 1
    return self._generate(params, state)

  def open(self, steps=1000):
    self._steps.release(steps)


def _expected(engine, prompts, *, temperature, params=None, limit=20):
  """Returns the tokens that the rollout loop draws with a server's noise."""
  requests = [
    scheduler.Request(i, np.asarray(p, np.int32), 1)
    for i, p in enumerate(prompts)
  ]
  groups = scheduler.generate(
    engine,
    engine.load_params() if params is None else params,
    requests,
    tiny_engine.sampling(
      purpose=token_choice.Purpose.SERVE,
      seed=3,
      temperature=temperature,
      limit_tokens=limit,
    ),
    report=lambda _: None,
  )
  found = {i: completion.tokens.tolist() for i, (completion,) in groups}
  return [found[i] for i in range(len(found))]


def _wait_for(condition):
  deadline = time.monotonic() + _SOON_S
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.005)


class DriverTestCase(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.greedy = _engine(temperature=0.0)
    cls.sampled = _engine(temperature=1.0)
    # From 58: 59, 60, 0 (the pad), 1, ..., 7 (an end).
    cls.chain = _engine(temperature=0.0, weights=tiny_engine.chain({}))


class ReplyTest(DriverTestCase):
  @parameterized.parameters(0.0, 1.0)
  def test_tokens_are_those_of_the_rollout_loop_for_more_than_the_slots(
    self, temperature
  ):
    engine = self.sampled if temperature else self.greedy
    prompts = [p.tolist() for p in tiny_engine.PROMPTS] * 4
    expected = _expected(engine, prompts, temperature=temperature)
    with _driver(engine) as driver:
      replies = _ask_all(driver, *((p,) for p in prompts))
    self.assertEqual([r.tokens for r in replies], expected)
    if temperature:
      # Of both kinds: ended by an EOS, which is there, and by the limit.
      ended = {tokens[-1] in tiny_engine.EOS_IDS for tokens in expected}
      self.assertEqual(ended, {True, False})

  def test_no_request_compiles(self):
    with _driver(self.greedy) as driver:
      with tiny_engine.compilations() as compiled:
        _ask_all(driver, ([1],), ([2] * 12, 3), ('abc', 5))
    self.assertEmpty(compiled)

  def test_a_padding_id_that_is_sampled_does_not_end_a_response(self):
    with _driver(self.chain) as driver:
      [reply] = _ask_all(driver, ([58],))
    self.assertEqual(reply.tokens, [59, 60, 0, 1, 2, 3, 4, 5, 6, 7])

  @parameterized.parameters((1, 1), (3, 3), (20, 20), (21, 20), (10**9, 20))
  def test_max_tokens_limits_and_is_limited(self, max_tokens, count):
    # Its likeliest tokens are no end.
    with _driver(self.greedy) as driver:
      [reply] = _ask_all(driver, (tiny_engine.PROMPTS[0], max_tokens))
    self.assertLen(reply.tokens, count)
    # JetStream's last message has no token.
    self.assertEqual(reply.messages, count + 1)

  def test_a_text_is_encoded_and_its_reply_has_text_without_the_end(self):
    with _driver(self.chain) as driver:
      [reply] = _ask_all(driver, ('xa',))
    # From a = 0.
    self.assertEqual(reply.tokens, [1, 2, 3, 4, 5, 6, 7])
    self.assertEqual(reply.text, 'bcdefg')

  def test_token_ids_get_no_text(self):
    with _driver(self.chain) as driver:
      [reply] = _ask_all(driver, ([0],))
    self.assertEqual((reply.tokens[0], reply.text), (1, ''))

  def test_text_like_a_byte_is_text(self):
    @dataclasses.dataclass(frozen=True)
    class Tokenizer(tiny_engine.Tokenizer):
      def decode(self, ids):
        return ''.join('<0x41>' for i in ids if i not in self.eos_ids)

    engine = _engine(
      temperature=0.0, weights=tiny_engine.chain({}), tokenizer=Tokenizer()
    )
    with _driver(engine) as driver:
      [reply] = _ask_all(driver, ('e',))
    self.assertEqual(reply.text, '<0x41>' * 2)  # of f, g, then the end

  def test_an_end_in_a_prompt_is_a_token_like_any(self):
    with _driver(self.chain) as driver:
      ids, text = _ask_all(driver, ([5, 7],), ('fh', 3))
    # Up to the next end.
    self.assertEqual(ids.tokens, list(range(8, 21)))
    self.assertEqual((text.tokens, text.text), ([8, 9, 10], 'ijk'))

  @parameterized.parameters(([58],), ('e',))
  def test_a_session_changes_nothing(self, prompt):
    with _driver(self.chain) as driver:
      ask = lambda **fields: asyncio.run(_ask(driver, prompt, **fields))
      self.assertEqual(ask(session_cache='x'), ask())


class RefusalTest(DriverTestCase):
  @parameterized.parameters(
    ([], 5, 'has 0 tokens; it must have 1 to 12'),
    ('', 5, 'has 0 tokens; it must have 1 to 12'),
    ([1] * 13, 5, 'has 13 tokens; it must have 1 to 12'),
    ('a' * 13, 5, 'has 13 tokens; it must have 1 to 12'),
    ([1, 61], 5, 'from 1 to 61; they must be 0 to 60'),
    ([-1, 2], 5, 'from -1 to 2; they must be 0 to 60'),
    ([1], 0, 'max_tokens is 0; it must be at least 1'),
    ([1], -3, 'max_tokens is -3; it must be at least 1'),
  )
  def test_it_says_why_and_harms_nobody_else(self, prompt, max_tokens, why):
    with _driver(self.chain) as driver:
      one, refused, other = _ask_all(
        driver, ([58],), (prompt, max_tokens), ([58],)
      )
      self.assertIsInstance(refused.error, driver_lib.Refused)
      self.assertIn(why, str(refused.error))
      [later] = _ask_all(driver, ([58],))
    for reply in (one, other, later):
      self.assertIsNone(reply.error)
      self.assertLen(reply.tokens, 10)

  def test_a_text_that_makes_no_prompt_is_refused(self):
    def encode(text):
      raise ValueError(f'no form for {text}')

    with _driver(self.chain) as driver:
      driver._encode = encode
      [reply] = _ask_all(driver, ('e',))
      self.assertIsInstance(reply.error, driver_lib.Refused)
      self.assertIn('no form for e', str(reply.error))


class FailureTest(DriverTestCase):
  @parameterized.parameters('prefill', 'insert', 'generate')
  def test_an_exception_in_the_engine_fails_requests_not_the_process(
    self, method
  ):
    engine, calls = self.greedy, []
    original = getattr(engine, method)

    def fail_later(*args, **kwargs):
      calls.append(None)
      if len(calls) == 3:
        raise RuntimeError('out of memory')
      return original(*args, **kwargs)

    with contextlib.redirect_stderr(io.StringIO()) as printed:
      with _driver(engine) as driver:
        with mock.patch.object(engine, method, fail_later):
          replies = _ask_all(driver, *([([1],)] * 12))
        self.assertFalse(driver.live)
        [later] = _ask_all(driver, ([1],))
    for reply in (*replies, later):
      self.assertIsInstance(reply.error, driver_lib.Unavailable)
      self.assertIn("RuntimeError('out of memory')", str(reply.error))
    self.assertEqual(later.tokens, [])
    self.assertIn('in fail_later', printed.getvalue())

  def test_an_exception_while_it_makes_text_does_too(self):
    with contextlib.redirect_stderr(io.StringIO()):
      with _driver(self.chain) as driver:
        with mock.patch.object(
          tiny_engine.Tokenizer, 'decode', side_effect=KeyError('no text')
        ):
          [reply] = _ask_all(driver, ('e',))
    self.assertIn('no text', str(reply.error))

  def test_an_assertion_of_the_engine_is_a_failure(self):
    with contextlib.redirect_stderr(io.StringIO()):
      with _driver(self.chain) as driver:
        with mock.patch.object(
          self.chain, 'generate', side_effect=AssertionError('mine')
        ):
          [reply] = _ask_all(driver, ([1],))
    self.assertIn('mine', str(reply.error))

  def test_a_caller_whose_event_loop_is_gone_harms_nobody(self):
    engine = _engine(temperature=0.0)
    with _driver(engine) as driver:
      gate = _Gate(engine)
      asyncio.run(_leave(driver))
      gate.open()
      _wait_for(lambda: not driver._open)
      # It was noticed after one step; JetStream is at most 10 ahead of that.
      self.assertLess(gate.calls, 20)
      [reply] = _ask_all(driver, ([1],))
    self.assertIsNone(reply.error)
    self.assertLen(reply.tokens, 20)

  def test_a_slot_given_back_between_two_looks_is_none(self):
    # JetStream counts the free slots, finds no request, then asserts that not
    # all slots are free. Let the count be one short, as if a request had
    # ended right after it.
    with _driver(self.chain) as driver:
      slots = driver._generate_slots[0]
      sizes, begun = [7], mock.Mock(wraps=self.chain.init_decode_state)
      true_size = slots.qsize
      with mock.patch.object(self.chain, 'init_decode_state', begun):
        slots.qsize = lambda: sizes.pop() if sizes else true_size()
        _wait_for(lambda: begun.called)
      [reply] = _ask_all(driver, ([58],))
    self.assertLen(reply.tokens, 10)


class StopTest(DriverTestCase):
  def test_requests_under_way_and_waiting_fail_at_once(self):
    engine = _engine(temperature=0.0)
    with _driver(engine) as driver:
      gate = _Gate(engine)

      async def stop_under_load():
        asked = [asyncio.ensure_future(_ask(driver, [1])) for _ in range(12)]
        await asyncio.sleep(0.1)
        # In another thread, as it waits for the step under way.
        stop = asyncio.get_running_loop().run_in_executor(None, driver.stop)
        replies = await asyncio.wait_for(asyncio.gather(*asked), _SOON_S)
        self.assertEqual(gate.calls, 0)
        gate.open()
        await stop
        return replies

      for reply in asyncio.run(stop_under_load()):
        self.assertIsInstance(reply.error, driver_lib.Unavailable)
        self.assertIn('stopped', str(reply.error))
      [later] = _ask_all(driver, ([1],))
      self.assertIsInstance(later.error, driver_lib.Unavailable)

  def test_a_caller_whose_event_loop_is_gone_is_in_no_ones_way(self):
    engine = _engine(temperature=0.0)
    with _driver(engine) as driver:
      gate = _Gate(engine)
      asyncio.run(_leave(driver))
      threading.Timer(0.2, gate.open).start()
      driver.stop()

  def test_it_may_be_repeated(self):
    with _driver(self.greedy) as driver:
      driver.stop()
      driver.stop()

  def test_a_cancelled_request_gives_its_slot_back(self):
    engine = _engine(temperature=0.0)
    with _driver(engine) as driver:
      gate = _Gate(engine)

      async def cancel():
        channel = _orchestrator.async_multifuture.AsyncMultifuture()
        driver.place_request_on_prefill_queue(
          _orchestrator.ActiveRequest(
            max_tokens=20,
            prefill_content=tiny_engine.PROMPTS[0].tolist(),
            is_client_side_tokenization=True,
            return_channel=channel,
          )
        )
        gate.open(1)
        await asyncio.wait_for(channel.__anext__(), _SOON_S)
        channel.cancel()
        gate.open(1)
        _wait_for(lambda: not driver._open)

      asyncio.run(cancel())
      self.assertEqual(gate.calls, 2)
      gate.open()


class ParametersTest(DriverTestCase):
  def _other_params(self, engine):
    params = tiny_model.params(tiny_engine.model(), seed=1)
    return engine.place(params)

  def test_they_change_between_requests_and_nothing_is_compiled(self):
    engine, prompt = _engine(temperature=0.0), tiny_engine.PROMPTS[1].tolist()
    other = self._other_params(engine)
    [old_tokens] = _expected(engine, [prompt], temperature=0.0)
    [new_tokens] = _expected(engine, [prompt], temperature=0.0, params=other)
    self.assertNotEqual(old_tokens, new_tokens)
    with _driver(engine) as driver:
      gate = _Gate(engine)

      async def change():
        loop = asyncio.get_running_loop()
        before = asyncio.ensure_future(_ask(driver, prompt))
        await asyncio.sleep(0.05)
        changed = loop.run_in_executor(None, driver.set_params, other)
        while driver._held is None:
          await asyncio.sleep(0.005)
        after = asyncio.ensure_future(_ask(driver, prompt))
        await asyncio.sleep(0.05)
        self.assertFalse(changed.done())
        gate.open()
        replies = await asyncio.gather(before, after)
        await changed
        return replies

      with tiny_engine.compilations() as compiled:
        before, after = asyncio.run(asyncio.wait_for(change(), _SOON_S))
    self.assertEqual(before.tokens, old_tokens)
    self.assertEqual(after.tokens, new_tokens)
    self.assertEmpty(compiled)

  def test_a_stop_ends_the_wait_for_requests(self):
    engine = _engine(temperature=0.0)
    old = engine.load_params()
    with _driver(engine) as driver:
      gate = _Gate(engine)

      async def stop():
        loop = asyncio.get_running_loop()
        asked = asyncio.ensure_future(_ask(driver, [1]))
        await asyncio.sleep(0.05)
        changed = loop.run_in_executor(
          None, driver.set_params, self._other_params(engine)
        )
        while driver._held is None:
          await asyncio.sleep(0.005)
        held = asyncio.ensure_future(_ask(driver, [1]))
        await asyncio.sleep(0.05)
        # The engine stays in a step until the requests have failed.
        threading.Timer(0.5, gate.open).start()
        driver.stop()
        with self.assertRaises(driver_lib.Unavailable):
          await changed
        return await asyncio.gather(asked, held)

      replies = asyncio.run(asyncio.wait_for(stop(), _SOON_S))
    for reply in replies:
      self.assertIsInstance(reply.error, driver_lib.Unavailable)
    self.assertIs(engine.load_params(), old)


if __name__ == '__main__':
  absltest.main()

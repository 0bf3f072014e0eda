"""Tests of `sampling.serve`: real clients over the loopback interface."""

import concurrent.futures
import contextlib
import io
import socket
import threading
import time
from unittest import mock

import grpc
from absl.testing import absltest, parameterized

import tiny_engine
import tiny_model
from dapo_jax.parallel import mesh as mesh_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import jetstream_compat, scheduler, serve

_orchestrator = jetstream_compat.load_orchestrator()
_pb = _orchestrator.jetstream_pb2
_SOON_S = 20  # far more than anything here takes


def _engine(weights=None):
  model, params = weights or (tiny_engine.model(), tiny_engine.params())
  engine = engine_lib.Engine(
    model,
    tiny_engine.Tokenizer(),
    mesh_lib.local_mesh(),
    tiny_engine.LIMITS,
    seed=3,
    serve_temperature=0.0,
  )
  engine.set_params(engine.place(params))
  engine.warm_up()
  return engine


@contextlib.contextmanager
def _client(server):
  with grpc.insecure_channel(server.address) as channel:
    yield _orchestrator.jetstream_pb2_grpc.OrchestratorStub(channel)


def _request(prompt, max_tokens=20):
  if isinstance(prompt, str):
    content = _pb.DecodeRequest.TextContent(text=prompt)
    return _pb.DecodeRequest(text_content=content, max_tokens=max_tokens)
  content = _pb.DecodeRequest.TokenContent(token_ids=prompt)
  return _pb.DecodeRequest(token_content=content, max_tokens=max_tokens)


def _samples(stub, *args):
  replies = stub.Decode(_request(*args), timeout=_SOON_S)
  return [r.stream_content.samples[0] for r in replies]


def _tokens(stub, *args):
  return [t for sample in _samples(stub, *args) for t in sample.token_ids]


def _error(stub, request):
  """Returns (status, details) of a request that fails."""
  try:
    list(stub.Decode(request, timeout=_SOON_S))
  except grpc.RpcError as error:
    return error.code().name, error.details()
  raise AssertionError('it was served')


def _threads():
  """Returns the threads; gRPC keeps one of its own, which holds nothing up."""
  return {t for t in threading.enumerate() if '_poll_wrapper' not in t.name}


class ServerTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.engine = _engine()
    cls.chain = _engine(tiny_engine.chain({}))

  def _serve(self, engine):
    return serve.Server(engine, engine.tokenizer.encode)

  def test_two_clients_at_once_get_the_tokens_of_the_rollout_loop(self):
    groups = scheduler.generate(
      self.engine,
      tiny_engine.params(),
      tiny_engine.requests(samples=1),
      tiny_engine.sampling(temperature=0.0),
      report=lambda _: None,
    )
    expected = {i: c.tokens.tolist() for i, (c,) in groups}
    prompts = [p.tolist() for p in tiny_engine.PROMPTS]
    with self._serve(self.engine) as server:

      def client(_):
        with _client(server) as stub:
          return [_tokens(stub, p) for p in prompts]

      with concurrent.futures.ThreadPoolExecutor(2) as pool:
        with tiny_engine.compilations() as compiled:
          replies = list(pool.map(client, range(2)))
    self.assertEqual(replies, [[expected[i] for i in range(5)]] * 2)
    self.assertEmpty(compiled)

  def test_text_comes_as_it_is_made(self):
    with self._serve(self.chain) as server, _client(server) as stub:
      samples = _samples(stub, 'xc')
    # c is 2, 7 ends; the last message has no token.
    self.assertEqual([s.text for s in samples], ['d', 'e', 'f', 'g', '', ''])
    self.assertEqual(
      [list(s.token_ids) for s in samples], [[3], [4], [5], [6], [7], []]
    )

  def test_it_listens_on_loopback_alone_and_says_on_which_port(self):
    with self._serve(self.engine) as server, _client(server) as stub:
      self.assertRegex(server.address, r'^127\.0\.0\.1:[1-9]\d*$')
      self.assertTrue(stub.HealthCheck(_pb.HealthCheckRequest()).is_live)

  def test_a_refused_client_learns_why_while_another_is_served(self):
    with self._serve(self.chain) as server, _client(server) as stub:
      replies = stub.Decode(_request([58]), timeout=_SOON_S)
      next(replies)
      for request, why in (
        (_request([1] * 13), 'the prompt has 13 tokens; it must have 1 to 12'),
        (_request([]), 'the prompt has 0 tokens; it must have 1 to 12'),
        (_request([1], 0), 'max_tokens is 0; it must be at least 1'),
        (_pb.DecodeRequest(max_tokens=5), 'give text_content or token_content'),
      ):
        self.assertEqual(_error(stub, request), ('INVALID_ARGUMENT', why))
      self.assertLen(list(replies), 10)  # 9 more tokens and the end

  def test_after_a_failure_clients_learn_of_it_and_health_is_bad(self):
    engine = _engine()

    def fail(*_):
      raise RuntimeError('out of memory')

    engine.generate = fail
    told = ('UNAVAILABLE', "the engine failed: RuntimeError('out of memory')")
    with contextlib.redirect_stderr(io.StringIO()):
      with self._serve(engine) as server, _client(server) as stub:
        self.assertEqual(_error(stub, _request([1])), told)
        self.assertEqual(_error(stub, _request([1])), told)
        self.assertFalse(stub.HealthCheck(_pb.HealthCheckRequest()).is_live)

  def test_close_fails_requests_under_way_and_leaves_no_thread(self):
    engine, before = _engine(), _threads()
    generate, slow = engine.generate, threading.Event()

    def generate_slowly(*args):
      slow.wait(0.05)
      return generate(*args)

    engine.generate = generate_slowly
    server = self._serve(engine)
    with _client(server) as stub:
      replies = [stub.Decode(_request([1]), timeout=_SOON_S) for _ in range(12)]
      next(replies[0])
      begin = time.monotonic()
      server.close()
      self.assertLess(time.monotonic() - begin, 5)
      for reply in replies:
        with self.assertRaises(grpc.RpcError) as caught:
          list(reply)
        self.assertEqual(caught.exception.code().name, 'UNAVAILABLE')
        self.assertEqual(caught.exception.details(), 'the server was stopped')
    self.assertEmpty(_threads() - before)

  def test_a_client_that_leaves_gives_its_slot_back(self):
    with self._serve(self.engine) as server, _client(server) as stub:
      replies = stub.Decode(_request(tiny_engine.PROMPTS[0]), timeout=_SOON_S)
      next(replies)
      replies.cancel()
      deadline = time.monotonic() + _SOON_S
      while server._driver._open:
        self.assertLess(time.monotonic(), deadline)
        time.sleep(0.005)
      self.assertLen(_tokens(stub, [1]), 20)

  def test_weights_change_under_a_running_server(self):
    engine, prompt = _engine(), tiny_engine.PROMPTS[1]
    other = tiny_model.params(tiny_engine.model(), seed=1)
    with self._serve(engine) as server, _client(server) as stub:
      before = _tokens(stub, prompt)
      server.set_params(engine.place(other))
      after = _tokens(stub, prompt)
      server.set_params(engine.place(tiny_engine.params()))
      self.assertNotEqual(before, after)
      self.assertEqual(_tokens(stub, prompt), before)


class AddressTest(parameterized.TestCase):
  def test_a_port_in_use_is_refused_and_nothing_is_left(self):
    engine, before = _engine(), _threads()
    with socket.socket() as taken:
      taken.bind(('127.0.0.1', 0))
      taken.listen()
      port = taken.getsockname()[1]
      with self.assertRaisesRegex(
        ValueError, rf'127.0.0.1:{port} \(Address already in use\).*--port'
      ):
        serve.Server(engine, engine.tokenizer.encode, port=port)
    self.assertEmpty(_threads() - before)

  def test_two_servers_do_not_share_a_port(self):
    engine = _engine()
    with serve.Server(engine, engine.tokenizer.encode) as server:
      port = int(server.address.rpartition(':')[2])
      with self.assertRaisesRegex(ValueError, '--port'):
        serve.check_address('127.0.0.1', port)
    # As soon as it is closed it is free again.
    serve.check_address('127.0.0.1', port)

  def test_a_port_lost_after_the_check_is_not_shared_either(self):
    engine = _engine()
    with serve.Server(engine, engine.tokenizer.encode) as server:
      port, before = int(server.address.rpartition(':')[2]), _threads()
      with mock.patch.object(serve, 'check_address'):
        with self.assertRaisesRegex(RuntimeError, str(port)):
          serve.Server(engine, engine.tokenizer.encode, port=port)
      self.assertEmpty(_threads() - before)

  def test_a_host_that_is_not_here_is_refused(self):
    # An address for documentation, which no machine has.
    with self.assertRaisesRegex(ValueError, r'192\.0\.2\.1:0 \(.*--host'):
      serve.check_address('192.0.2.1', 0)


if __name__ == '__main__':
  absltest.main()

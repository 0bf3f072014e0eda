"""A gRPC server over an engine: JetStream's service, on an address of ours.

JetStream's own server listens on every interface, cannot say which port it
got, and shares a port that another server has.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc

from dapo_jax.model import decoder
from dapo_jax.sampling import driver as driver_lib
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import jetstream_compat

_orchestrator = jetstream_compat.load_orchestrator()
LOOPBACK = '127.0.0.1'


def check_address(host: str, port: int) -> None:
  """Checks that a server could listen there; gRPC does not say why not.

  Raises:
    ValueError: when it can't.
  """
  try:
    family, kind, _, _, address = socket.getaddrinfo(
      host, port, type=socket.SOCK_STREAM
    )[0]
    with socket.socket(family, kind) as probe:
      # As gRPC does: connections of an earlier server may still be closing.
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      probe.bind(address)
  except OSError as error:
    raise ValueError(
      f"can't listen on {host}:{port} ({error.strerror}); change --port or "
      '--host'
    ) from error


class Orchestrator(_orchestrator.LLMOrchestrator):
  """JetStream's service; a refused request learns why."""

  def _get_prefill_content(self, request):
    if request.WhichOneof('content') is None:
      raise driver_lib.Refused('give text_content or token_content')
    return super()._get_prefill_content(request)

  async def Decode(self, request, context=None):  # noqa: D102, JetStream's.
    try:
      async for response in super().Decode(request, context):
        yield response
    except (driver_lib.Refused, driver_lib.Unavailable) as error:
      if context is None:
        raise
      code = (
        grpc.StatusCode.INVALID_ARGUMENT
        if isinstance(error, driver_lib.Refused)
        else grpc.StatusCode.UNAVAILABLE
      )
      await context.abort(code, str(error))


class Server:
  """A server that answers from its construction until `close`."""

  def __init__(
    self,
    engine: engine_lib.Engine,
    encode: Callable[[str], Sequence[int]],
    *,
    host: str = LOOPBACK,
    port: int = 0,
  ):
    """Starts it. There is no authentication: who reaches it can use it.

    Args:
      engine: with its parameters set, and warmed up.
      encode: makes the prompt's tokens of a request's text.
      host: name or address of the interface to listen on.
      port: 0 = any that is free.

    Raises:
      ValueError: when it can't listen there.
    """
    check_address(host, port)
    self._driver = driver_lib.Driver(engine, encode)
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
      target=self._loop.run_forever, name='grpc server'
    )
    self._thread.start()
    self._server = None
    host = f'[{host}]' if ':' in host else host
    try:
      self.address = f'{host}:{self._run(self._start(host, port))}'
    except BaseException:
      self.close()
      raise

  def set_params(self, params: decoder.Params) -> None:
    """Changes the weights between requests; see `driver.Driver`."""
    self._driver.set_params(params)

  def close(self) -> None:
    """Fails the requests under way, and ends all threads."""
    self._driver.stop()
    if self._server is not None:
      # They have ended; their last words may be on the way.
      self._run(self._server.stop(grace=1))
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()

  def __enter__(self) -> 'Server':
    return self

  def __exit__(self, *exc) -> None:
    self.close()

  async def _start(self, host: str, port: int) -> int:
    """Returns the port that is listened on."""
    # Otherwise a second server on a port would take half of the requests.
    server = grpc.aio.server(options=[('grpc.so_reuseport', 0)])
    _orchestrator.jetstream_pb2_grpc.add_OrchestratorServicer_to_server(
      Orchestrator(self._driver), server
    )
    bound = server.add_insecure_port(f'{host}:{port}')
    await server.start()
    self._server = server
    return bound

  def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns what a coroutine returns that runs in the server's thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

"""JetStream's driver, made safe: what fails is a request, not the process.

JetStream's own kills the process when an engine call or a request's tokens
raise, leaves callers waiting for ever when it stops, goes on with requests
that nobody reads any more and binds the weights when it starts.
"""

import contextlib
import functools
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from dapo_jax.data import text_stream
from dapo_jax.model import decoder
from dapo_jax.sampling import engine as engine_lib
from dapo_jax.sampling import jetstream_compat
from dapo_jax.sampling import limits as limits_lib

_orchestrator = jetstream_compat.load_orchestrator()


# What an event loop raises that has been closed, with its callers.
_CallerGone = RuntimeError


class Refused(ValueError):
  """A request that can't be served as it is; others are not touched."""


class Unavailable(RuntimeError):
  """The driver has stopped or its engine failed: nothing is served."""


class Driver(_orchestrator.Driver):
  """Serves requests with one engine until `stop`, or until it fails."""

  def __init__(
    self, engine: engine_lib.Engine, encode: Callable[[str], Sequence[int]]
  ):
    """Starts the threads.

    Args:
      engine: with its parameters set, and warmed up.
      encode: makes the prompt's tokens of a request's text.
    """
    self._engine = engine
    self._encode = encode
    # Guards what follows; notified when a request ends.
    self._changed = threading.Condition()
    self._open: set[Any] = set()  # return channels of unfinished requests
    self._held: list[Any] | None = None  # requests, while parameters change
    self._why_down = ''
    self._one_change = threading.Lock()
    super().__init__(
      prefill_engines=[engine],
      generate_engines=[engine],
      # The engine's own, see `set_params`.
      prefill_params=[None],
      generate_params=[None],
      interleaved_mode=True,
      jax_padding=False,
    )

  def place_request_on_prefill_queue(self, request: Any) -> None:
    """Takes a request in (JetStream); its prompt becomes checked tokens.

    Raises:
      Refused: the prompt is empty, too long or has ids that are no token, or
        no token is asked for.
      Unavailable: after `stop` or a failure.
    """
    channel = request.return_channel
    wants_text = not request.is_client_side_tokenization
    request.prefill_content = self._prompt_tokens(request)
    # JetStream would decode each token by itself; `_deliver` knows better.
    request.is_client_side_tokenization = True
    request.enqueue_samples = functools.partial(
      self._deliver,
      request,
      channel,
      [text_stream.Window()] if wants_text else None,
    )
    channel.close = functools.partial(_close, channel.close)
    with self._changed:
      if self._why_down:
        raise Unavailable(self._why_down)
      self._open.add(channel)
      if self._held is not None:
        self._held.append(request)
      else:
        super().place_request_on_prefill_queue(request)

  def set_params(self, params: decoder.Params) -> None:
    """Changes the weights between requests: no response mixes two policies.

    Waits until the requests under way have ended; those that come meanwhile
    are served after them, with the new weights. Compiles nothing where the
    arrays lie as the old ones do. Not to be called from the event loop.

    Raises:
      Unavailable: after `stop` or a failure, also while waiting.
    """
    with self._one_change, self._changed:
      self._held = []
      try:
        self._changed.wait_for(
          lambda: self._why_down or len(self._open) == len(self._held)
        )
        if self._why_down:
          raise Unavailable(self._why_down)
        self._engine.set_params(params)
      finally:
        held, self._held = self._held, None
        for request in held:
          super().place_request_on_prefill_queue(request)

  def stop(self) -> None:
    """Fails the requests under way, and ends all threads; may be repeated."""
    self._shut('the server was stopped')
    super().stop()

  def _shut(self, why: str) -> None:
    """Fails all requests, those to come included."""
    self.live = False
    with self._changed:
      self._why_down = self._why_down or why
      for channel in self._open:
        with contextlib.suppress(_CallerGone):
          channel.set_exception(Unavailable(self._why_down))
      self._open.clear()
      self._changed.notify_all()

  def _prompt_tokens(self, request: Any) -> Int[np.ndarray, ' T']:
    content = request.prefill_content
    if isinstance(content, str) and content:
      try:
        content = self._encode(content)
      except ValueError as error:
        raise Refused(f'the text makes no prompt: {error}') from error
    longest = self._engine.limits.prompt_tokens
    if not 0 < len(content) <= longest:
      raise Refused(
        f'the prompt has {len(content)} tokens; it must have 1 to {longest}'
      )
    tokens = np.asarray(content, np.int32)
    vocab_size = self._engine.tokenizer.vocab_size
    if tokens.min() < 0 or tokens.max() >= vocab_size:
      raise Refused(
        f'the prompt has token ids from {tokens.min()} to {tokens.max()}; '
        f'they must be 0 to {vocab_size - 1}'
      )
    if request.max_tokens < 1:
      raise Refused(
        f'max_tokens is {request.max_tokens}; it must be at least 1'
      )
    return tokens

  def _process_prefill_content(
    self, request, tokenizer, is_bos, max_prefill_length
  ):
    """Returns (padded tokens, their number) without a BOS (JetStream)."""
    del tokenizer, is_bos, max_prefill_length
    tokens = request.prefill_content
    padded = np.zeros(limits_lib.bucket_tokens(len(tokens)), np.int32)
    padded[: len(tokens)] = tokens
    return padded, len(tokens)

  def _deliver(
    self,
    request: Any,
    channel: Any,
    windows: list[text_stream.Window] | None,
    samples: list[Any],
  ) -> None:
    """Sends on what one step gave a request; `windows` is there for text."""
    if channel.cancelled():
      # Nobody reads it: its slot is free from now on.
      request.complete[:] = True
    ended = bool(request.complete.all())
    if windows is not None:
      [sample] = samples
      windows[0], text = text_stream.extend(
        windows[0],
        sample.token_ids,
        decode=self._engine.tokenizer.decode,
        ended=ended,
      )
      # One by one: JetStream takes a piece like <0x41> for a byte.
      sample.text = list(text)
    try:
      channel.add_result(samples)
    except _CallerGone:
      request.complete[:] = ended = True
    if ended:
      with self._changed:
        self._open.discard(channel)
        self._changed.notify_all()

  # JetStream's threads. Its thread class kills the process when one raises.

  def _prefill_thread(self, idx: int) -> None:
    with self._failing():
      super()._prefill_thread(idx)

  def _transfer_thread(self, idx: int) -> None:
    with self._failing():
      super()._transfer_thread(idx)

  def _generate_thread(self, idx: int) -> None:
    with self._failing():
      while True:
        try:
          return super()._generate_thread(idx)
        except AssertionError as error:
          if not _found_idle(error):
            raise

  def _detokenize_thread(self, idx: int) -> None:
    with self._failing():
      super()._detokenize_thread(idx)

  @contextlib.contextmanager
  def _failing(self):
    """Makes an exception the end of the requests."""
    try:
      yield
    except Exception as error:
      traceback.print_exc()
      self._shut(f'the engine failed: {error!r}')


def _close(close: Callable[[], None]) -> None:
  """Ends a reply for a caller who may be gone, maybe since it began to end."""
  with contextlib.suppress(_CallerGone):
    close()


def _found_idle(error: AssertionError) -> bool:
  """Says whether JetStream's loop tripped over its own assertion.

  It asserts that a slot is taken, but the last may be given back between its
  look for requests and that line. Then no request is in its hands or in a
  slot, and it can begin again.
  """
  last = error.__traceback__
  while last.tb_next is not None:
    last = last.tb_next
  return last.tb_frame.f_code is _orchestrator.Driver._generate_thread.__code__

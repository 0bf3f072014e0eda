"""Replies of a language model behind a chat/completions endpoint.

Host only. Needs nothing but the standard library: the protocol is one POST
with a JSON body, as vLLM, SGLang, llama.cpp and many services speak it.
"""

import concurrent.futures
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, NamedTuple

_RETRIED = (429, 500, 502, 503, 504)
_TRIES = 5
_MAX_WAIT_S = 60.0
_SHOWN_CHARACTERS = 200
_PIECE_BYTES = 1 << 16
# Far more than `max_tokens` can be.
_MAX_BYTES = 1 << 24


class EndpointError(ValueError):
  """Says that an endpoint gave no reply, and why."""


class Endpoint(NamedTuple):
  """Where replies come from, and how they are sampled.

  Attributes:
    url: of the API, such as http://127.0.0.1:8000/v1; /chat/completions is
      appended if it does not end with that.
    model: the model's name there.
    key_env: name of the environment variable that holds the key; '' = none.
    temperature: of sampling.
    max_tokens: longest reply.
    timeout_s: longest wait for one reply.
    parallel_count: requests under way at a time.
  """

  url: str
  model: str
  key_env: str = ''
  temperature: float = 1.0
  max_tokens: int = 4096
  timeout_s: float = 600.0
  parallel_count: int = 8


class _NoRedirect(urllib.request.HTTPRedirectHandler):
  """Follows no redirect: it would take the key to another host."""

  def redirect_request(self, *args: Any) -> None:
    return None


def complete(endpoint: Endpoint, prompts: Sequence[str]) -> list[str]:
  """Returns a reply to each prompt, in their order.

  A request that fails because of the connection, or with status 429 or 5xx, is
  made 5 times, with waits of 1, 2, 4 and 8 s or what the server asks for. Once
  a request has failed for good no other is begun.

  Raises:
    EndpointError: there is no key, the address is none, or a request failed.
  """
  request = _request(endpoint)
  stopped = threading.Event()
  with concurrent.futures.ThreadPoolExecutor(endpoint.parallel_count) as pool:
    waiting = [
      pool.submit(_reply, endpoint, request, p, stopped) for p in prompts
    ]
    try:
      for future in concurrent.futures.as_completed(waiting):
        future.result()
      return [future.result() for future in waiting]
    except BaseException:
      stopped.set()  # Those under way are not made again.
      pool.shutdown(wait=False, cancel_futures=True)
      raise


def _request(endpoint: Endpoint) -> tuple[str, dict[str, str]]:
  """Returns the address to post to and the headers."""
  parts = urllib.parse.urlsplit(endpoint.url)
  if parts.scheme not in ('http', 'https') or not parts.netloc:
    raise EndpointError(
      f'--endpoint ({endpoint.url}) must be an http(s) address, such as'
      ' http://127.0.0.1:8000/v1'
    )
  if '@' in parts.netloc:
    raise EndpointError(
      '--endpoint must be an address without a name or a key in it; give the'
      ' key by --key_env'
    )
  headers = {'Content-Type': 'application/json'}
  if endpoint.key_env:
    key = os.environ.get(endpoint.key_env, '').strip()
    if not key:
      raise EndpointError(
        f'the environment variable {endpoint.key_env} is not set or empty;'
        ' change --key_env'
      )
    # An error of the library would show it.
    if not (key.isascii() and key.isprintable()):
      raise EndpointError(
        f'the environment variable {endpoint.key_env} must be a key, of'
        ' printable ASCII on one line; change --key_env'
      )
    headers['Authorization'] = f'Bearer {key}'
  path = parts.path.rstrip('/')
  if not path.endswith('/chat/completions'):
    path += '/chat/completions'
  return urllib.parse.urlunsplit(parts._replace(path=path)), headers


def _reply(
  endpoint: Endpoint,
  request: tuple[str, dict[str, str]],
  prompt: str,
  stopped: threading.Event,
) -> str:
  """Returns the reply to one prompt."""
  url, headers = request
  body = {
    'model': endpoint.model,
    'messages': [{'role': 'user', 'content': prompt}],
    'temperature': endpoint.temperature,
    'max_tokens': endpoint.max_tokens,
  }
  posted = urllib.request.Request(
    url, json.dumps(body).encode('utf-8'), headers, method='POST'
  )
  return _text(_answered(posted, endpoint.timeout_s, stopped), url)


def _answered(
  request: urllib.request.Request, timeout_s: float, stopped: threading.Event
) -> bytes:
  """Returns the body of the answer to a request, retried if need be."""
  opener = urllib.request.build_opener(_NoRedirect)
  for attempt in range(1, _TRIES + 1):
    wait_s = 2.0 ** (attempt - 1)
    try:
      with opener.open(request, timeout=timeout_s) as answer:
        return _body(answer, timeout_s)
    except urllib.error.HTTPError as error:
      problem = f'status {error.code}: {_shown(error)}'
      if error.code not in _RETRIED:
        break
      wait_s = _wait_s(error.headers.get('Retry-After'), wait_s)
    except (OSError, http.client.HTTPException) as error:
      # No connection, none in time, or one that broke.
      problem = str(getattr(error, 'reason', error)) or repr(error)
    if attempt == _TRIES or stopped.is_set():
      break
    time.sleep(wait_s)
  raise EndpointError(
    f'{request.full_url} gave no reply ({problem}) in {attempt} tries; change'
    ' --endpoint, --model or --key_env'
  )


def _body(answer: http.client.HTTPResponse, timeout_s: float) -> bytes:
  """Returns the whole body of an answer.

  The opener's timeout is of each piece, which a slow server can send for ever.
  """
  deadline_s = time.monotonic() + timeout_s
  pieces, count_bytes = [], 0
  while piece := answer.read1(_PIECE_BYTES):
    pieces.append(piece)
    count_bytes += len(piece)
    if count_bytes > _MAX_BYTES:
      raise http.client.HTTPException(f'over {_MAX_BYTES >> 20} MiB')
    if time.monotonic() > deadline_s:
      raise TimeoutError('timed out')
  body = b''.join(pieces)
  if answer.length:  # Bytes that were announced and did not come.
    raise http.client.IncompleteRead(body, answer.length)
  return body


def _shown(error: urllib.error.HTTPError) -> str:
  """Returns how the answer that is an error begins."""
  try:
    body = error.read(_SHOWN_CHARACTERS)
  except (OSError, http.client.HTTPException):  # The connection broke.
    body = b''
  return body.decode('utf-8', 'replace')


def _wait_s(asked: str | None, otherwise_s: float) -> float:
  """Returns how long to wait, by the server's Retry-After if it is seconds."""
  seconds = (asked or '').strip()
  return (
    min(float(seconds), _MAX_WAIT_S) if seconds.isdecimal() else otherwise_s
  )


def _text(body: bytes, url: str) -> str:
  """Returns the reply that the body of an answer holds.

  A reply that was cut off while the model was thinking is null, and so empty.
  """
  try:
    text = json.loads(body)['choices'][0]['message']['content'] or ''
  except (ValueError, LookupError, TypeError, RecursionError):
    text = None
  if not isinstance(text, str):
    shown = body[:_SHOWN_CHARACTERS].decode('utf-8', 'replace')
    raise EndpointError(
      f'{url} answered with something else than a chat completion: {shown}'
    )
  return text

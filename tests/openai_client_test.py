"""Tests of `dapo_jax.data.openai_client`, against servers on this machine."""

import http.server
import json
import threading
from unittest import mock

from absl.testing import absltest, parameterized

from dapo_jax.data import openai_client


def _completion(text):
  return json.dumps({'choices': [{'message': {'content': text}}]}).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers as `server.script` says: (status, headers, body) by turn.

  With a status of None the body is all that is sent: several pieces, with a
  wait after each, and then the connection is closed.
  """

  def do_POST(self):
    body = self.rfile.read(int(self.headers['Content-Length']))
    request = json.loads(body)
    with self.server.lock:
      self.server.seen.append((self.path, dict(self.headers), request))
      status, headers, body = self.server.script(len(self.server.seen), request)
    if status is None:
      self._send_pieces(body)
      return
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def _send_pieces(self, pieces):
    self.close_connection = True
    for piece in pieces:
      try:
        self.wfile.write(piece)
      except OSError:  # Nobody waits any more.
        return
      if len(pieces) > 1:
        self.server.pause.wait(0.05)

  def log_message(self, *args):
    pass


class ClientTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
    self.server.seen, self.server.lock = [], threading.Lock()
    self.server.pause = threading.Event()
    threading.Thread(
      target=self.server.serve_forever, args=[0.02], daemon=True
    ).start()
    self.addCleanup(self.server.server_close)
    self.addCleanup(self.server.shutdown)
    self.enterContext(
      mock.patch.dict('os.environ', {'no_proxy': '*', 'KEY': 'secret-1'})
    )
    self.waits = self.enterContext(mock.patch('time.sleep'))
    self.url = f'http://127.0.0.1:{self.server.server_port}/v1'

  def _complete(self, script, prompts=('hello',), **fields):
    """Returns the replies where the server answers by a script."""
    self.server.script = script
    endpoint = openai_client.Endpoint(self.url, 'small', **fields)
    return openai_client.complete(endpoint, list(prompts))

  def _error(self, *args, **fields):
    """Returns the text of the error of `_complete`."""
    with self.assertRaises(openai_client.EndpointError) as caught:
      self._complete(*args, **fields)
    return str(caught.exception)

  def test_replies_are_in_the_order_of_the_prompts(self):
    def echo(turn, request):
      return 200, {}, _completion(request['messages'][0]['content'] + '!')

    prompts = [f'p{index}' for index in range(20)]
    found = self._complete(echo, prompts)
    self.assertEqual(found, [f'{prompt}!' for prompt in prompts])

  def test_request(self):
    self._complete(
      lambda *_: (200, {}, _completion('x')), temperature=0.5, max_tokens=7
    )
    [(path, headers, request)] = self.server.seen
    self.assertEqual(path, '/v1/chat/completions')
    self.assertNotIn('Authorization', headers)
    self.assertEqual(
      request,
      {
        'model': 'small',
        'messages': [{'role': 'user', 'content': 'hello'}],
        'temperature': 0.5,
        'max_tokens': 7,
      },
    )

  def test_key_is_read_from_the_environment(self):
    self._complete(lambda *_: (200, {}, _completion('x')), key_env='KEY')
    self.assertEqual(self.server.seen[0][1]['Authorization'], 'Bearer secret-1')

  def test_no_key_is_told_before_anything_is_sent(self):
    message = self._error(None, key_env='NO_SUCH_KEY')
    self.assertIn('variable NO_SUCH_KEY is not set or empty', message)
    self.assertEmpty(self.server.seen)

  @parameterized.parameters(429, 500, 502, 503, 504)
  def test_a_busy_server_is_asked_again(self, status):
    found = self._complete(
      lambda turn, _: (
        (200, {}, _completion('x')) if turn > 2 else (status, {}, b'busy')
      )
    )
    self.assertEqual(found, ['x'])
    self.assertEqual([c.args[0] for c in self.waits.call_args_list], [1.0, 2.0])

  @parameterized.parameters(
    ('7', 7.0), ('3600', 60.0), ('Wed, 21 Oct 2015', 1.0), ('nan', 1.0)
  )
  def test_waits_as_long_as_it_is_asked_to(self, asked, wait_s):
    self._complete(
      lambda turn, _: (
        (200, {}, _completion('x'))
        if turn > 1
        else (429, {'Retry-After': asked}, b'')
      )
    )
    self.waits.assert_called_once_with(wait_s)

  def test_five_tries_are_all(self):
    message = self._error(lambda *_: (503, {}, b'overloaded'))
    self.assertLen(self.server.seen, 5)
    self.assertIn('gave no reply (status 503: overloaded) in 5 tries', message)

  @parameterized.parameters(400, 401, 404)
  def test_a_refusal_is_final(self, status):
    message = self._error(lambda *_: (status, {}, b'no'), key_env='KEY')
    self.assertLen(self.server.seen, 1)
    self.assertIn(f'(status {status}: no) in 1 tries', message)
    self.assertNotIn('secret', message)

  @parameterized.parameters(301, 302, 303, 307, 308)
  def test_no_redirect_is_followed(self, status):
    message = self._error(
      lambda *_: (status, {'Location': f'{self.url}/elsewhere'}, b'moved')
    )
    self.assertLen(self.server.seen, 1)
    self.assertIn(f'status {status}', message)

  @parameterized.parameters(
    b'<html>',
    b'',
    b'{}',
    b'{"choices": []}',
    b'{"choices": [{"message": {"content": ["x"]}}]}',
    b'[1]',
    b'[' * 100_000,
  )
  def test_other_answers_are_shown(self, body):
    message = self._error(lambda *_: (200, {}, body))
    self.assertIn('something else than a chat completion', message)
    self.assertIn(body[:200].decode(), message)

  def test_null_is_an_empty_reply(self):
    self.assertEqual(
      self._complete(lambda *_: (200, {}, _completion(None))), ['']
    )

  def test_a_reply_in_chunks_is_put_together(self):
    body = _completion('x' * 100)
    pieces = [b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n']
    for part in (body[:7], body[7:]):
      pieces.append(b'%x\r\n%s\r\n' % (len(part), part))
    pieces.append(b'0\r\n\r\n')
    self.assertEqual(self._complete(lambda *_: (None, {}, pieces)), ['x' * 100])

  @parameterized.parameters(
    b'',
    b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"choices": [',
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{"choi',
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{"\r\n',
    b'HTTP/1.1 500 Oh\r\nContent-Length: 100\r\n\r\nout of',
    b'HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nout of',
  )
  def test_after_a_broken_answer_it_is_asked_again(self, half):
    found = self._complete(
      lambda turn, _: (
        (200, {}, _completion('x')) if turn > 2 else (None, {}, [half])
      )
    )
    self.assertEqual(found, ['x'])
    self.assertLen(self.server.seen, 3)

  def test_a_server_that_never_ends_is_given_up(self):
    head = b'HTTP/1.1 200 OK\r\n\r\n'
    with mock.patch.object(openai_client, '_TRIES', 1):
      # Each piece comes in time.
      message = self._error(
        lambda *_: (None, {}, [head, *[b' '] * 100]), timeout_s=0.3
      )
      self.assertIn('(timed out)', message)
      with mock.patch.object(openai_client, '_MAX_BYTES', 1 << 20):
        message = self._error(lambda *_: (200, {}, b' ' * (2 << 20)))
      self.assertIn('(over 1 MiB)', message)

  def test_after_a_failure_for_good_no_other_is_made_again(self):
    def script(turn, request):
      if request['messages'][0]['content'] == 'bad':
        return 401, {}, b'no'
      return 503, {}, b'busy'

    first = threading.Event()
    self.waits.side_effect = lambda _: first.wait(10)
    original = openai_client._shown

    def shown(error):
      if error.code == 401:
        threading.Timer(0.2, first.set).start()
      return original(error)

    with mock.patch.object(openai_client, '_shown', shown):
      message = self._error(script, ['busy', 'bad', *['busy'] * 20])
    self.assertIn('status 401', message)
    # 8 at a time, one of them refused; the others are tried once more at most.
    self.assertLessEqual(len(self.server.seen), 1 + 2 * 8)

  @parameterized.parameters('se\ncret', 'secret\u00e9', 'se\x00cret')
  def test_a_key_that_no_header_can_hold_is_told_and_not_shown(self, key):
    with mock.patch.object(openai_client.os, 'environ', {'KEY': key}):
      message = self._error(None, key_env='KEY')
    self.assertIn('variable KEY must be a key', message)
    self.assertNotIn('cret', message)

  def test_an_address_with_a_password_is_told_and_not_shown(self):
    self.url = 'http://me:secret@127.0.0.1/v1'
    message = self._error(None)
    self.assertIn('give the key by --key_env', message)
    self.assertNotIn('secret', message)

  def test_nobody_listens(self):
    self.server.shutdown()
    self.server.server_close()
    message = self._error(None)
    self.assertIn('refused', message)
    self.assertEqual(self.waits.call_count, 4)

  def test_a_slow_server_is_given_up(self):
    release = threading.Event()
    self.addCleanup(release.set)

    def slow(turn, request):
      release.wait(10)
      return 200, {}, _completion('x')

    with mock.patch.object(openai_client, '_TRIES', 1):
      message = self._error(slow, timeout_s=0.2)
    self.assertIn('timed out', message)

  @parameterized.parameters('', '127.0.0.1:8000', 'file:///etc/passwd', 'http:')
  def test_other_addresses_are_refused(self, url):
    self.url = url
    self.assertIn('must be an http(s) address', self._error(None))

  def test_a_full_address_stays(self):
    self.url += '/chat/completions/'
    self._complete(lambda *_: (200, {}, _completion('x')))
    self.assertEqual(self.server.seen[0][0], '/v1/chat/completions')


if __name__ == '__main__':
  absltest.main()

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
  """Answers as `server.script` says: (status, headers, body) by turn."""

  def do_POST(self):
    body = self.rfile.read(int(self.headers['Content-Length']))
    request = json.loads(body)
    with self.server.lock:
      self.server.seen.append((self.path, dict(self.headers), request))
      status, headers, body = self.server.script(len(self.server.seen), request)
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *args):
    pass


class ClientTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
    self.server.seen, self.server.lock = [], threading.Lock()
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

  def test_no_redirect_is_followed(self):
    message = self._error(
      lambda *_: (302, {'Location': f'{self.url}/elsewhere'}, b'moved')
    )
    self.assertLen(self.server.seen, 1)
    self.assertIn('status 302', message)

  @parameterized.parameters(b'<html>', b'{}', b'{"choices": []}', b'[1]')
  def test_other_answers_are_shown(self, body):
    message = self._error(lambda *_: (200, {}, body))
    self.assertIn('something else than a chat completion', message)
    self.assertIn(body.decode(), message)

  def test_null_is_an_empty_reply(self):
    self.assertEqual(
      self._complete(lambda *_: (200, {}, _completion(None))), ['']
    )

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

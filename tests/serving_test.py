"""Tests of `training.serving`: the server as a user starts and stops it."""

import contextlib
import functools
import io
import os
import pathlib
import re
import signal
import sys
import threading
import time
from unittest import mock

from absl.testing import absltest, parameterized

import tiny_run
from dapo_jax.sampling import limits as limits_lib
from dapo_jax.sampling import token_choice
from dapo_jax.training import completion, serving

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DOC = (_ROOT / 'docs/serving.md').read_text()
_SIZES = serving.Sizes(slots=2, prompt_tokens=8, response_tokens=8)
_SOON_S = 60


def _serve(use, *, end=signal.SIGINT, **changes):
  """Serves until a thread has called `use` with the address.

  Returns:
    What was printed.
  """
  tiny_run.model_folder()
  printed, failures = io.StringIO(), []
  ended = threading.Event()

  def client():
    try:
      deadline = time.monotonic() + _SOON_S
      while not (found := re.search(r' on (\S+), ', printed.getvalue())):
        assert time.monotonic() < deadline, printed.getvalue()
        assert not ended.is_set()
        time.sleep(0.01)
      use(found[1])
    except BaseException as error:
      failures.append(error)
    if not ended.is_set():
      os.kill(os.getpid(), end)

  thread = threading.Thread(target=client)
  thread.start()
  with contextlib.redirect_stdout(printed):
    try:
      _run(**changes)
    finally:
      ended.set()
      thread.join()
  for failure in failures:
    raise failure
  return printed.getvalue()


def _run(**changes):
  arguments = dict(
    host='127.0.0.1',
    port=0,
    template='plain',
    temperature=0.0,
    seed=0,
    sizes=_SIZES,
  )
  serving.run(tiny_run.model_folder(), **{**arguments, **changes})


class ServingTest(parameterized.TestCase):
  def test_the_client_of_the_docs_prints_what_the_model_says(self):
    code = re.search(r'^```python\n(.*?)^```', _DOC, re.DOTALL | re.MULTILINE)
    answer = io.StringIO()

    def client(address):
      # Standard output is the server's.
      write = functools.partial(print, file=answer)
      with mock.patch.object(sys, 'argv', ['client.py', address, '3+4=?']):
        exec(code[1], {'print': write})

    printed = _serve(client)
    with contextlib.redirect_stdout(io.StringIO()) as expected:
      completion.run(
        tiny_run.model_folder(),
        '3+4=?',
        template='plain',
        choice=token_choice.Choice(temperature=0.0),
        max_tokens=8,
        seed=0,
      )
    self.assertEqual(answer.getvalue(), expected.getvalue())
    self.assertRegex(
      printed, r'\Aserving \S+ on 127\.0\.0\.1:\d+, Ctrl-C stops\n\Z'
    )

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  def test_a_signal_ends_it(self, number):
    before = signal.getsignal(number)
    _serve(lambda _: None, end=number)
    self.assertEqual(signal.getsignal(number), before)
    self.assertNotIn('grpc server', {t.name for t in threading.enumerate()})

  @parameterized.parameters(
    (
      dict(sizes=_SIZES._replace(prompt_tokens=32761)),
      r'prompt of 32761 and a response of 8 .*\(32768\).*--max_prompt_tokens',
    ),
    (
      dict(sizes=_SIZES._replace(prompt_tokens=None, response_tokens=32768)),
      r'prompt of 1 and a response of 32768 .*\(32768\).*--max_tokens',
    ),
    (dict(template='chat'), 'chat'),
    (dict(host='192.0.2.1'), r"can't listen on 192\.0\.2\.1:0"),
  )
  def test_what_cannot_be_served_is_said_before_it_listens(self, change, why):
    with self.assertRaisesRegex(ValueError, why):
      _run(**change)


class LimitsTest(parameterized.TestCase):
  @parameterized.parameters(
    (None, 2000, 1024),  # of 1744 that are left
    (None, 1000, 744),  # all that is left
    (16, 2000, 16),
  )
  def test_the_prompt_has_what_the_context_leaves(self, asked, context, got):
    sizes = serving.Sizes(4, asked, 256)
    self.assertEqual(
      serving._limits(sizes, context_tokens=context),
      limits_lib.Limits(4, got, 256),
    )

  def test_no_prompt_is_longer_than_the_engine_takes(self):
    with self.assertRaisesRegex(ValueError, r'40000 .*\(32768\)'):
      serving._limits(serving.Sizes(4, 40000, 8), context_tokens=99999)


if __name__ == '__main__':
  absltest.main()

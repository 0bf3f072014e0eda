"""Tests of `parallel.address`."""

import socket
from unittest import mock

from absl.testing import absltest, parameterized

from dapo_jax.parallel import address


class _Clock:
  """Stands in for the module `time`."""

  def __init__(self):
    self.now_s = 0.0

  def monotonic(self) -> float:
    return self.now_s

  def sleep(self, seconds: float) -> None:
    self.now_s += seconds


class CheckTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.clock = _Clock()
    self.enterContext(mock.patch.object(address, 'time', self.clock))

  @parameterized.parameters('127.0.0.1', 'localhost')
  def test_a_free_port_of_this_machine_stays_free(self, host):
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    for _ in range(2):
      address.check(f'{host}:{port}')
    with socket.socket() as again:
      again.bind(('127.0.0.1', port))

  @parameterized.parameters(False, True)
  def test_one_that_another_program_has_is_refused(self, shares):
    with socket.socket() as taken:
      if shares:
        # As the services of jax do: a second one would get in as well.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      taken.bind(('127.0.0.1', 0))
      taken.listen()
      port = taken.getsockname()[1]
      with self.assertRaisesRegex(
        ValueError, rf'--coordinator \(127.0.0.1:{port}\): .* is in use, by'
      ):
        address.check(f'127.0.0.1:{port}')

  def test_another_machine_is_refused(self):
    # An address for documentation: no machine has it.
    with self.assertRaisesRegex(
      ValueError, r'\(192.0.2.7:8476\) must be .* machine of the first process'
    ):
      address.check('192.0.2.7:8476')

  def test_a_name_that_is_none_is_refused_after_a_while(self):
    with self.assertRaisesRegex(ValueError, "there is no host 'host.invalid'"):
      address.check('host.invalid:8476')
    self.assertBetween(self.clock.now_s, 30.0, 32.0)

  def test_one_that_is_known_late_is_not(self):
    known = socket.getaddrinfo('127.0.0.1', 0, type=socket.SOCK_STREAM)
    found = [socket.gaierror('not yet'), socket.gaierror('not yet'), known]
    with mock.patch.object(socket, 'getaddrinfo', side_effect=found):
      address.check('first:0')
    self.assertEqual(self.clock.now_s, 2.0)


if __name__ == '__main__':
  absltest.main()

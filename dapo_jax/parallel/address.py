"""Whether the first process of a run can be found at its address.

What jax starts there crashes at a name that is none; and at a port that
another run has it succeeds, and the processes of both runs get mixed up.
"""

import errno
import socket
import time

# A cluster may know a name only some time after the machine has it, [s].
_NAMED_S = 30.0


def check(address: str) -> None:
  """Returns when this machine has the address and its port is free.

  Args:
    address: HOST:PORT.

  Raises:
    ValueError: it has not, or another program has the port.
  """
  host, _, port = address.rpartition(':')
  faults = []
  for family, kind, protocol, _, place in _places(host.strip('[]'), int(port)):
    try:
      with socket.socket(family, kind, protocol) as one:
        # What the run before has left of its connections is no hindrance.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(place)
    except OSError as error:
      faults.append(error)
      if error.errno == errno.EADDRINUSE:
        raise ValueError(
          f'--coordinator ({address}): the port is in use, by another run say; '
          'end that, or name another port for all processes'
        ) from error
    else:
      return
  raise ValueError(
    f'--coordinator ({address}) must be an address of the machine of the first '
    f'process ({faults[0]}); change it for all processes'
  )


def _places(host: str, port: int) -> list[tuple]:
  """Returns where a name leads to, once it is known."""
  until_s = time.monotonic() + _NAMED_S
  while True:
    try:
      return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
      if time.monotonic() > until_s:
        raise ValueError(
          f'--coordinator: there is no host {host!r} ({error}); it must be '
          'that of the first process'
        ) from error
      time.sleep(1.0)

"""Loopback ports that stay ours while the server that listens on them is down."""

import random
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

HOST = "127.0.0.1"

# A cluster's bus listens this far above its node's port.
BUS_OFFSET = 10_000

# Both a port and its bus port stay below the range Linux and macOS take client ports from: there,
# a client that keeps reconnecting to a dead server can be given that very port and reach itself.
_CANDIDATES = range(10_000, 32_768 - BUS_OFFSET)

# Not the shared generator: a test that seeds it would have every worker try the same ports.
_random = random.SystemRandom()


@contextmanager
def reserved_port(offsets: Sequence[int] = (0,)) -> Iterator[int]:
    """Yield a free port (each of port + offsets is free), kept from other processes until exit.

    On Linux the reservation is a bound socket that never listens: a server that sets SO_REUSEADDR
    can still listen on the port, connecting while it does not is refused, and nobody else's probe
    can bind it. Elsewhere the kernel would refuse our server too, so the port is merely free now.
    """
    for port in _random.sample(_CANDIDATES, len(_CANDIDATES)):
        with ExitStack() as held:
            try:
                for offset in offsets:
                    probe = held.enter_context(socket.socket())
                    # SO_REUSEADDR only after binding: with it, this would succeed on a port that
                    # another process has reserved the same way.
                    probe.bind((HOST, port + offset))
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except OSError:
                continue
            if sys.platform != "linux":
                held.close()
            yield port
            return
    raise OSError("no free loopback port")

"""The connections of a Redis backend: is one left behind, or does one give another's answer?"""

import gc
import itertools
import time
from collections.abc import Iterator
from typing import Any

import redis

from weakincentives.contrib.mailbox.redis.client import script_client
from weakincentives.contrib.mailbox.redis.connection import PooledConnection

__all__ = ["Connections"]

PATIENCE = 60.0


class Connections:
    """Looks at every connection that a backend keeps, and at what the server says of them."""

    def __init__(self, url: str, backend: Any) -> None:
        self._client = script_client(backend._client)
        self._server: Any = redis.Redis.from_url(url)
        self._numbers = itertools.count()

    def trouble(self) -> Iterator[str]:
        """Say what is wrong, once the server has heard of every connection that was closed.

        It has then also done all that was sent on those, so that it can be judged.
        """
        ends = time.monotonic() + PATIENCE
        for attempt in itertools.count():
            if (there := self._at_the_server()) <= len(self._idle()):
                break
            if attempt == 10:
                gc.collect()  # an interrupt leaves frames behind that hold on to a connection
            if time.monotonic() > ends:
                yield f"{there} connections at the server, {len(self._idle())} of them kept"
                break
        for held in self._idle():
            yield from self._out_of_step(held)

    def close(self) -> None:
        self._server.close()

    def _idle(self) -> list[PooledConnection]:
        return [held for node in self._client.pool.nodes.values() for held in node.idle]

    def _at_the_server(self) -> int:
        return len(self._server.client_list()) - 1

    def _out_of_step(self, held: PooledConnection) -> Iterator[str]:
        """Ask for something that no other command answers."""
        connection, token = held.connection, f"token-{next(self._numbers)}"
        connection.send_command("ECHO", token)
        answers = [connection.read_response() for _ in range(held.owed + 1)]
        held.owed = 0
        if answers[-1] != token.encode():
            connection.disconnect()
            yield f"a connection gives the answer to another command: {answers[-1]!r:.100}"

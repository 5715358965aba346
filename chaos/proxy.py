"""A TCP proxy on loopback that breaks things when it is told to."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, Self

__all__ = ["Direction", "Proxy"]

HOST = "127.0.0.1"
CHUNK = 65_536
RESET = struct.pack("ii", 1, 0)

Direction = Literal["request", "reply"]


class Proxy:
    """Forwards to a server, and counts; faults can be changed at any time."""

    def __init__(self, port: int) -> None:
        self._target = (HOST, port)
        self._listener = socket.create_server((HOST, 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.delay = 0.0
        """Seconds that each piece of data is held back, in either direction."""
        self.rate: float | None = None
        """Bytes a second, in each direction of each connection."""
        self._lock = threading.Lock()
        self._passing = threading.Event()
        self._passing.set()
        self._passed: dict[Direction, int] = {"request": 0, "reply": 0}
        self._cut: tuple[Direction, int] | None = None
        self._reset = False
        self.cuts = 0
        self._links: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, direction: Direction, at: int, *, reset: bool = False) -> None:
        """Let ``at`` more bytes pass in a direction, then end that connection, once.

        With ``reset`` by an RST rather than a FIN.
        """
        with self._lock:
            self._passed = {"request": 0, "reply": 0}
            self._cut, self._reset = (direction, at), reset

    def drop_reply(self) -> None:
        """End the connection when the server answers, and keep the answer from the client."""
        self.cut("reply", 0)

    def count(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._passed = {"request": 0, "reply": 0}
            self._cut = None

    def passed(self, direction: Direction) -> int:
        """Return how many bytes passed since the last cut or count."""
        return self._passed[direction]

    @property
    def armed(self) -> bool:
        """Whether a cut has been asked for and has not happened."""
        return self._cut is not None

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """Take everything and pass on nothing."""
        self._passing.clear()
        try:
            yield
        finally:
            self._passing.set()

    def cut_all(self) -> None:
        """End every connection."""
        with self._lock:
            links = list(self._links)
        for link in links:
            _shut(link)

    def close(self) -> None:
        self._closed = True
        self._passing.set()
        _shut(self._listener)
        self._listener.close()
        self.cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for link in (client, server):
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._links |= {client, server}
            ends = threading.Semaphore(0)
            for source, target, direction in (
                (client, server, "request"),
                (server, client, "reply"),
            ):
                threading.Thread(
                    target=self._pump, args=(source, target, direction, ends), daemon=True
                ).start()

    def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        direction: Direction,
        ends: threading.Semaphore,
    ) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._passing.wait()
                if self.delay:
                    time.sleep(self.delay)
                allowed = self._allowed(direction, len(data))
                if allowed < len(data):
                    target.sendall(data[:allowed])
                    if self._reset:
                        client = source if direction == "request" else target
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    break
                if self.rate is not None:
                    time.sleep(len(data) / self.rate)
                target.sendall(data)
        _shut(source)
        _shut(target)
        if ends.acquire(blocking=False):  # the other pump has ended before
            with self._lock:
                self._links -= {source, target}
            source.close()
            target.close()
        else:
            ends.release()

    def _allowed(self, direction: Direction, length: int) -> int:
        """How many of these bytes pass; fewer than there are ends the connection."""
        with self._lock:
            if self._cut is not None and self._cut[0] == direction:
                left = self._cut[1] - self._passed[direction]
                if left < length:
                    self._cut = None
                    self.cuts += 1
                    self._passed[direction] += left
                    return left
            self._passed[direction] += length
            return length


def _shut(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)

"""A TCP proxy on loopback that breaks things when it is told to."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Self

from testkit.ports import HOST

__all__ = ["Direction", "Proxy"]

CHUNK = 65_536
RESET = struct.pack("ii", 1, 0)

Direction = Literal["request", "reply"]


@dataclass(eq=False)
class _Link:
    """A connection of a client, and the one to the server that serves it."""

    client: socket.socket
    server: socket.socket
    doomed: bool = False
    """Whether the next answer is lost."""
    half_ended: bool = False

    def ends(self, direction: Direction) -> tuple[socket.socket, socket.socket]:
        """Return where data of a direction comes from, and where it goes to."""
        ends = self.client, self.server
        return ends if direction == "request" else ends[::-1]

    def shut(self) -> None:
        _shut(self.client)
        _shut(self.server)


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
        self._lose: bytes | None = None
        self.lost = 0
        """How many answers were lost by `lose_answer`."""
        self._links: set[_Link] = set()
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

    def lose_answer(self, request: bytes) -> None:
        """End the connection on which a request has these bytes, once the server has answered."""
        with self._lock:
            self._lose = request

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
            link.shut()

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
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            with self._lock:
                self._links.add(link)
            for direction in ("request", "reply"):
                threading.Thread(target=self._pump, args=(link, direction), daemon=True).start()

    def _pump(self, link: _Link, direction: Direction) -> None:
        source, target = link.ends(direction)
        with suppress(OSError):
            while data := source.recv(CHUNK):
                self._passing.wait()
                if self.delay:
                    time.sleep(self.delay)
                if self._loses(link, direction, data):
                    break
                allowed = self._allowed(direction, len(data))
                if allowed < len(data):
                    target.sendall(data[:allowed])
                    if self._reset:
                        link.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    break
                if self.rate is not None:
                    time.sleep(len(data) / self.rate)
                target.sendall(data)
        link.shut()
        self._ended(link)

    def _ended(self, link: _Link) -> None:
        """Close the sockets when both pumps have ended: before, the other one may be using them."""
        with self._lock:
            if not link.half_ended:
                link.half_ended = True
                return
            self._links.discard(link)
        link.client.close()
        link.server.close()

    def _loses(self, link: _Link, direction: Direction, data: bytes) -> bool:
        """Whether this is an answer to lose: the server has done what it was asked."""
        with self._lock:
            if direction == "reply":
                self.lost += link.doomed
                return link.doomed
            if self._lose is not None and self._lose in data:
                self._lose, link.doomed = None, True
            return False

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

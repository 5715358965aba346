"""A network between a client and a server that loses what it is told to lose."""

import socket
import threading
from contextlib import suppress
from typing import Self

HOST = "127.0.0.1"


class Proxy:
    """Forwards bytes; `lose_answer` cuts a connection after a request reached the server."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._lose: bytes | None = None
        self._sockets: set[socket.socket] = set()
        self.lost = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer(self, request: bytes) -> None:
        """Lose the answer to the next request that contains these bytes."""
        with self._lock:
            self._lose = request

    def cut(self) -> None:
        """Cut every connection."""
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.cut()

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
            server = socket.create_connection((HOST, self._target))
            with self._lock:
                self._sockets |= {client, server}
            doomed = threading.Event()
            for source, sink, watch in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, watch, doomed), daemon=True
                ).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, watch: bool, doomed: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if watch:
                    with self._lock:
                        if self._lose is not None and self._lose in data:
                            self._lose = None
                            doomed.set()
                elif doomed.is_set():
                    self.lost += 1
                    break  # the server has answered, so it has done what it was told
                sink.sendall(data)
        with suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets -= {source, sink}
        source.close()

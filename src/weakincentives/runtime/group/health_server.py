"""Serves health probes over HTTP, in one thread that a slow client cannot block."""

import asyncio
import importlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from weakincentives.logs import get_logger

from .readiness import ProbeReport

__all__ = ["HealthServer", "Metrics", "prometheus_metrics"]

logger = get_logger(__name__)

Metrics = Callable[[], tuple[str, bytes] | None]
"""Returns a content type and a body, or None if there are no metrics."""

MAX_HEAD = 8 * 1024
MAX_CLIENTS = 64
CLIENT_TIMEOUT = 5.0
"""Seconds for a whole exchange, from accept to close, so that a slow client is cut off."""
PROBE_TIMEOUT = 2.0
"""Seconds after which a probe that has not answered is reported as unavailable."""
# At most 500 connections a second; the kernel's backlog holds the rest, away from the GIL.
ACCEPT_PAUSE = 0.002
BACKLOG = 128
ACCEPT_RETRY = 1.0
# Closing a socket with unread data sends a reset, and the client might lose our response. So the
# rest of a request is read first, up to these limits.
DRAIN_TIMEOUT = 0.2
DRAIN_BYTES = 256 * 1024

JSON = "application/json"
PATHS = ("/health/live", "/health/ready", "/metrics")


def prometheus_metrics() -> tuple[str, bytes] | None:
    """Return the metrics of prometheus_client, or None if that package is not installed."""
    try:
        client: Any = importlib.import_module("prometheus_client")
    except ImportError:
        return None
    return client.CONTENT_TYPE_LATEST, client.generate_latest()


@dataclass(frozen=True, slots=True)
class HTTPResponse:
    """An HTTP response."""

    status: HTTPStatus
    content: bytes
    content_type: str = JSON
    headers: tuple[str, ...] = ()

    def encode(self, *, body: bool = True) -> bytes:
        """Return the response as HTTP/1.1 bytes; ``body=False`` is for HEAD requests."""
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.content)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
            *self.headers,
            "",
            "",
        )
        return "\r\n".join(lines).encode() + (self.content if body else b"")


def _as_json(status: HTTPStatus, body: dict[str, Any], *headers: str) -> HTTPResponse:
    return HTTPResponse(status, json.dumps(body).encode() + b"\n", headers=headers)


def _refusal(status: HTTPStatus, why: str, *headers: str) -> HTTPResponse:
    return _as_json(status, {"status": "error", "reasons": [why]}, *headers)


def _report_response(report: ProbeReport) -> HTTPResponse:
    return _as_json(HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE, report.body)


def _metrics_response(metrics: tuple[str, bytes] | None) -> HTTPResponse:
    if metrics is None:
        return _refusal(
            HTTPStatus.NOT_FOUND,
            "metrics need the package prometheus-client: pip install prometheus-client",
        )
    return HTTPResponse(HTTPStatus.OK, metrics[1], metrics[0])


def parse_request(head: bytes) -> tuple[str, str] | HTTPResponse:
    """Return the method and the path of a request, or the response that refuses it."""
    line = head.split(b"\n", 1)[0].rstrip(b"\r")
    try:
        method, target, version = line.decode("ascii").split(" ")
    except ValueError:
        return _refusal(HTTPStatus.BAD_REQUEST, "this is not an HTTP request")
    if not version.startswith("HTTP/1."):
        return _refusal(HTTPStatus.BAD_REQUEST, "only HTTP/1.0 and HTTP/1.1 are supported")
    if method not in ("GET", "HEAD"):
        return _refusal(
            HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are supported", "Allow: GET, HEAD"
        )
    path = target.split("?", 1)[0]
    if path not in PATHS:
        return _refusal(HTTPStatus.NOT_FOUND, f"the paths are {', '.join(PATHS)}")
    return method, path


class HealthServer:
    """Serves ``/health/live``, ``/health/ready`` and ``/metrics``.

    ``live`` is called in the server's own thread and must not block. ``ready`` and ``metrics``
    each run in a thread, one call at a time; requests that arrive meanwhile share its result.
    The number, size, duration and rate of connections are limited; when there are too many, the
    oldest is closed.
    """

    def __init__(
        self,
        live: Callable[[], ProbeReport],
        ready: Callable[[], ProbeReport],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        metrics: Metrics = prometheus_metrics,
    ) -> None:
        self._live = live
        self._calls: dict[str, Callable[[], HTTPResponse]] = {
            "/health/ready": lambda: _report_response(ready()),
            "/metrics": lambda: _metrics_response(metrics()),
        }
        self._wanted = host, port
        self._lock = threading.Lock()
        self._serving: RunningServer | None = None

    def start(self) -> None:
        """Bind the port and start serving; a second start changes nothing."""
        with self._lock:
            if self._serving is None:
                self._serving = RunningServer(_bind(*self._wanted), self._live, self._calls)

    def stop(self) -> None:
        """Stop serving and free the port; a second stop changes nothing."""
        with self._lock:
            serving, self._serving = self._serving, None
            if serving is not None:
                serving.end()

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port while it serves; for port 0, the port that the system chose."""
        serving = self._serving
        return None if serving is None else serving.address


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise OSError(
            error.errno,
            f"the health server cannot listen on {host} port {port}: {error.strerror or error}; "
            f"choose another port, or 0 for any",
        ) from error
    listener.setblocking(False)
    return listener


class RunningServer:
    """A started server: its listening socket, its event loop and its thread."""

    def __init__(
        self,
        listener: socket.socket,
        live: Callable[[], ProbeReport],
        calls: dict[str, Callable[[], HTTPResponse]],
    ) -> None:
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._listener = listener
        self._live = live
        self._calls = calls
        self._clients: dict[asyncio.Task[None], None] = {}
        self._answers: dict[str, asyncio.Future[HTTPResponse]] = {}
        self._loop = asyncio.SelectorEventLoop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="health-server", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Close all connections and wait for the thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        # Bounded, because a ``live`` that blocks although it must not would block the shutdown.
        self._thread.join(PROBE_TIMEOUT)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._listener.close()
            self._loop.close()

    async def _serve(self) -> None:
        self._listen()
        await self._stop.wait()
        self._loop.remove_reader(self._listener)
        clients = list(self._clients)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    def _listen(self) -> None:
        if not self._stop.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        # Not loop.sock_accept(): if it is cancelled, it may lose an accepted connection.
        pause = ACCEPT_PAUSE
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has gone
        except OSError as error:
            # Usually there are no file descriptors left; wait, because the loops need them more.
            logger.warning("the health server cannot accept: %s", error)
            pause = ACCEPT_RETRY
        else:
            self._start_client(connection)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(pause, self._listen)

    def _start_client(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if len(self._clients) >= MAX_CLIENTS:
            next(iter(self._clients)).cancel()
        client = self._loop.create_task(self._serve_client(connection))
        self._clients[client] = None
        client.add_done_callback(partial(self._end_client, connection))

    async def _serve_client(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT):
                await self._exchange(connection)
        except OSError:
            pass  # a slow or broken client; TimeoutError is an OSError too

    def _end_client(self, connection: socket.socket, client: asyncio.Task[None]) -> None:
        # Not in the task, because a task that is cancelled before it starts runs no code.
        connection.close()
        del self._clients[client]
        if not client.cancelled() and (error := client.exception()) is not None:
            logger.error("the health server failed to answer", exc_info=error)

    async def _exchange(self, connection: socket.socket) -> None:
        head = await self._read_head(connection)
        if not head:
            return
        if isinstance(head, HTTPResponse):
            answer = head.encode()
        else:
            request = parse_request(head)
            if isinstance(request, HTTPResponse):
                answer = request.encode()
            else:
                method, path = request
                answer = (await self._respond(path)).encode(body=method != "HEAD")
        await self._loop.sock_sendall(connection, answer)
        connection.shutdown(socket.SHUT_WR)
        await self._drain(connection)

    async def _read_head(self, connection: socket.socket) -> bytes | HTTPResponse:
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            chunk = await self._loop.sock_recv(connection, 4096)
            if not chunk:
                return (
                    b""
                    if not head
                    else _refusal(HTTPStatus.BAD_REQUEST, "the request is incomplete")
                )
            head += chunk
            if len(head) > MAX_HEAD:
                return _refusal(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"request line and headers must not exceed {MAX_HEAD} bytes",
                )
        return head

    async def _drain(self, connection: socket.socket) -> None:
        async with asyncio.timeout(DRAIN_TIMEOUT):
            await self._read_rest(connection)

    async def _read_rest(self, connection: socket.socket) -> None:
        for _ in range(DRAIN_BYTES // 4096):
            if not await self._loop.sock_recv(connection, 4096):
                return

    async def _respond(self, path: str) -> HTTPResponse:
        if path == "/health/live":
            return _safely(path, lambda: _report_response(self._live()))
        try:
            return await asyncio.wait_for(asyncio.shield(self._answer(path)), PROBE_TIMEOUT)
        except TimeoutError:
            return _refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{path} gave no answer within {PROBE_TIMEOUT:g} s",
            )

    def _answer(self, path: str) -> asyncio.Future[HTTPResponse]:
        answer = self._answers.get(path)
        if answer is None:
            answer = self._loop.create_future()
            self._answers[path] = answer
            call = threading.Thread(target=self._call, args=(path,), name=path, daemon=True)
            try:
                call.start()
            except RuntimeError as error:
                self._finish(path, _refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error)))
        return answer

    def _call(self, path: str) -> None:
        response = _safely(path, self._calls[path])
        try:
            self._loop.call_soon_threadsafe(self._finish, path, response)
        except RuntimeError:
            pass  # the server has been stopped

    def _finish(self, path: str, response: HTTPResponse) -> None:
        self._answers.pop(path).set_result(response)


def _safely(path: str, call: Callable[[], HTTPResponse]) -> HTTPResponse:
    try:
        return call()
    except Exception as error:
        logger.exception("%s failed", path)
        return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"failed with {type(error).__name__}")

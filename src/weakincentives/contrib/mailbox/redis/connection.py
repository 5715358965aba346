"""Sends and reads bytes on one connection: of `redis` in a thread or an event loop, or of
`redis.asyncio`.

Nothing is decided here. All transports have the same methods, so that the rest is written once.
"""

import _thread
import asyncio
import math
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from weakincentives.runtime.mailbox.seam.driver import start_unlisted
from weakincentives.runtime.mailbox.seam.step_threads import call_in_thread

from .redis_py import close_now, socket_of

__all__ = [
    "AsyncTransport",
    "Interrupt",
    "LoopTransport",
    "PooledConnection",
    "ThreadTransport",
    "Transport",
]

V = TypeVar("V")

Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Interrupt:
    """A flag that ends waits; any thread can set it, and it stays set."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may close a mailbox whose wait it interrupts.
        self._lock = threading.RLock()
        self._wakers: list[Callable[[], object]] = []
        self.is_set = False

    def set(self) -> None:
        """End all current and later waits."""
        with self._lock:
            self.is_set = True
            for wake in self._wakers:
                wake()

    def enter(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` when the flag is set; at once if it is set already."""
        with self._lock:
            self._wakers.append(wake)
            if self.is_set:
                wake()

    def leave(self, wake: Callable[[], object]) -> None:
        """Forget ``wake``."""
        with self._lock:
            self._wakers.remove(wake)


class PooledConnection:
    """A connection of the pool: where it may be used, and how many answers are still unread."""

    __slots__ = ("client_id", "connection", "generation", "owed", "place", "reading", "server")

    def __init__(self, connection: Any, generation: int, place: object, server: object) -> None:
        self.connection = connection
        self.generation = generation
        self.place = place
        self.server = server
        self.client_id: int | None = None
        self.owed = 0
        """The number of answers that were not read yet."""
        self.reading: asyncio.Future[list[Any]] | None = None


class Transport(Protocol):
    """How to use a connection; after a transport error the connection must be dropped."""

    def place(self) -> object:
        """Where a connection may be used: one event loop, or any thread."""
        ...

    async def connect(self, pooled: PooledConnection) -> None:
        """Connect and authenticate."""
        ...

    async def exchange(self, pooled: PooledConnection, packed: bytes, count: int = 1) -> list[Any]:
        """Send packed commands in one write and return their answers, the server's errors too."""
        ...

    async def await_answers(
        self, pooled: PooledConnection, count: int, seconds: float, interrupt: Interrupt | None
    ) -> list[Any] | None:
        """Return the answers to earlier commands; None if interrupted before the first one."""
        ...

    async def send(self, pooled: PooledConnection, packed: bytes) -> None:
        """Send commands in one write; their answers are awaited later."""
        ...

    async def pause(self, seconds: float, interrupt: Interrupt | None) -> None:
        """Do nothing for a while, or until interrupted."""
        ...

    def drop(self, pooled: PooledConnection) -> None:
        """Close without waiting."""
        ...


class ThreadTransport:
    """Connections of `redis`, used by a thread that may block."""

    def place(self) -> object:
        """Any thread will do."""
        return None

    async def connect(self, pooled: PooledConnection) -> None:
        """Connect and authenticate."""
        pooled.connection.connect()

    async def exchange(self, pooled: PooledConnection, packed: bytes, count: int = 1) -> list[Any]:
        """Send commands in one write and read their answers."""
        return _exchange(pooled.connection, packed, count)

    async def send(self, pooled: PooledConnection, packed: bytes) -> None:
        """Send commands in one write."""
        pooled.connection.send_packed_command([packed])

    async def await_answers(
        self, pooled: PooledConnection, count: int, seconds: float, interrupt: Interrupt | None
    ) -> list[Any] | None:
        """Wait until the connection can be read, then read."""
        sock = socket_of(pooled.connection)
        if not _has_buffered(sock) and not _wait_readable(sock, seconds, interrupt):
            _check_interrupted(interrupt)
            return None
        return _read(pooled.connection, count)

    async def pause(self, seconds: float, interrupt: Interrupt | None) -> None:
        """Do nothing for a while, or until interrupted."""
        # Without a socket: running out of descriptors may be the very fault that is waited out.
        asleep = _thread.allocate_lock()
        asleep.acquire()
        wake = partial(_release, asleep)
        interrupt = interrupt or Interrupt()
        interrupt.enter(wake)
        try:
            asleep.acquire(timeout=seconds)
        finally:
            interrupt.leave(wake)

    def drop(self, pooled: PooledConnection) -> None:
        """Close without waiting."""
        pooled.connection.disconnect()


class LoopTransport:
    """Connections of `redis` in an event loop: the loop waits for data, and a thread reads it."""

    def place(self) -> object:
        """Any thread will do."""
        return None

    async def connect(self, pooled: PooledConnection) -> None:
        """Connect and authenticate."""
        await _in_thread(pooled, pooled.connection.connect)

    async def exchange(self, pooled: PooledConnection, packed: bytes, count: int = 1) -> list[Any]:
        """Send commands in one write and read their answers."""
        return await _in_thread(pooled, _exchange, pooled.connection, packed, count)

    async def send(self, pooled: PooledConnection, packed: bytes) -> None:
        """Send commands in one write."""
        await _in_thread(pooled, pooled.connection.send_packed_command, [packed])

    async def await_answers(
        self, pooled: PooledConnection, count: int, seconds: float, interrupt: Interrupt | None
    ) -> list[Any] | None:
        """Wait in the event loop until the connection can be read; then read."""
        sock = socket_of(pooled.connection)
        if not _has_buffered(sock) and not await _watch_readable(sock, seconds, interrupt):
            _check_interrupted(interrupt)
            return None
        return await _in_thread(pooled, _read, pooled.connection, count)

    async def pause(self, seconds: float, interrupt: Interrupt | None) -> None:
        """Do nothing for a while, or until interrupted."""
        await _wait_for([], seconds, interrupt)

    def drop(self, pooled: PooledConnection) -> None:
        """Close without waiting."""
        pooled.connection.disconnect()


class AsyncTransport:
    """Connections of `redis.asyncio`; each belongs to the event loop it was made in."""

    def place(self) -> object:
        """Only this event loop."""
        return asyncio.get_running_loop()

    async def connect(self, pooled: PooledConnection) -> None:
        """Connect and authenticate."""
        await pooled.connection.connect()

    async def exchange(self, pooled: PooledConnection, packed: bytes, count: int = 1) -> list[Any]:
        """Send commands in one write and read their answers."""
        await pooled.connection.send_packed_command([packed])
        return await _read_all_async(pooled.connection, count, None)

    async def send(self, pooled: PooledConnection, packed: bytes) -> None:
        """Send commands in one write."""
        await pooled.connection.send_packed_command([packed])

    async def await_answers(
        self, pooled: PooledConnection, count: int, seconds: float, interrupt: Interrupt | None
    ) -> list[Any] | None:
        """Wait for the first answer, then read them all."""
        # After an interrupt, the next call continues the same read: the answers still arrive.
        reading = pooled.reading
        if reading is None:
            reading = start_unlisted(_read_all_async(pooled.connection, count, math.inf))
            pooled.reading = reading
        if not await _wait_for([reading], seconds, interrupt):
            _check_interrupted(interrupt)
            return None
        pooled.reading = None
        return reading.result()

    async def pause(self, seconds: float, interrupt: Interrupt | None) -> None:
        """Do nothing for a while, or until interrupted."""
        await _wait_for([], seconds, interrupt)

    def drop(self, pooled: PooledConnection) -> None:
        """Close without waiting; if the event loop is closed, nothing is left to do."""
        if pooled.reading is not None:
            with suppress(RuntimeError):
                pooled.reading.cancel()
        close_now(pooled.connection)


async def _in_thread(pooled: PooledConnection, call: Callable[..., V], *arguments: object) -> V:
    """Make a blocking call in one of this server's threads, so that it delays no other server."""
    return await call_in_thread(pooled.server, pooled.server, call, *arguments)


def _read(connection: Any, count: int) -> list[Any]:
    answers = []
    for _ in range(count):
        try:
            answers.append(connection.read_response())
        except ResponseError as error:
            answers.append(error)
    return answers


def _exchange(connection: Any, packed: bytes, count: int) -> list[Any]:
    connection.send_packed_command([packed])
    return _read(connection, count)


def _check_interrupted(interrupt: Interrupt | None) -> None:
    if interrupt is None or not interrupt.is_set:
        raise NoAnswer("the server did not answer in time")


def _has_buffered(sock: Any) -> bool:
    # TLS may have decrypted more than was asked for.
    return hasattr(sock, "pending") and sock.pending() > 0


def _ring(sock: socket.socket) -> None:
    with suppress(OSError):  # closed, because an exception has ended the wait
        sock.send(b"1")


def _release(lock: _thread.LockType) -> None:
    with suppress(RuntimeError):  # it was released before
        lock.release()


def _wait_readable(sock: Any, seconds: float, interrupt: Interrupt | None) -> bool:
    """Block until the socket can be read; False if time ran out or the wait was interrupted."""
    with Selector() as selector:
        if sock is not None:  # it is None once the connection has broken
            selector.register(sock, selectors.EVENT_READ)
        if interrupt is None:
            return bool(selector.select(seconds))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            wake = partial(_ring, theirs)
            selector.register(ours, selectors.EVENT_READ)
            interrupt.enter(wake)
            try:
                ready = selector.select(seconds)
            finally:
                interrupt.leave(wake)
            return any(key.fileobj is sock for key, _ in ready)


async def _watch_readable(sock: Any, seconds: float, interrupt: Interrupt | None) -> bool:
    """Do what `_wait_readable` does, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[Any] = loop.create_future()
    descriptor = sock.fileno()
    loop.add_reader(descriptor, _resolve, readable)
    try:
        return await _wait_for([readable], seconds, interrupt)
    finally:
        loop.remove_reader(descriptor)


async def _wait_for(
    futures: list[asyncio.Future[Any]], seconds: float, interrupt: Interrupt | None
) -> bool:
    """Wait in an event loop until one of the futures is done; False if none is."""
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[Any] = loop.create_future()
    wake = partial(_call_soon, loop, partial(_resolve, interrupted))
    if interrupt is not None:
        interrupt.enter(wake)
    try:
        await asyncio.wait(
            [*futures, interrupted], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        if interrupt is not None:
            interrupt.leave(wake)
        interrupted.cancel()
    return any(future.done() for future in futures)


def _resolve(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    # If the loop was closed during a wait, no waiter is left.
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


async def _read_all_async(connection: Any, count: int, limit: float | None) -> list[Any]:
    answers = []
    for _ in range(count):
        try:
            answers.append(await connection.read_response(timeout=limit))
        except ResponseError as error:
            answers.append(error)
    return answers

"""Bytes to and from one connection, as steps: of `redis` for threads, of `redis.asyncio` awaited.

Nothing is decided here. Both wires have the same four steps, so that everything else is written
once.
"""

import asyncio
import math
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from weakincentives.runtime.mailbox.flow import Look, Step, step_of

__all__ = ["AsyncWire", "Held", "Interrupt", "SyncWire", "Wire"]

Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Interrupt:
    """A flag that ends waits, set once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], object]] = []
        self.is_set = False

    def set(self) -> None:
        """Wake whoever waits, now and later."""
        with self._lock:
            self.is_set = True
            for wake in self._wakers:
                wake()

    def enter(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` when set; at once if it is."""
        with self._lock:
            self._wakers.append(wake)
            if self.is_set:
                wake()

    def leave(self, wake: Callable[[], object]) -> None:
        """Forget ``wake``."""
        with self._lock:
            self._wakers.remove(wake)


class Held:
    """A connection, where it may be used, the server's name for it, and what it still owes."""

    __slots__ = ("client_id", "connection", "generation", "owed", "place", "reading")

    def __init__(self, connection: Any, generation: int, place: object) -> None:
        self.connection = connection
        self.generation = generation
        self.place = place
        self.client_id: int | None = None
        self.owed = 0
        """Answers that nobody has read yet."""
        self.reading: asyncio.Future[list[Any]] | None = None


class Wire(Protocol):
    """How to talk over a connection; a step that fails with a transport error spoils it."""

    def place(self) -> object:
        """Where a connection may be used: one event loop, or any thread."""
        ...

    def connect(self, held: Held) -> Step:
        """Connect and authenticate."""
        ...

    def exchange(self, held: Held, packed: bytes, count: int = 1) -> Step:
        """Send packed commands in one write and return their answers, the server's errors too."""
        ...

    def await_answers(
        self, held: Held, count: int, seconds: float, interrupt: Interrupt | None
    ) -> Step:
        """Return answers to what was sent, or None if interrupted before the first."""
        ...

    def send(self, held: Held, packed: bytes) -> Step:
        """Send commands in one write; their answers are awaited later."""
        ...

    def pause(self, seconds: float, interrupt: Interrupt | None) -> Step:
        """Do nothing for a while, or until interrupted."""
        ...

    def drop(self, held: Held) -> None:
        """Close without waiting."""
        ...


class SyncWire:
    """Connections of `redis`."""

    def place(self) -> object:
        """Any thread will do."""
        return None

    def connect(self, held: Held) -> Step:
        """Connect and authenticate."""
        return step_of("blocking", held.connection.connect)

    def exchange(self, held: Held, packed: bytes, count: int = 1) -> Step:
        """Send commands in one write and read their answers."""
        return step_of("blocking", partial(_exchange, held.connection, packed, count))

    def send(self, held: Held, packed: bytes) -> Step:
        """Send commands in one write."""
        return step_of("blocking", partial(held.connection.send_packed_command, [packed]))

    def await_answers(
        self, held: Held, count: int, seconds: float, interrupt: Interrupt | None
    ) -> Step:
        """Wait until the connection can be read, in a thread or in an event loop; then read."""
        return Look(
            partial(_await_answers, held.connection, count, seconds, interrupt),
            partial(_watch_answers, held.connection, count, seconds, interrupt),
        )

    def pause(self, seconds: float, interrupt: Interrupt | None) -> Step:
        """Do nothing for a while, or until interrupted."""
        return Look(partial(_pause, seconds, interrupt), partial(_wait_for, [], seconds, interrupt))

    def drop(self, held: Held) -> None:
        """Close without waiting."""
        held.connection.disconnect()


class AsyncWire:
    """Connections of `redis.asyncio`; each belongs to the event loop it was made in."""

    def place(self) -> object:
        """Only this event loop."""
        return asyncio.get_running_loop()

    def connect(self, held: Held) -> Step:
        """Connect and authenticate."""
        return Look(_only_awaited, held.connection.connect)

    def exchange(self, held: Held, packed: bytes, count: int = 1) -> Step:
        """Send commands in one write and read their answers."""
        return Look(_only_awaited, partial(_exchange_async, held.connection, packed, count))

    def send(self, held: Held, packed: bytes) -> Step:
        """Send commands in one write."""
        return Look(_only_awaited, partial(held.connection.send_packed_command, [packed]))

    def await_answers(
        self, held: Held, count: int, seconds: float, interrupt: Interrupt | None
    ) -> Step:
        """Wait for the first answer, then read them all."""
        return Look(_only_awaited, partial(_read_async, held, count, seconds, interrupt))

    def pause(self, seconds: float, interrupt: Interrupt | None) -> Step:
        """Do nothing for a while, or until interrupted."""
        return Look(_only_awaited, partial(_wait_for, [], seconds, interrupt))

    def drop(self, held: Held) -> None:
        """Close without waiting; nothing is left to close once its event loop is."""
        connection, reading = held.connection, held.reading
        writer, connection._reader, connection._writer = connection._writer, None, None
        with suppress(RuntimeError):
            if reading is not None:
                reading.cancel()
            if writer is not None:
                writer.close()


def _only_awaited() -> Any:
    raise AssertionError("a step of redis.asyncio was not awaited")


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


def _await_answers(
    connection: Any, count: int, seconds: float, interrupt: Interrupt | None
) -> list[Any] | None:
    sock = connection._sock
    if not _has_buffered(sock) and not _wait_readable(sock, seconds, interrupt):
        _check_interrupted(interrupt)
        return None
    return _read(connection, count)


def _check_interrupted(interrupt: Interrupt | None) -> None:
    if interrupt is None or not interrupt.is_set:
        raise NoAnswer("the server did not answer in time")


def _has_buffered(sock: Any) -> bool:
    # TLS may have decrypted more than was asked for.
    return hasattr(sock, "pending") and sock.pending() > 0


def _wait_readable(sock: Any, seconds: float, interrupt: Interrupt | None) -> bool:
    """Block until the socket can be read; False if time ran out or the wait was interrupted."""
    with Selector() as selector:
        if sock is not None:
            selector.register(sock, selectors.EVENT_READ)
        if interrupt is None:
            return bool(selector.select(seconds))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            wake = partial(theirs.send, b"1")
            selector.register(ours, selectors.EVENT_READ)
            interrupt.enter(wake)
            try:
                ready = selector.select(seconds)
            finally:
                interrupt.leave(wake)
            return any(key.fileobj is sock for key, _ in ready)


def _pause(seconds: float, interrupt: Interrupt | None) -> None:
    _wait_readable(None, seconds, interrupt or Interrupt())


async def _watch_answers(
    connection: Any, count: int, seconds: float, interrupt: Interrupt | None
) -> list[Any] | None:
    sock = connection._sock
    loop = asyncio.get_running_loop()
    if not _has_buffered(sock):
        readable = loop.create_future()
        descriptor = sock.fileno()
        loop.add_reader(descriptor, _resolve, readable)
        try:
            ready = await _wait_for([readable], seconds, interrupt)
        finally:
            loop.remove_reader(descriptor)
        if not ready:
            _check_interrupted(interrupt)
            return None
    return await loop.run_in_executor(None, _read, connection, count)


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
    # A loop that was closed with a wait still registered has nobody left to wake.
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


async def _exchange_async(connection: Any, packed: bytes, count: int) -> list[Any]:
    await connection.send_packed_command([packed])
    return await _read_all_async(connection, count, None)


async def _read_all_async(connection: Any, count: int, limit: float | None) -> list[Any]:
    answers = []
    for _ in range(count):
        try:
            answers.append(await connection.read_response(timeout=limit))
        except ResponseError as error:
            answers.append(error)
    return answers


async def _read_async(
    held: Held, count: int, seconds: float, interrupt: Interrupt | None
) -> list[Any] | None:
    # An interrupted wait goes on reading where it was: the answers still come.
    reading = held.reading
    if reading is None:
        reading = asyncio.ensure_future(_read_all_async(held.connection, count, math.inf))
        held.reading = reading
    if not await _wait_for([reading], seconds, interrupt):
        _check_interrupted(interrupt)
        return None
    held.reading = None
    return reading.result()

"""Runs each test of the contract with blocking calls and with their async twins."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cached_property
from typing import Any, Literal, TypeAlias

from weakincentives.runtime.mailbox.seam.driver import run

__all__ = ["DEADLINE", "Driver", "Face", "Proxy", "background"]

Face: TypeAlias = Literal["sync", "async"]

DEADLINE = 120.0
"""The number of seconds after which a hanging call fails its test."""

TWINS = frozenset(
    {
        *("send", "send_batch", "send_expecting_reply", "send_batch_expecting_replies"),
        *("receive", "exchange"),
        *("acknowledge_batch", "release_batch", "purge", "approximate_count", "stats", "peek"),
        *("acknowledge", "nack", "extend_visibility", "reply"),
        *("wait", "poll", "is_ready", "is_cancelled", "cancel", "is_open", "status"),
        *("create", "resolve", "get", "consume", "delete", "scan_expired", "cleanup_expired"),
    }
)
"""The methods that do I/O and so must have a twin with the suffix ``_async``."""


class Driver:
    """Calls a mailbox with blocking or async calls; async ones run in a thread's event loop."""

    def __init__(self, face: Face) -> None:
        self.face = face
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, started when it is first needed: most blocking tests need none."""
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, daemon=True)
        self._thread.start()
        return loop

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result; call this from any thread but the loop's."""
        with self._lock:
            loop = self.loop
        return asyncio.run_coroutine_threadsafe(_bounded(work), loop).result()

    def call(self, step: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Take a step of a store: in this thread, or in the event loop."""
        return run(lambda: step(*args)) if self.face == "sync" else self.run(step(*args))

    def cancel_rest(self) -> None:
        """Cancel all tasks and wait for them, before anything they use is closed."""
        if self._thread is not None:
            self.run(_cancel_rest())

    def close(self) -> None:
        """Cancel the remaining tasks, wait for them, and stop the event loop."""
        if self._thread is not None:
            self.run(_end())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(DEADLINE)
            self.loop.close()


class Proxy:
    """Makes a mailbox, message or reply look blocking, even if its async methods are called.

    Attributes are looked up by name, so that a missing twin fails the contract.
    """

    def __init__(self, raw: Any, driver: Driver) -> None:
        self.raw = raw
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        if name not in TWINS:
            return self._wrapped(getattr(self.raw, name))
        if self._driver.face == "sync":
            call = getattr(self.raw, name)
        else:
            twin = getattr(self.raw, f"{name}_async")

            def call(*args: Any, **options: Any) -> Any:
                return self._driver.run(twin(*args, **options))

        def wrapped(*args: Any, **options: Any) -> Any:
            plain = {key: _unwrapped(value) for key, value in options.items()}
            return self._wrapped(call(*map(_unwrapped, args), **plain))

        return wrapped

    def __repr__(self) -> str:
        return f"<{self._driver.face} {self.raw!r}>"

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, list) and value and _has_twins(value[0]):
            return [Proxy(item, self._driver) for item in value]
        return Proxy(value, self._driver) if _has_twins(value) else value


def _has_twins(value: Any) -> bool:
    twins = ("send_async", "acknowledge_async", "wait_async", "is_open_async")
    return any(hasattr(value, twin) for twin in twins)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list) and any(isinstance(item, Proxy) for item in value):
        return [item.raw if isinstance(item, Proxy) else item for item in value]
    return value.raw if isinstance(value, Proxy) else value


async def _bounded(work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(DEADLINE):
        return await work


async def _cancel_rest() -> None:
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def _end() -> None:
    await _cancel_rest()
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def background(call: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
    """Run ``call`` in a new thread; the future gets its result or its error."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call(*args, **options))
        except BaseException as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future

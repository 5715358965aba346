"""Long polls of SQS, in threads of their own that no consumer has to wait for.

A ReceiveMessage in flight cannot be cancelled. So a consumer does not make the call itself: it
joins a line of waiters, and may leave it at any time. The polls of the queue serve the line. A poll
whose waiter has left serves the next one; if the line is empty, its messages are given back.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Protocol

from weakincentives.clock import Clock
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.store import GivingBack, Leased, Leases

__all__ = ["MAX_POLLS", "LongPollListener", "LongPolls", "poll_seconds"]

logger = get_logger(__name__)

MAX_POLLS = 16
"""The most polls of one queue at a time; a longer line of waiters shares their messages."""

ROUND_TRIP = 1.0
"""A waiter stays up to this many seconds longer than asked, to get the result of its poll."""

SHORTEST_POLL = 0.5


def poll_seconds(wait: float, longest: int) -> int:
    """Return how long SQS should wait: whole seconds, at least one."""
    return max(1, min(round(wait), longest))


class PolledQueue(Protocol):
    """What long polls need from a store."""

    clock: Clock
    look_interval: float

    def receive(self, count: int, seconds: float, wait: int) -> Leases: ...

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]: ...

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]: ...


class Waiter:
    """One consumer in the line."""

    def __init__(self, count: int, seconds: float, wait: float) -> None:
        self.count = count
        self.seconds = seconds
        self.deadline = time.monotonic() + wait
        self.future: Future[Leases] = Future()

    def remaining(self) -> float:
        """Return how many seconds it still waits."""
        return self.deadline - time.monotonic()


class LongPolls:
    """The waiters of one queue in line, and the polls that serve them."""

    def __init__(self, queue: PolledQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._line: list[Waiter] = []
        self._polls = 0

    def join(self, waiter: Waiter) -> None:
        """Join the line, and start a poll if needed."""
        with self._lock:
            self._line.append(waiter)
            try:
                self._start_polls()
            except RuntimeError:  # no thread can start; running polls serve the others
                self._line.remove(waiter)
                raise

    def leave(self, waiter: Waiter) -> bool:
        """Leave the line; False if a poll is about to serve this waiter."""
        with self._lock:
            if waiter not in self._line:
                return False
            self._line.remove(waiter)
            return True

    def abandon(self, waiter: Waiter) -> None:
        """Leave the line, and give back what a poll may still bring for this waiter."""
        if not self.leave(waiter):
            waiter.future.add_done_callback(self._give_back_later)

    def _start_polls(self) -> None:
        """Start polls until each waiter has one, up to the limit; the caller holds the lock."""
        while self._polls < min(len(self._line), MAX_POLLS):
            waiter = self._line[self._polls]
            wait = poll_seconds(waiter.remaining(), int(self._queue.look_interval))
            threading.Thread(
                target=self._poll,
                args=(waiter.count, waiter.seconds, wait),
                name="sqs-long-poll",
                daemon=True,
            ).start()
            self._polls += 1

    def _poll(self, count: int, seconds: float, wait: int) -> None:
        started = time.monotonic()
        try:
            leases = self._queue.receive(count, seconds, wait)
        except BaseException as error:  # noqa: BLE001 - raised again by those who wait
            self._fail(error)
            return
        early = started + wait - time.monotonic()
        if not leases.messages and early > SHORTEST_POLL:
            # A server that answers without waiting must not be asked in a tight loop.
            time.sleep(min(early, 1))
        self._deliver(leases, seconds)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._polls -= 1
            told, self._line = self._line, []
        if not told:
            logger.info("a long poll that nobody waited for failed: %s", error)
        for waiter in told:
            waiter.future.set_exception(error)

    def _deliver(self, leases: Leases, seconds: float) -> None:
        messages = list(leases.messages)
        with self._lock:
            served = self._shared_out(messages)
            over = self._over()
        for waiter in over:
            waiter.future.set_result(Leases(()))
        for waiter, part in served:
            self._serve(waiter, leases._replace(messages=part), seconds)
        self._give_back(messages)
        with self._lock:
            self._polls -= 1
            self._start_polls()

    def _shared_out(self, messages: list[Leased]) -> list[tuple[Waiter, list[Leased]]]:
        """Take from the line whoever gets some of the messages; the lock is held."""
        served: list[tuple[Waiter, list[Leased]]] = []
        while messages and self._line:
            waiter = self._line.pop(0)
            served.append((waiter, messages[: waiter.count]))
            del messages[: waiter.count]
        return served

    def _over(self) -> list[Waiter]:
        """Take from the line whoever has waited for long enough; the lock is held."""
        over = [waiter for waiter in self._line if waiter.remaining() < SHORTEST_POLL]
        self._line = [waiter for waiter in self._line if waiter not in over]
        return over

    def _serve(self, waiter: Waiter, leases: Leases, seconds: float) -> None:
        try:
            if waiter.seconds != seconds:
                leases = self._adjusted(leases, waiter.seconds)
        except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
            waiter.future.set_exception(error)
        else:
            waiter.future.set_result(leases)

    def _adjusted(self, leases: Leases, seconds: float) -> Leases:
        """Change leases that were taken for another waiter to the length that this one wants."""
        at = self._queue.clock.monotonic()
        handles = [message.handle for message in leases.messages]
        kept = run(lambda: self._queue.extend(handles, seconds))
        held = [m for m, ok in zip(leases.messages, kept, strict=True) if ok]
        return leases._replace(messages=held, at=at)

    def _give_back(self, messages: Sequence[Leased]) -> None:
        if not messages:
            return
        try:
            handles = [message.handle for message in messages]
            run(lambda: self._queue.release(handles, 0, "undone"))
        except Exception:  # noqa: BLE001 - no caller is left to raise it in
            logger.warning(
                "%d messages could not be given back; they come back when their leases end",
                len(messages),
            )

    def _give_back_later(self, future: "Future[Leases]") -> None:
        if future.exception() is None:
            messages = future.result().messages
            threading.Thread(target=self._give_back, args=(messages,), daemon=True).start()


class LongPollListener:
    """The `Listener` of a queue on SQS."""

    def __init__(self, polls: LongPolls, *, in_loop: bool) -> None:
        self._polls = polls
        self._in_loop = in_loop
        self._looked = False
        self._waiter: Waiter | None = None
        self._interrupted = threading.Event()

    async def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait in line for a poll; in an event loop this uses no thread of its executor."""
        if self._looked and wait < SHORTEST_POLL:
            # SQS was just asked, and less than a second is left: not worth another call.
            await self._pause(wait)
            return Leases(())
        waiter = self._stand(count, seconds, wait)
        try:
            came = await self._comes(waiter.future, wait + ROUND_TRIP)
            if not came and self._polls.leave(waiter):
                return Leases(())
            await self._comes(waiter.future, None)
        except BaseException:
            self._polls.abandon(waiter)
            raise
        return waiter.future.result()

    async def _pause(self, seconds: float) -> None:
        if self._in_loop:
            await asyncio.sleep(seconds)
        else:
            self._interrupted.wait(seconds)

    async def _comes(self, future: "Future[Leases]", timeout: float | None) -> bool:
        """Wait until the future is done; False if it is not done in time."""
        if not self._in_loop:
            return bool(futures.wait((future,), timeout).done)
        coming = asyncio.wrap_future(future)
        coming.add_done_callback(_is_seen)
        # Cancelling this wait does not cancel the future: its messages are given back later.
        await asyncio.wait((coming,), timeout=timeout)
        return coming.done()

    def interrupt(self) -> None:
        """End the wait in progress, and any later one."""
        self._interrupted.set()
        waiter = self._waiter
        if waiter is not None and self._polls.leave(waiter):
            waiter.future.set_result(Leases(()))

    def close(self) -> None:
        """Nothing is held."""

    def _stand(self, count: int, seconds: float, wait: float) -> Waiter:
        waiter = self._waiter = Waiter(count, seconds, wait)
        self._looked = True
        self._polls.join(waiter)
        if self._interrupted.is_set():
            self.interrupt()
        return waiter


def _is_seen(done: "asyncio.Future[Leases]") -> None:
    """Mark an error as retrieved; it is raised from the poll's own future."""
    if not done.cancelled():
        done.exception()

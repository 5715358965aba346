"""Long polls of SQS, in threads of their own that no consumer has to wait for.

A ReceiveMessage in flight cannot be called off. So whoever waits does not make the call but stands
in line for what the polls of its queue bring, and may leave at once. A poll that is left behind
serves whoever comes next; what it brings to an empty line is given back, also by a process that
is about to exit.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from weakincentives.clock import Clock
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.store import GivingBack, Leased, Leases
from weakincentives.runtime.mailbox.seam.waiting import note_latest_leases

from .polls_in_progress import POLLS_IN_PROGRESS

__all__ = ["MAX_POLLS", "LongPollListener", "LongPolls", "poll_seconds"]

logger = get_logger(__name__)

MAX_POLLS = 16
"""The most polls of one queue at a time; a longer line of waiters shares their messages."""

ROUND_TRIP = 1.0
"""A waiter stays up to this many seconds longer than asked, to get the result of its poll."""

SHORTEST_POLL = 0.5

IDLE_LEASE = 10
"""The longest lease, in seconds, that a poll of an empty queue asks for.

A process may end in such a poll, and then the next message is leased to nobody. A longer lease is
asked for when there is a message; where one comes after the other, polls ask for it themselves.
"""

IDLE_THREAD_SECONDS = 1.0
"""A thread waits this long for its next poll: starting one costs as much as a quick call."""


def poll_seconds(wait: float, longest: int) -> int:
    """Return how long SQS should wait: whole seconds, at least one."""
    return max(1, min(round(wait), longest))


class PolledQueue(Protocol):
    """What long polls need from a store."""

    clock: Clock
    look_interval: float
    fifo: bool

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


@dataclass(frozen=True, slots=True, eq=False)
class Poll:
    """What one call asks SQS for."""

    most: int
    seconds: float
    wait: int


class LongPolls:
    """The waiters of one queue in line, and the polls that serve them."""

    def __init__(self, queue: PolledQueue) -> None:
        self.queue = queue
        # Reentrant, because a signal handler may close a mailbox while its own thread joins.
        self._lock: Any = threading.RLock()
        self._line: list[Waiter] = []
        # Not their number: that would be wrong for ever once an interrupt came before it was noted.
        self._polls: set[Poll] = set()
        self._is_busy = False
        self._idle: list[SimpleQueue[Poll]] = []

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
        """Start a poll for everyone in the line who has none; the lock is held."""
        for waiter in self._line[len(self._polls) : MAX_POLLS]:
            if POLLS_IN_PROGRESS.exiting:
                return
            seconds = waiter.seconds if self._is_busy else min(waiter.seconds, IDLE_LEASE)
            wait = poll_seconds(waiter.remaining(), int(self.queue.look_interval))
            poll = Poll(waiter.count, seconds, wait)
            if self._idle:
                self._idle.pop().put(poll)
            else:
                threading.Thread(
                    target=self._take_polls, args=(poll,), name="sqs-long-poll", daemon=True
                ).start()
            self._polls.add(poll)

    def _take_polls(self, poll: Poll) -> None:
        """Poll until there is nothing to poll for; a thread runs this."""
        polls: SimpleQueue[Poll] = SimpleQueue()
        while True:
            self._poll(poll)
            with self._lock:
                self._polls.discard(poll)
                self._idle.append(polls)
                with suppress(RuntimeError):  # no more threads, but this one goes on
                    self._start_polls()
            try:
                poll = polls.get(timeout=IDLE_THREAD_SECONDS)
            except Empty:
                with self._lock:
                    if polls in self._idle:
                        self._idle.remove(polls)
                    if polls.empty():
                        return
                poll = polls.get()

    def _poll(self, poll: Poll) -> None:
        in_progress = POLLS_IN_PROGRESS.begin(poll.wait, is_kept=poll.seconds > IDLE_LEASE)
        try:
            leases = self.queue.receive(poll.most, poll.seconds, poll.wait)
            in_progress.is_kept = True
            self._is_busy = bool(leases.messages)
            early = in_progress.began + poll.wait - time.monotonic()
            if not leases.messages and early > SHORTEST_POLL:
                # A server that does not wait must not be asked without end.
                in_progress.over.wait(min(early, 1))
            self._deliver(leases, poll.seconds)
        except BaseException as error:  # noqa: BLE001 - raised again by those who wait
            self._fail(error)
        finally:
            POLLS_IN_PROGRESS.end(in_progress)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
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

    def _shared_out(self, messages: list[Leased]) -> list[tuple[Waiter, list[Leased]]]:
        """Take from the line whoever gets some of the messages; the lock is held."""
        served: list[tuple[Waiter, list[Leased]]] = []
        # A process that exits has nobody left who could handle them.
        while messages and self._line and not POLLS_IN_PROGRESS.exiting:
            waiter = self._line.pop(0)
            served.append((waiter, messages[: waiter.count]))
            del messages[: waiter.count]
            if self.queue.fifo:
                break  # the messages of a group must not have two holders
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
        at = self.queue.clock.monotonic()
        handles = [message.handle for message in leases.messages]
        kept = run(lambda: self.queue.extend(handles, seconds))
        held = [m for m, ok in zip(leases.messages, kept, strict=True) if ok]
        return leases._replace(messages=held, at=at)

    def _give_back(self, messages: Sequence[Leased]) -> None:
        if not messages:
            return
        try:
            handles = [message.handle for message in messages]
            run(lambda: self.queue.release(handles, 0, "undone"))
        except Exception:  # noqa: BLE001 - no caller is left to raise it in
            logger.warning(
                "%d messages could not be given back; they come back when their leases end",
                len(messages),
            )

    def _give_back_later(self, future: "Future[Leases]") -> None:
        if future.exception() is not None:
            return
        messages, in_progress = future.result().messages, POLLS_IN_PROGRESS.begin(0)

        def give_back() -> None:
            try:
                self._give_back(messages)
            finally:
                POLLS_IN_PROGRESS.end(in_progress)

        try:
            threading.Thread(target=give_back, daemon=True).start()
        except RuntimeError:  # no more threads, or the process exits
            give_back()


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
        waiter = Waiter(count, seconds, wait)
        try:
            self._stand(waiter)
            came = await self._comes(waiter.future, wait + ROUND_TRIP)
            if not came and self._polls.leave(waiter):
                return Leases(())
            await self._comes(waiter.future, None)
            leases = waiter.future.result()
            note_latest_leases(self._polls.queue, leases.messages)
        except BaseException:
            self._polls.abandon(waiter)
            raise
        return leases

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

    def _stand(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._looked = True
        self._polls.join(waiter)
        if self._interrupted.is_set():
            self.interrupt()


def _is_seen(done: "asyncio.Future[Leases]") -> None:
    """Mark an error as retrieved; it is raised from the poll's own future."""
    if not done.cancelled():
        done.exception()

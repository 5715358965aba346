"""The parts that a handler emits, on their way to its caller."""

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, TypeGuard

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox import MailboxError
from weakincentives.runtime.mailbox.replies.parts import PartCodec
from weakincentives.runtime.mailbox.seam.driver import run, start_unlisted

if TYPE_CHECKING:
    from .attempt import Attempt
    from .inbox import Inbox

__all__ = ["JobParts"]

logger = get_logger(__name__)

MOST_UNSENT = 1000
"""How many parts of an async job may wait to be sent; then `emit` waits."""
MOST_AT_ONCE = 100
"""How many parts are sent in one step."""


class JobParts:
    """The parts of one job. What is emitted while a step is under way goes with the next one."""

    def __init__(self, attempt: "Attempt", inbox: "Inbox") -> None:
        self._attempt = attempt
        self._inbox = inbox
        self._codec = PartCodec(inbox.keeps_parts_as_objects(attempt.message))
        self._unsent: list[Any] = []
        # Reentrant, because a signal handler may emit too.
        self._sending = threading.RLock()
        self._is_sending = False
        self._task: asyncio.Task[None] | None = None
        self._is_refused = False

    def emit(self, value: Any) -> bool:
        """Send a part now; False if parts are no longer accepted, or sending one has failed."""
        if not self._add(value):
            return False
        with self._sending:
            self._send_now()
        return not self._is_refused

    def _send_now(self) -> None:
        # If a signal handler interrupts a step here, the step sends the part of the handler too.
        while self._unsent and not self._is_sending:
            self._is_sending = True
            try:
                run(self._send_all)
            finally:
                self._is_sending = False

    async def emit_async(self, value: Any) -> bool:
        """Send a part soon; False if parts are no longer accepted, or sending one has failed."""
        while len(self._unsent) >= MOST_UNSENT and self._is_under_way(self._task):
            await asyncio.wait([self._task])
        if not self._add(value):
            return False
        # The task itself says it, not its callbacks: a task that is done sends nothing more.
        if not self._is_under_way(self._task):
            self._task = start_unlisted(self._send_all())
            self._task.add_done_callback(_raise_error)
        return True

    async def flush(self) -> None:
        """Wait until all that was emitted is sent: the reply must not be settled before."""
        while self._is_under_way(self._task):
            await asyncio.wait([self._task])

    @staticmethod
    def _is_under_way(task: "asyncio.Task[None] | None") -> "TypeGuard[asyncio.Task[None]]":
        return task is not None and not task.done()

    def _add(self, value: Any) -> bool:
        payload = self._codec.sealed(value)
        if self._is_refused or self._attempt.why_cancelled(time.monotonic()) is not None:
            return False
        self._unsent.append(payload)
        return True

    async def _send_all(self) -> None:
        while self._unsent:
            some, self._unsent = self._unsent[:MOST_AT_ONCE], self._unsent[MOST_AT_ONCE:]
            if not await self._send(some):
                self._is_refused = True
                self._unsent = []

    async def _send(self, payloads: list[Any]) -> bool:
        message = self._attempt.message
        try:
            return await self._inbox.emit(message, payloads)
        except MailboxError as error:
            # The job goes on: parts tell its caller how it goes, and the answer is yet to come.
            logger.warning(
                "Message %s: its parts cannot be sent, so it sends no more: %s", message.id, error
            )
            return False


def _raise_error(task: "asyncio.Task[None]") -> None:
    """Have the event loop told of an error that nobody waits for."""
    if not task.cancelled():
        task.result()

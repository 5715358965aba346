"""What can be done through a dashboard: each needs its right, and leaves a record."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox import InvalidParameterError

from .config import Right
from .parts import DashboardParts
from .queue_page import check_queue_name

__all__ = ["Actor", "RightMissingError"]

V = TypeVar("V")


class RightMissingError(WinkError):
    """This dashboard was not started with the right to do that."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Does what one request asks for, if that is allowed."""

    parts: DashboardParts
    client: str

    async def send(self, queue: str, text: str, delay: str = "") -> str:
        """Send a message whose body was typed as JSON, and return its id."""
        check_queue_name(queue)

        def send() -> str:
            body = _document(text)
            return self.parts.backend.mailbox(queue).send(body, delay_seconds=_seconds(delay))

        return await self.do(Right.SEND, queue, send, lambda sent: (1, sent))

    async def purge(self, queue: str) -> int:
        """Remove all messages of a queue, and return how many there were."""
        check_queue_name(queue)
        mailbox = self.parts.backend.mailbox(queue)
        return await self.do(Right.PURGE, queue, mailbox.purge, lambda count: (count, "all"))

    async def pause(self, queue: str, because: str) -> None:
        """Pause a queue for all of its consumers."""
        check_queue_name(queue)
        backend, by = self.parts.backend, f"dashboard, asked by {self.client}"
        await self.do(
            Right.PAUSE,
            queue,
            lambda: backend.pause(queue, because=because or None, by=by),
            lambda _: (0, because),
        )

    async def resume(self, queue: str) -> bool:
        """Resume a queue; False if it was not paused."""
        check_queue_name(queue)
        backend, by = self.parts.backend, f"dashboard, asked by {self.client}"
        return await self.do(
            Right.PAUSE,
            queue,
            lambda: backend.resume(queue, by=by),
            lambda resumed: (0, "resumed" if resumed else "was not paused"),
        )

    async def do(
        self,
        right: Right,
        queue: str,
        call: Callable[[], V],
        told: Callable[[V], tuple[int, str]],
    ) -> V:
        """Do something if that is allowed; ``told`` says how many messages it has changed."""
        self.check(right, queue)
        try:
            done = await self.parts.calls.run(call)
        except WinkError as error:
            self.record(right, queue, "failed", 0, f"{type(error).__name__}: {error}")
            raise
        count, detail = told(done)
        self.record(right, queue, "done", count, detail)
        return done

    def check(self, right: Right, queue: str) -> None:
        """Raise unless the dashboard may do this."""
        if right not in self.parts.config.rights:
            self.record(right, queue, "refused", 0, "the dashboard has no such right")
            raise RightMissingError(
                f"this dashboard was not started with the right to {right.value}: "
                f"see wink dashboard --allow {right.value}"
            )

    def record(self, right: Right, queue: str, outcome: str, count: int, detail: str) -> None:
        """Take note of what was done."""
        self.parts.audit.record(right, queue, outcome, self.client, count=count, detail=detail)


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"the body is not JSON: {error} (text needs quotes of its own)"
        ) from error


def _seconds(text: str) -> float:
    try:
        return float(text or 0)
    except ValueError as error:
        raise InvalidParameterError(f"the delay is not a number: {text[:50]!r}") from error

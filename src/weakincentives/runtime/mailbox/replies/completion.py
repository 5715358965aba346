"""Waiting for many replies: each soon after it is settled."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from weakincentives.runtime.mailbox.errors import ReplyError, ReplyNotFoundError, ReplyTimeoutError
from weakincentives.runtime.mailbox.limits import check_positive

if TYPE_CHECKING:
    from .reply import PendingReply, Reply

__all__ = ["as_completed", "as_completed_async"]

T = TypeVar("T")

SHORTEST_LOOK, LONGEST_LOOK = 0.01, 0.5
"""The first and the longest pause between two looks at all replies."""


def as_completed(
    replies: "Iterable[Reply[T]]", *, timeout: float | None = None
) -> "Iterator[Reply[T]]":
    """Iterate over replies, each within half a second of when it is settled, however it ended.

    Raises `ReplyTimeoutError` if not all of them are settled within ``timeout`` seconds. Each that
    this returns answers `wait` at once, one that is not there with `ReplyNotFoundError`.
    """
    pending, deadline, pause = list(replies), _deadline(timeout), SHORTEST_LOOK
    while pending:
        settled = [reply for reply in pending if _is_ready(reply)]
        for reply in settled:
            pending.remove(reply)
            yield reply
        pause = _next_pause(pause, settled)
        if pending and not settled:
            _wait(pending[0], min(pause, _left(deadline, len(pending))))


async def as_completed_async(
    replies: "Iterable[PendingReply[T]]", *, timeout: float | None = None
) -> "AsyncIterator[PendingReply[T]]":
    """Do what `as_completed` does, without blocking the event loop."""
    pending, deadline, pause = list(replies), _deadline(timeout), SHORTEST_LOOK
    while pending:
        ready = await asyncio.gather(*(_is_ready_async(reply) for reply in pending))
        settled = [reply for reply, is_ready in zip(pending, ready, strict=True) if is_ready]
        for reply in settled:
            pending.remove(reply)
            yield reply
        pause = _next_pause(pause, settled)
        if pending and not settled:
            seconds = min(pause, _left(deadline, len(pending)))
            try:
                await pending[0].wait_async(timeout=seconds)
            except ReplyError:
                pass  # whatever it is, the caller asks the reply itself


def _is_ready(reply: "Reply[Any]") -> bool:
    try:
        return reply.is_ready()
    except ReplyNotFoundError:
        return True  # it must not keep the others from their caller


async def _is_ready_async(reply: "PendingReply[Any]") -> bool:
    try:
        return await reply.is_ready_async()
    except ReplyNotFoundError:
        return True


def _wait(reply: "Reply[Any]", seconds: float) -> None:
    try:
        reply.wait(timeout=seconds)
    except ReplyError:
        pass  # whatever it is, the caller asks the reply itself


def _next_pause(pause: float, settled: list[Any]) -> float:
    return SHORTEST_LOOK if settled else min(2 * pause, LONGEST_LOOK)


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + check_positive("timeout", timeout)


def _left(deadline: float, pending: int) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        missing = "1 reply has" if pending == 1 else f"{pending} replies have"
        raise ReplyTimeoutError(f"{missing} not come in time")
    return left

"""The page of one job, by the id of its reply."""

from dataclasses import dataclass
from typing import Any

from weakincentives.runtime.mailbox import (
    JobState,
    JobStatus,
    Reply,
    ReplyError,
    ReplyFailedError,
    SerializationError,
)
from weakincentives.runtime.mailbox.seam.backend import Backend

from .contents import Contents, ContentsReader
from .formatting import time_text

__all__ = ["JobPage", "PartView", "job_page"]

MOST_PARTS = 50
PARTS_SECONDS = 0.05
"""How long to wait for the next part; those that are there come at once."""


@dataclass(frozen=True, slots=True)
class PartView:
    """A part that the job's handler has emitted."""

    index: int
    delivery: int
    contents: Contents


@dataclass(frozen=True, slots=True)
class JobPage:
    """What has become of a job."""

    id: str
    state: str
    since: str
    deliveries: int
    worker: str | None
    message_id: str | None
    parts_count: int
    parts: list[PartView]
    """The last ones."""
    answer: Contents | None
    error_type: str | None = None
    reference: str | None = None
    dead_letter_id: str | None = None
    detail: str | None = None


def job_page(backend: Backend, reader: ContentsReader, id: str) -> JobPage:
    """Return what has become of a job; this asks the backend."""
    reply = backend.reply(id)
    status = reply.status()
    last = status.last_part
    failure: dict[str, Any] = {}
    answer = None
    if status.state in (JobState.DONE, JobState.FAILED):
        answer, failure = _answer(reply, reader)
    return JobPage(
        id=id,
        state=status.state.value,
        since=time_text(status.since),
        deliveries=status.deliveries,
        worker=status.worker,
        message_id=status.message_id,
        parts_count=0 if last is None else last + 1,
        parts=_parts(reply, status, reader),
        answer=answer,
        **failure,
    )


def _answer(reply: Reply[Any], reader: ContentsReader) -> tuple[Contents | None, dict[str, Any]]:
    try:
        return reader.of_body(reply.poll(), whole=True), {}
    except ReplyFailedError as error:
        return None, {
            "error_type": error.error_type,
            "reference": error.reference,
            "dead_letter_id": error.dead_letter_id,
            "detail": error.detail,
        }
    except (ReplyError, SerializationError):
        return None, {}  # it was read and removed meanwhile, or cannot be read


def _parts(reply: Reply[Any], status: JobStatus, reader: ContentsReader) -> list[PartView]:
    if status.last_part is None:
        return []
    found: list[PartView] = []
    try:
        _add_parts(found, reply, status.last_part, reader)
    except (ReplyError, SerializationError):
        pass  # no more are there
    return found


def _add_parts(found: list[PartView], reply: Reply[Any], last: int, reader: ContentsReader) -> None:
    first = max(last - MOST_PARTS + 1, 0)
    for part in reply.parts(start=first, timeout=PARTS_SECONDS):
        found.append(PartView(part.index, part.delivery, reader.of_body(part.value)))
        if part.index >= last:
            return

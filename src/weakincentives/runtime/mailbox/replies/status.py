"""What has become of a job, as its caller sees it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from weakincentives.runtime.mailbox.errors import ReplyFailedError
from weakincentives.runtime.mailbox.message import as_datetime
from weakincentives.runtime.mailbox.seam.optional_protocols import LeaseState
from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow, ReplyState

__all__ = ["JobState", "JobStatus", "message_of", "status_of"]


class JobState(StrEnum):
    """Where the job of a reply stands."""

    QUEUED = "queued"
    """No start is recorded yet. A reply store of your own records none."""
    RUNNING = "running"
    """A worker has received its message; where the queue cannot say whether that worker still holds
    it, also after it has let go."""
    RETRYING = "retrying"
    """A worker has received its message, but none holds it now; it is delivered again."""
    WAITING = "waiting"
    """Its handler waits for a signal, and holds no place in a worker. No handler can do so yet."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """No worker has answered in time."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known of a job."""

    state: JobState
    deliveries: int
    """How often its message was received."""
    since: datetime
    """When it was sent, was last received by a worker, or ended."""
    worker: str | None
    """The worker that received it last, as host and process id."""
    last_part: int | None
    """The index of the last part that its handler emitted, or None."""
    message_id: str | None
    error_type: str | None = None
    """The type of the error that it has failed with, also if `error_reply` made a value of it."""
    reference: str | None = None
    """What the worker's log has beside that error."""
    dead_letter_id: str | None = None


ENDED = {
    ReplyState.RESOLVED: JobState.DONE,
    ReplyState.FAILED: JobState.FAILED,
    ReplyState.CANCELLED: JobState.CANCELLED,
    ReplyState.EXPIRED: JobState.EXPIRED,
}


def message_of(row: ReplyRow) -> tuple[str, str] | None:
    """Return the queue and the id of the message that a reply belongs to, if that is known."""
    if row.owner is None:
        return None
    queue, _, id = row.owner.rpartition("/")
    return queue, id


def status_of(
    row: ReplyRow, lease: LeaseState | None, failure: ReplyFailedError | None = None
) -> JobStatus:
    """Return the status that follows from a reply and the lease of its last start.

    ``lease`` is None if there was no start, or if its queue cannot say what became of it.
    ``failure`` is what the reply says of a job that has failed.
    """
    start, owner = row.start, message_of(row)
    since = row.created_at if start is None else start.at
    if row.state in ENDED:
        state = ENDED[row.state]
        since = row.expires_at if row.state == ReplyState.EXPIRED else row.resolved_at or since
    elif start is None:
        state = JobState.QUEUED
    else:
        state = JobState.RETRYING if lease == "ended" else JobState.RUNNING
    return JobStatus(
        state,
        0 if start is None else start.deliveries,
        as_datetime(since),
        None if start is None else start.worker,
        row.parts - 1 if row.parts else None,
        None if owner is None else owner[1],
        *(
            (None, None, None)
            if failure is None
            else (failure.error_type, failure.reference, failure.dead_letter_id)
        ),
    )

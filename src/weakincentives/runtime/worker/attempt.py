"""One attempt at handling a message, from its receipt until it is settled."""

from enum import Enum
from typing import TYPE_CHECKING, Any

from weakincentives.runtime.leases.extender import Lease

if TYPE_CHECKING:
    from .decide import Reply
    from .emit import JobParts
    from .job import AsyncJob, Cancelled, Job

__all__ = [
    "ABANDONED",
    "ACKNOWLEDGED",
    "FINISHED",
    "GIVEN_BACK",
    "INHERITED",
    "RECEIVED",
    "RUNNING",
    "UNANSWERED",
    "UNREAD",
    "Attempt",
    "State",
]

UNREAD: Any = object()


class State(Enum):
    """The state of an attempt."""

    following: tuple["State", ...]
    """The states that may come next; a final state has none."""

    RECEIVED = "received"
    """Its message is leased and waits for its turn."""
    RUNNING = "running"
    """Its handler was called."""
    UNANSWERED = "unanswered"
    """Its handler has ended; its answer must be sent, and then its message acknowledged."""
    FINISHED = "finished"
    """Its handler has ended; only the acknowledgement is left to do."""
    ACKNOWLEDGED = "acknowledged"
    GIVEN_BACK = "given back"
    """This worker has given its message back, to be delivered again."""
    ABANDONED = "abandoned"
    """This worker does nothing more for it: the lease was lost, or runs out by itself."""
    INHERITED = "inherited"
    """This process is a forked child, and the attempt is its parent's."""


# Module-level names, because looking them up in the class is slower.
RECEIVED, RUNNING, UNANSWERED, FINISHED = list(State)[:4]
ACKNOWLEDGED, GIVEN_BACK, ABANDONED, INHERITED = _LAST = tuple(State)[4:]

RECEIVED.following = (RUNNING, UNANSWERED, FINISHED, *_LAST)
RUNNING.following = (UNANSWERED, FINISHED, *_LAST)
UNANSWERED.following = (FINISHED, *_LAST)
FINISHED.following = _LAST
for _last in _LAST:
    _last.following = ()


class Attempt:
    """One delivery of a message, handled by this worker."""

    # Class attributes until they are set: most attempts need none of them.
    state = RECEIVED
    route: str | None = None
    """How the sender gets an answer: ``channel``, ``reply_to``, ``responses`` or not at all."""
    body: Any = UNREAD
    answer: "Reply | None" = None
    """What is to be sent before the acknowledgement."""
    in_doubt = False
    """Whether a step that settles it was cut off, so that its effect is unknown."""
    exit: SystemExit | None = None
    """The `SystemExit` with which its handler asked to end the process."""
    sequels: tuple[tuple[Any, str], ...] = ()
    """The mailbox and the id of each reply or dead letter that was sent for it."""
    job: "Job | AsyncJob | None" = None
    """What its handler was given."""
    started: float | None = None
    """When its handler was called, as a ``time.monotonic`` reading."""
    limit: float | None = None
    """When its time limit is reached, as a ``time.monotonic`` reading."""
    cancelled: "Cancelled | None" = None
    """Why its handler was told to stop, unless its lease or its clock says so."""
    parts: "JobParts | None" = None
    """What its handler has emitted."""
    is_handed_over = False
    """Whether another thread or task settles it."""
    is_replying = False
    """Whether its handler is sending the answer now."""
    has_replied = False
    """Whether its handler has sent the answer."""

    def __init__(self, message: Any, lease: Lease) -> None:
        self.message = message
        self.lease = lease
        """Its own ``message`` is the original one if `message` is an adapter."""

    def __repr__(self) -> str:
        return f"<Attempt at {self.message!r}, {self.state.value}>"

    @property
    def has_begun(self) -> bool:
        """Whether the handler was given the body, in this process."""
        return self.body is not UNREAD and self.state is not INHERITED

    @property
    def has_ended(self) -> bool:
        """Whether only the answer and the acknowledgement are left to do."""
        return self.state is FINISHED or self.state is UNANSWERED

    @property
    def is_settled(self) -> bool:
        """Whether this worker has nothing more to do for it."""
        return not self.state.following

    @property
    def is_lost(self) -> bool:
        """Whether its lease was lost, and was still needed."""
        return self.lease.lost and self.state is not ACKNOWLEDGED

    def is_late(self, now: float) -> bool:
        """Return whether its time limit is reached."""
        if self.cancelled is not None:
            return self.cancelled == "time_limit"
        return self.limit is not None and now >= self.limit

    def why_cancelled(self, now: float) -> "Cancelled | None":
        """Return why its handler should stop, or None."""
        if self.cancelled is not None:
            return self.cancelled
        if self.is_late(now):
            return "time_limit"
        if self.lease.cancelled:
            return "caller"
        return "lease" if self.is_lost else None

    @property
    def is_cancelled_by_caller(self) -> bool:
        """Whether nobody wants its result any more."""
        reason = self.cancelled
        return reason == "caller" or (reason is None and self.lease.cancelled)

    def become(self, state: State) -> None:
        """Change the state; a final state never changes, and later calls are ignored."""
        # At the deadline of a shutdown, two threads may settle the same attempt.
        now = self.state
        if state in now.following:
            self.state = state
        elif now.following and state is not now:
            raise RuntimeError(f"{self!r} cannot become {state.value}")

    def answer_with(self, reply: "Reply") -> None:
        """Record the answer, which must be sent before the acknowledgement."""
        self.answer = reply
        self.become(UNANSWERED)

    def finish(self) -> None:
        """Record that only the acknowledgement is left to do."""
        self.answer = None
        self.become(FINISHED)

    def hand_over(self, reason: "Cancelled") -> "Attempt":
        """Return a copy for another thread to settle; this one is ignored from now on."""
        other = Attempt(self.message, self.lease)
        other.__dict__.update(self.__dict__)
        self.cancelled = self.cancelled or reason
        self.is_handed_over = True
        self.become(ABANDONED)
        return other

    def inherit(self) -> None:
        """Mark it, in a forked child, as belonging to the parent, whatever its state was."""
        self.state = INHERITED

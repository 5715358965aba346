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
    """Where an attempt stands."""

    following: tuple["State", ...]
    """The states that may come next; none of a state that is the last."""

    RECEIVED = "received"
    """Its message is leased and waits for its turn."""
    RUNNING = "running"
    """Its handler was called."""
    UNANSWERED = "unanswered"
    """It has ended; its answer is to be sent, and then it is to be acknowledged."""
    FINISHED = "finished"
    """It has ended; it is to be acknowledged, and nothing else."""
    ACKNOWLEDGED = "acknowledged"
    GIVEN_BACK = "given back"
    """Its message will be delivered again, because this worker said so."""
    ABANDONED = "abandoned"
    """This worker says nothing more for it: the lease was lost, or ends by itself."""
    INHERITED = "inherited"
    """This process is a forked child, and the attempt is its parent's."""


# Names of their own, because a look into the class costs more.
RECEIVED, RUNNING, UNANSWERED, FINISHED = list(State)[:4]
ACKNOWLEDGED, GIVEN_BACK, ABANDONED, INHERITED = _LAST = tuple(State)[4:]

RECEIVED.following = (RUNNING, UNANSWERED, FINISHED, *_LAST)
RUNNING.following = (UNANSWERED, FINISHED, *_LAST)
UNANSWERED.following = (FINISHED, *_LAST)
FINISHED.following = _LAST
for _last in _LAST:
    _last.following = ()


class Attempt:
    """One delivery of a message in a worker's hands."""

    # Of the class until they change: most attempts need none of them.
    state = RECEIVED
    route: str | None = None
    """How the sender gets an answer: ``channel``, ``reply_to``, ``responses`` or not at all."""
    body: Any = UNREAD
    answer: "Reply | None" = None
    """What is to be sent before the acknowledgement."""
    in_doubt = False
    """A step of its settlement was cut off: nobody knows whether it has happened."""
    exit: SystemExit | None = None
    """How its handler asked to end the process."""
    sequels: tuple[tuple[Any, str], ...] = ()
    """What was sent because of it: the mailbox and the id."""
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
    """Another thread or task settles it."""
    is_replying = False
    """Its handler is sending the answer."""
    has_replied = False
    """Its handler has sent the answer."""

    def __init__(self, message: Any, lease: Lease) -> None:
        self.message = message
        self.lease = lease
        """Its message is the one that the mailbox handed out, if `message` is an adapter."""

    def __repr__(self) -> str:
        return f"<Attempt at {self.message!r}, {self.state.value}>"

    @property
    def has_begun(self) -> bool:
        """Whether the handler was given the body, in this process."""
        return self.body is not UNREAD and self.state is not INHERITED

    @property
    def has_ended(self) -> bool:
        """Whether all that is left is to answer and to acknowledge it."""
        return self.state is FINISHED or self.state is UNANSWERED

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to be done for it here."""
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
        # At the deadline of a shutdown two threads may speak for the same attempt.
        now = self.state
        if state in now.following:
            self.state = state
        elif now.following and state is not now:
            raise RuntimeError(f"{self!r} cannot become {state.value}")

    def answer_with(self, reply: "Reply") -> None:
        """Send this before the acknowledgement."""
        self.answer = reply
        self.become(UNANSWERED)

    def finish(self) -> None:
        """Record that nothing is left to do but the acknowledgement."""
        self.answer = None
        self.become(FINISHED)

    def hand_over(self, reason: "Cancelled") -> "Attempt":
        """Let another thread go on; whatever this one still says for the attempt is ignored."""
        other = Attempt(self.message, self.lease)
        other.__dict__.update(self.__dict__)
        self.cancelled = self.cancelled or reason
        self.is_handed_over = True
        self.become(ABANDONED)
        return other

    def inherit(self) -> None:
        """Leave it to the parent of this forked child, whatever its state was."""
        self.state = INHERITED

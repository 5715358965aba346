"""The pulse of a loop: what a watchdog and a readiness probe may know without asking anybody."""

from contextvars import ContextVar, Token
from types import TracebackType
from typing import ClassVar

from weakincentives.clock import Clock, SystemClock

__all__ = ["Heartbeat"]

# How long a look may outlast the wait it asked for before it counts as hanging.
OVERDUE = 15.0


class Heartbeat:
    """Tells that a loop is alive (`beat`) and that it can reach its mailbox (`looking`).

    A loop wraps each receive in ``with heartbeat.looking(wait):`` and each job in
    ``with heartbeat.working():``. Nothing here blocks, so probes and watchdogs may read it while
    the loop hangs.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock if clock is not None else SystemClock()
        self._last = self.clock.monotonic()
        self._looked: float | None = None
        self._missed: str | None = None
        # Dicts, not sets: several threads of one loop come and go while a probe takes a copy.
        self._looks: dict[Look, None] = {}
        self._jobs: dict[Job, None] = {}

    @property
    def last(self) -> float:
        """The clock's monotonic reading at the last beat."""
        return self._last

    def beat(self) -> None:
        """Say that the loop goes on; in a long job, that the job does."""
        self._last = self.clock.monotonic()
        job = Job.current.get()
        if job is not None and job.heart is self:
            job.last = self._last

    def elapsed(self) -> float:
        """Return the seconds since the last beat; with jobs at work, of the most silent of them."""
        oldest = min((job.last for job in list(self._jobs)), default=self._last)
        return max(0.0, self.clock.monotonic() - min(oldest, self._last))

    def working(self) -> "Job":
        """Return a context in which one job runs; its silence is not hidden by others' beats."""
        return Job(self)

    def at_work(self) -> bool:
        """Say whether the caller is inside a job of this loop, and so must not wait for its end."""
        job = Job.current.get()
        return job is not None and job.heart is self

    def looking(self, wait_time_seconds: float = 0.0) -> "Look":
        """Return a context for one look into the mailbox that may wait so long."""
        return Look(self, wait_time_seconds)

    def looked(self) -> None:
        """Say that the mailbox was reached, whether or not there was a message."""
        self._looked = self._last = self.clock.monotonic()
        self._missed = None

    def missed(self, error: BaseException) -> None:
        """Say that the mailbox could not be reached."""
        self.beat()
        self._missed = type(error).__name__

    @property
    def reaches(self) -> bool:
        """Whether the mailbox was reached at the last look."""
        return self._looked is not None and self._missed is None

    def trouble(self, within: float) -> str | None:
        """Return why the loop is not ready, or None if it has reached its mailbox lately.

        A long poll in progress counts for as long as it may wait. Without one, the last
        successful look must lie within so many seconds.
        """
        missed, looked, now = self._missed, self._looked, self.clock.monotonic()
        if missed is not None:
            return f"its last look into the mailbox failed with {missed}"
        if looked is None:
            return "has not looked into its mailbox yet"
        due = max((look.due for look in list(self._looks)), default=None)
        if due is None:
            silent = now - looked
            if silent > within:
                return f"has not looked into its mailbox for {silent:.0f} s"
        elif now > due > looked:
            return (
                f"its look into the mailbox has outlasted its wait by {now - due + OVERDUE:.0f} s"
            )
        return None


class Look:
    """One look into the mailbox, in progress or not."""

    __slots__ = ("_heart", "_wait", "due")

    def __init__(self, heart: Heartbeat, wait: float) -> None:
        self._heart = heart
        self._wait = wait
        self.due = 0.0

    def __enter__(self) -> None:
        heart = self._heart
        heart._last = now = heart.clock.monotonic()
        self.due = now + self._wait + OVERDUE
        heart._looks[self] = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._heart._looks[self]
        if error is None:
            self._heart.looked()
        else:
            self._heart.missed(error)


class Job:
    """One job at work."""

    __slots__ = ("_token", "heart", "last")

    # A context variable, because jobs may be threads as well as tasks of one event loop.
    current: ClassVar[ContextVar["Job | None"]] = ContextVar("job", default=None)

    def __init__(self, heart: Heartbeat) -> None:
        self.heart = heart
        self.last = 0.0
        self._token: Token[Job | None] | None = None

    def __enter__(self) -> None:
        heart = self.heart
        self._token = Job.current.set(self)
        self.last = heart._last = heart.clock.monotonic()
        heart._jobs[self] = None

    def __exit__(self, *exc: object) -> None:
        heart = self.heart
        heart._last = heart.clock.monotonic()
        del heart._jobs[self]
        if self._token is not None:
            Job.current.reset(self._token)

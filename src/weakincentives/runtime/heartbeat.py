"""A loop's heartbeat, which the watchdog and health probes read without blocking."""

from contextvars import ContextVar, Token
from types import TracebackType
from typing import ClassVar

from weakincentives.clock import Clock, SystemClock

__all__ = ["Heartbeat"]

# How many seconds a receive may take beyond its wait time before it counts as hanging.
OVERDUE = 15.0


class Heartbeat:
    """Shows that a loop is alive (`beat`) and that it can reach its mailbox (`looking`).

    A loop wraps each receive in ``with heartbeat.looking(wait):`` and each job in
    ``with heartbeat.working():``. Nothing here blocks, so the watchdog and health probes can read
    it while the loop hangs.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock if clock is not None else SystemClock()
        self._last = self.clock.monotonic()
        self._has_received = False
        self._reached_at = 0.0
        self._receive_error: str | None = None
        self._extension_error: str | None = None
        # Dicts, not sets: list(dict) is safe while other threads of the loop change it.
        self._receives: dict[ReceiveInProgress, None] = {}
        self._jobs: dict[JobInProgress, None] = {}

    @property
    def last(self) -> float:
        """When the last beat was, as a monotonic reading of the clock."""
        return self._last

    def beat(self) -> None:
        """Record that the loop makes progress; in a handler, that the job does."""
        self._last = self.clock.monotonic()
        job = JobInProgress.current.get()
        if job is not None and job.heart is self:
            job.last = self._last

    def elapsed(self) -> float:
        """Return the seconds since the last beat, or since that of the most silent running job.

        A receive in progress counts as silence only after its wait time is over.
        """
        now = self.clock.monotonic()
        due = max((one.due for one in list(self._receives)), default=0.0)
        last = max(self._last, min(due, now))
        oldest = min((job.last for job in list(self._jobs)), default=last)
        return max(0.0, now - min(oldest, last))

    def working(self) -> "JobInProgress":
        """Return a context for one job; beats of other jobs do not hide that this one hangs."""
        return JobInProgress(self)

    def at_work(self) -> bool:
        """Return whether the caller is in a job of this loop, and so must not wait for its end."""
        job = JobInProgress.current.get()
        return job is not None and job.heart is self

    def looking(self, wait_time_seconds: float = 0.0) -> "ReceiveInProgress":
        """Return a context for one receive that waits for at most ``wait_time_seconds``."""
        return ReceiveInProgress(self, wait_time_seconds)

    def looked(self) -> None:
        """Record that a receive reached the mailbox, with or without a message."""
        self._reached_at = self._last = self.clock.monotonic()
        self._has_received = True
        self._receive_error = self._extension_error = None

    def missed(self, error: BaseException) -> None:
        """Record that a receive failed."""
        self.beat()
        self._receive_error = type(error).__name__

    def note_extension(self, error: BaseException | None) -> None:
        """Record whether extending a lease reached the mailbox; ``error`` is None if it did.

        This is not a beat, because the lease extender runs in its own thread.
        """
        if error is None:
            self._reached_at = self.clock.monotonic()
        self._extension_error = None if error is None else type(error).__name__

    @property
    def reaches(self) -> bool:
        """Whether the last receive reached the mailbox."""
        return self._has_received and self._receive_error is None

    def trouble(self, within: float) -> str | None:
        """Return why the loop is not ready, or None if it has recently reached its mailbox.

        A long poll in progress counts as ready until its wait time is over. Without one, a
        receive or a lease extension must have succeeded in the last ``within`` seconds.
        """
        receive_error, extension_error = self._receive_error, self._extension_error
        if receive_error is not None:
            return f"its last receive failed with {receive_error}"
        if extension_error is not None:
            return f"its last lease extension failed with {extension_error}"
        if not self._has_received:
            return "has not received from its mailbox yet"
        reached, now = self._reached_at, self.clock.monotonic()
        due = max((one.due for one in list(self._receives)), default=None)
        if due is None:
            silent = now - reached
            if silent > within:
                return f"has not reached its mailbox for {silent:.0f} s"
        elif now > due > reached:
            return f"its receive has exceeded its wait time by {now - due + OVERDUE:.0f} s"
        return None


class ReceiveInProgress:
    """The context of one receive; while entered, the receive is in progress."""

    __slots__ = ("_heart", "_wait", "due")

    def __init__(self, heart: Heartbeat, wait: float) -> None:
        self._heart = heart
        self._wait = wait
        self.due = 0.0

    @property
    def in_progress(self) -> bool:
        """Whether the ``with`` block of this receive was entered and not left."""
        return self in self._heart._receives

    def __enter__(self) -> None:
        heart = self._heart
        heart._last = now = heart.clock.monotonic()
        self.due = now + self._wait + OVERDUE
        heart._receives[self] = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._heart._receives[self]
        if error is None:
            self._heart.looked()
        else:
            self._heart.missed(error)


class JobInProgress:
    """The context of one running job."""

    __slots__ = ("_token", "heart", "last")

    # A context variable, because jobs may run in threads or as tasks of one event loop.
    current: ClassVar[ContextVar["JobInProgress | None"]] = ContextVar("job", default=None)

    def __init__(self, heart: Heartbeat) -> None:
        self.heart = heart
        self.last = 0.0
        self._token: Token[JobInProgress | None] | None = None

    def __enter__(self) -> None:
        heart = self.heart
        self._token = JobInProgress.current.set(self)
        self.last = heart._last = heart.clock.monotonic()
        heart._jobs[self] = None

    def __exit__(self, *exc: object) -> None:
        heart = self.heart
        heart._last = heart.clock.monotonic()
        del heart._jobs[self]
        if self._token is not None:
            JobInProgress.current.reset(self._token)

"""One call of `Worker.run`, and what the threads of a worker share."""

import _thread
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weakincentives.runtime.heartbeat import Heartbeat
from weakincentives.runtime.leases.extender import DEFAULT_EXTENSION, LeaseExtenderConfig
from weakincentives.runtime.mailbox.seam.waiting import StopSignal

from .inbox import Hold, Inbox
from .outage_log import OutageLog
from .settle import OutcomeExecutor
from .shortage import Shortage
from .time_limits import TimeLimits

if TYPE_CHECKING:
    from .announcer import Announcer
    from .event_loop import WorkerLoop
    from .thread import WorkerThread

__all__ = ["RunInProgress", "Shared"]


@dataclass(frozen=True, slots=True)
class Shared:
    """What all threads of a worker share, in all of its runs."""

    inbox: Inbox
    handler: Callable[..., Any]
    with_job: Callable[[Any, Any], Any] | None
    """The handler if it also takes a job, else None."""
    executor: OutcomeExecutor
    limits: TimeLimits | None
    """Ends jobs that take too long; None if there is no limit, or the handler is async."""
    time_limit: float | None
    stop: StopSignal
    heartbeat: Heartbeat
    outage: OutageLog
    shortage: Shortage
    isolates_suspects: bool
    """Whether a job that kills its worker could take anything with it."""
    wait_lock: Any
    """Held by the one thread that waits for messages; others would wait for the same ones. An
    `RLock`, so that a thread can tell at its end whether an interrupt has left it the turn."""
    threads: "dict[WorkerThread, int]"
    """The threads at work, with their idents."""
    loops: "dict[WorkerLoop, int]"
    """The event loops at work, with the idents of their threads."""


class RunInProgress:
    """One call of `Worker.run`: what its threads share."""

    def __init__(
        self,
        max_iterations: int | None,
        batch: int,
        visibility: float,
        wait: float,
        leases: LeaseExtenderConfig,
        hold: Hold,
    ) -> None:
        self.hold = hold
        self.batch = batch
        self.visibility = visibility
        self.wait = wait
        is_default = leases.extension == DEFAULT_EXTENSION
        self.leases = replace(leases, extension=visibility) if is_default else leases
        self.error: BaseException | None = None
        self.resources: Any = None
        """What the jobs of this run share."""
        self.announcer: Announcer | None = None
        """What has its process listed by the backend."""
        self.given_back = 0
        """How many jobs of an event loop were cut off by a shutdown and given back."""
        # A lock, not an `Event`: an interrupt inside an `Event` would leave it locked.
        self.going_on = _thread.allocate_lock()
        self.going_on.acquire()
        # Each receive takes one item; next() is atomic, so threads need no lock.
        self.receives: Iterator[int] = (
            itertools.count() if max_iterations is None else iter(range(max_iterations))
        )

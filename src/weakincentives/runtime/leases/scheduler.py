"""Extends leases when they are due: one thread for each backend, one batch for each mailbox."""

import _thread
import math
import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError
from weakincentives.runtime.mailbox.seam.cancels import on_cancel

if TYPE_CHECKING:
    from .extender import Lease, LeaseExtenderConfig

logger = get_logger(__name__)

__all__ = [
    "PLAN_LATER_SECONDS",
    "SCHEDULERS",
    "LeaseScheduler",
    "LeaseSchedulers",
    "aligned",
    "beat",
    "beat_length",
    "next_beat",
]

BEATS = 4  # the fourth beat would come when the lease ends, so three fit
SHORTEST_BEAT = 0.02
IDLE_SECONDS = 4.0
"""The longest sleep of the thread, so that it ends soon after the last lease is released, and finds
out soon which messages were cancelled."""
RETRY_SECONDS = 0.5
"""How long to wait before trying again to start a thread."""
MOST_AT_ONCE = 500
"""The number of leases that are extended in one step: others must not wait long for its end."""
LOOK_FOR_CANCELS_SECONDS = 4.0
"""How often the thread asks each queue which of the messages it holds leases of were cancelled."""
LOOK_AT_REPLIES_SECONDS = 15.0
"""How often it does so where it must ask for the reply to each message, because the queue cannot
say it."""
PLAN_LATER_SECONDS = 2 * IDLE_SECONDS
"""A lease whose first beat is further away than this is planned when the thread next wakes."""


def beat(interval: float, remaining: float) -> float:
    """Return the seconds until the next extension of a lease that lasts ``remaining`` seconds."""
    return max(min(interval, remaining / BEATS), SHORTEST_BEAT)


def aligned(due: float, length: float) -> float:
    """Round ``due`` down a little, so that leases with similar times are extended together."""
    # To a power of two: lengths differ a little, and an eighth of each would be a grid of its own.
    _, exponent = math.frexp(length / 8)
    return due - due % math.ldexp(0.5, exponent)


def beat_length(config: "LeaseExtenderConfig", remaining: float) -> float:
    """Return the seconds until the next extension.

    A lease of unknown length is taken to last one ``extension``.
    """
    return beat(config.interval, config.extension if remaining == math.inf else remaining)


def next_beat(now: float, config: "LeaseExtenderConfig", remaining: float) -> float:
    """Return when a lease that lasts ``remaining`` seconds must be extended next."""
    length = beat_length(config, remaining)
    return max(aligned(now + length, length), now + SHORTEST_BEAT)


class Batch(NamedTuple):
    """Leases that are extended in one step; ``mailbox`` is None for a foreign message."""

    mailbox: Any
    leases: list["Lease"]
    seconds: float


class LeaseScheduler:
    """Extends leases when they are due, in a thread that runs while there are any.

    There is one for each backend, so that a backend that hangs does not delay the others.
    """

    _is_asked_to_look = False

    def __init__(self, backend: object = None, registry: "LeaseSchedulers | None" = None) -> None:
        self.backend = backend
        self._registry = registry
        self.reset()

    def reset(self) -> None:
        """Drop all leases and the thread, as a forked child must."""
        # A dict, because adding and removing a key is atomic and needs no lock.
        self._leases: dict[Lease, None] = {}
        self._lock = threading.Lock()
        # Free while a wake-up is due. A lock and no `Event`, which an interrupt of the one who sets
        # it would leave locked, and the thread with it.
        self._asleep = _thread.allocate_lock()
        self._asleep.acquire()
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf
        self._looks_for_cancels_at: dict[Any, float] = {}
        # Weak, because an interrupt may keep a user from leaving, and without a callback, in which
        # an interrupt would be lost; a set, because one that was interrupted on its way in leaves
        # without having entered.
        self._users: set[weakref.ref[object]] = set()

    @property
    def held(self) -> int:
        """How many leases this scheduler extends."""
        return len(self._leases)

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that extends leases; None if it is not running."""
        return self._thread

    @property
    def lacks_thread(self) -> bool:
        """Whether there are leases but no thread to extend them."""
        return self._thread is None and bool(self._leases)

    def enter(self, user: object) -> None:
        """Keep a thread running until `leave`, even without leases; raise if none can start."""
        with self._lock:
            self._users = {weakref.ref(user), *self._present_users()}
            if self._thread is None:
                self._start()

    def leave(self, user: object) -> None:
        """Undo `enter`."""
        with self._lock:
            self._users.discard(weakref.ref(user))

    def _present_users(self) -> list["weakref.ref[object]"]:
        return [user for user in self._users if user() is not None]

    def add(self, lease: "Lease") -> None:
        """Start extending a lease."""
        self._leases[lease] = None
        if self._thread is None or lease.due < self._wakes_at:
            self.wake()

    def drop(self, lease: "Lease") -> None:
        """Stop extending a lease."""
        self._leases.pop(lease, None)

    def wake(self) -> None:
        """Wake the thread or start one; if none can start, ask the other schedulers to retry."""
        if not self.wake_or_start():
            logger.warning("no thread can be started to extend leases; trying again soon")
            if self._registry is not None:
                self._registry.wake_all()

    def wake_or_start(self) -> bool:
        """Wake the thread or start one; return False if the process cannot start a thread."""
        with self._lock:
            if self._thread is not None:
                with suppress(RuntimeError):  # it is to wake up already
                    self._asleep.release()
                return True
            try:
                self._start()
            except RuntimeError:
                return False
            return True

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="lease-extender", daemon=True)
        thread.start()
        # Set only after start(): otherwise a thread that failed to start would look alive forever.
        self._thread = thread
        if self._registry is not None:
            self._registry.remember(self)

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            try:
                self.extend_due(now)
                self.look_for_cancels(now)
            except Exception:
                # Other leases depend on this thread, so it must survive an error in one of them.
                logger.exception("the lease extender failed; it continues")
                time.sleep(1.0)
            longest = (
                IDLE_SECONDS
                if self._registry is None or self._registry.start_missing()
                else RETRY_SECONDS
            )
            with self._lock:
                if not self._leases and not self._present_users():
                    thread, self._thread = self._thread, None
                    # Check again: a caller that has just added a lease may have seen this thread.
                    if not self._leases:
                        if self._registry is not None:
                            self._registry.forget(self)
                        return
                    self._thread = thread
                self._asleep.acquire(blocking=False)
                # Until the wake-up time is known, every caller that adds a lease wakes the thread.
                self._wakes_at = math.inf
                self._wakes_at = min(self._next_due(), self._next_look(now), now + longest)
            # Releasing a lease does not wake the thread; this bounded wait lets it end soon after
            # the last one.
            self._asleep.acquire(timeout=max(self._wakes_at - time.monotonic(), 0.0))

    def _next_due(self) -> float:
        return min((lease.due for lease in list(self._leases)), default=math.inf)

    def extend_due(self, now: float) -> None:
        """Extend every lease that is due, in the order of their deadlines."""
        for batch in self._due_batches(now):
            if not self._extend(batch):
                # A failed call may have taken long, so sort the due leases again by urgency.
                return

    def _due_batches(self, now: float) -> Iterator[Batch]:
        """Group the leases that are due into batches, and drop those that are over."""
        groups: dict[tuple[Any, float], list[Lease]] = defaultdict(list)
        held = list(self._leases)
        for lease in held:
            if lease.due == math.inf:
                lease.plan()
        for lease in [lease for lease in held if lease.due <= now]:
            seconds = None if lease.lost else lease.next_extension()
            if seconds is None:
                self.drop(lease)
                if not lease.lost:
                    lease.given_up()
            elif seconds == 0:
                lease.plan_next()
            else:
                groups[lease.message._mailbox if lease.batchable else lease, seconds].append(lease)
        for key in sorted(groups, key=lambda key: min(lease.deadline for lease in groups[key])):
            leases, seconds = groups[key], key[1]
            mailbox = leases[0].message._mailbox if leases[0].batchable else None
            limit = len(leases) if mailbox is None else min(mailbox.limits.max_batch, MOST_AT_ONCE)
            for start in range(0, len(leases), limit):
                yield Batch(mailbox, leases[start : start + limit], seconds)

    def _next_look(self, now: float) -> float:
        """Return when to look for cancelled messages next."""
        if not self._leases:
            return math.inf
        if self._is_asked_to_look:
            return now
        return min(self._looks_for_cancels_at.values(), default=now + LOOK_FOR_CANCELS_SECONDS)

    def look_soon(self) -> None:
        """Look for cancelled messages now: one was cancelled in this process."""
        # Without the lock, because a signal handler may cancel while its own thread holds it. The
        # thread looks for this before it sleeps.
        if self._leases:
            self._is_asked_to_look = True
            with suppress(RuntimeError):  # it is to wake up already
                self._asleep.release()

    def look_for_cancels(self, now: float) -> None:
        """Ask each queue whether messages that are held were cancelled, when that is due."""
        everywhere, self._is_asked_to_look = self._is_asked_to_look, False
        held: dict[Any, list[Lease]] = defaultdict(list)
        for lease in list(self._leases):
            if lease.batchable and not lease.cancelled:
                held[lease.message._mailbox].append(lease)
        due = self._looks_for_cancels_at
        for mailbox in [mailbox for mailbox in due if mailbox not in held]:
            del due[mailbox]
        for mailbox, leases in held.items():
            first = now + _between_looks(mailbox) - LOOK_FOR_CANCELS_SECONDS
            if everywhere or now >= due.setdefault(mailbox, first):
                due[mailbox] = now + _between_looks(mailbox)
                self._tell_cancelled(mailbox, leases)

    def _tell_cancelled(self, mailbox: Any, leases: list["Lease"]) -> None:
        for start in range(0, len(leases), MOST_AT_ONCE):
            some = leases[start : start + MOST_AT_ONCE]
            try:
                states = mailbox._lease_states([lease.message for lease in some])
            except Exception as error:  # noqa: BLE001 - it is asked again at the next look
                logger.debug("%r cannot be asked which messages were cancelled: %s", mailbox, error)
                return
            for lease, state in zip(some, states, strict=True):
                if state == "cancelled" and lease in self._leases:
                    lease.cancel()

    def _extend(self, batch: Batch) -> bool:
        """Extend the leases of a batch that are still held; return False if the call failed."""
        leases = [lease for lease in batch.leases if lease in self._leases and not lease.lost]
        if not leases:
            return True
        seconds = batch.seconds
        try:
            if batch.mailbox is None:
                answers: Iterable[bool] = [_extend_one(lease, seconds) for lease in leases]
            else:
                seconds = batch.mailbox.limits.rounded(seconds)
                answers = batch.mailbox._extend_leases([lease.message for lease in leases], seconds)
        except Exception as error:  # noqa: BLE001 - any error is retried at the next beat
            for lease in leases:
                self._failed(lease, error)
            return False
        for lease, granted in zip(leases, answers, strict=True):
            self._answered(lease, granted, seconds)
        return True

    def _answered(self, lease: "Lease", granted: bool, seconds: float) -> None:
        if lease not in self._leases:
            return
        if getattr(lease.message, "is_finalized", False):
            self.drop(lease)  # the message was settled meanwhile, so a refusal means nothing
        elif granted:
            lease.extended(seconds)
            lease.plan_next()
        elif lease.is_settling:
            self.drop(lease)  # the step that settles it will tell whether the lease was lost
        else:
            self.drop(lease)
            lease.refused()

    def _failed(self, lease: "Lease", error: Exception) -> None:
        if lease in self._leases:
            lease.failed(error)
            lease.plan_next()


def _between_looks(mailbox: Any) -> float:
    can_say = mailbox.capabilities.cancels
    return LOOK_FOR_CANCELS_SECONDS if can_say else LOOK_AT_REPLIES_SECONDS


def _extend_one(lease: "Lease", seconds: float) -> bool:
    try:
        lease.message.extend_visibility(seconds)
    except ReceiptHandleExpiredError:
        return False
    return True


class LeaseSchedulers:
    """The schedulers of this process, one for each backend with leases."""

    def __init__(self) -> None:
        # Keyed by identity; a scheduler keeps its backend alive, so that no id is reused.
        self._of: dict[int, LeaseScheduler] = {}

    def of(self, backend: object) -> LeaseScheduler:
        """Return the scheduler of a backend, or of another object that serves as its key."""
        scheduler = self._of.get(id(backend))
        if scheduler is None:
            # setdefault is atomic, so that two threads get the same scheduler.
            scheduler = self._of.setdefault(id(backend), LeaseScheduler(backend, self))
        return scheduler

    def look_for_cancels(self, backend: object) -> None:
        """Have the leases of a backend looked at now: a message was cancelled in this process."""
        scheduler = self._of.get(id(backend))
        if scheduler is not None:
            scheduler.look_soon()

    def all(self) -> list[LeaseScheduler]:
        """Return all schedulers."""
        return list(self._of.values())

    def remember(self, scheduler: LeaseScheduler) -> None:
        """Add a forgotten scheduler again, unless its backend has another one by now."""
        self._of.setdefault(id(scheduler.backend), scheduler)

    def forget(self, scheduler: LeaseScheduler) -> None:
        """Remove a scheduler; callers that still have it may continue to use it."""
        if self._of.get(id(scheduler.backend)) is scheduler:
            del self._of[id(scheduler.backend)]

    def wake_all(self) -> None:
        """Wake all running threads, so that one of them starts the missing one."""
        for scheduler in self.all():
            if scheduler.thread is not None:
                scheduler.wake_or_start()

    def start_missing(self) -> bool:
        """Start the threads that could not be started before; return False if one still cannot."""
        return all(scheduler.wake_or_start() for scheduler in self.all() if scheduler.lacks_thread)

    def reset(self) -> None:
        """Drop everything in a forked child, which has no threads and owns no leases."""
        for scheduler in self.all():
            scheduler.reset()
        self._of = {}


# One for the whole process, so that the number of threads does not grow with loops or leases.
SCHEDULERS = LeaseSchedulers()
on_cancel(SCHEDULERS.look_for_cancels)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SCHEDULERS.reset)

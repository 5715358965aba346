"""Runs several loops in one process and stops them together."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from weakincentives.logs import get_logger
from weakincentives.runtime.heartbeat import Heartbeat
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.limits import check_positive

from .health_server import HealthServer
from .member import Ended, Member, ShutdownReturned, members_of
from .readiness import DeadLetterDepths, ProbeReport, liveness, readiness
from .runnable import Runnable
from .signals import SIGNAL_CHECK_SECONDS, ShutdownCoordinator
from .watchdog import Watchdog

__all__ = ["LoopGroup"]

logger = get_logger(__name__)

HAND_OVER_SECONDS = 2.0
"""The longest that a group waits after its deadline, while its loops give back what is unfinished:
more than a `Worker` needs, and the same for groups inside groups, which wait at the same time."""


@dataclass(frozen=True, slots=True)
class StopOrder:
    """An order to stop all loops within ``timeout`` seconds."""

    timeout: float


class LoopGroup:
    """Runs each loop in a thread, and stops them all when one crashes or a signal arrives.

    ``health_port`` starts the health server; ``watchdog_threshold`` ends the process if a loop
    hangs. A loop is ready if it reached its mailbox within the last ``ready_within`` seconds, or
    is waiting for a message now. A group runs once, and can itself be a loop of another group,
    whose ``shutdown_timeout`` then counts.
    """

    def __init__(
        self,
        loops: Sequence[Runnable],
        *,
        shutdown_timeout: float = 30.0,
        health_port: int | None = None,
        health_host: str = "127.0.0.1",
        watchdog_threshold: float | None = None,
        ready_within: float = 300.0,
    ) -> None:
        self.members = members_of(loops)
        self._leaves = [leaf for member in self.members for leaf in member.leaves()]
        self.shutdown_timeout = check_positive("shutdown_timeout", shutdown_timeout)
        self._ready_within = check_positive("ready_within", ready_within)
        self._threshold = (
            None
            if watchdog_threshold is None
            else check_positive("watchdog_threshold", watchdog_threshold)
        )
        self._depths = DeadLetterDepths(_dead_letter_mailboxes(self._leaves))
        self._health = (
            None
            if health_port is None
            else HealthServer(self.live, self.ready, host=health_host, port=_port(health_port))
        )
        # A signal handler may call shutdown() at any point: SimpleQueue is reentrant, and the
        # flags are plain attributes, so there is no lock that the handler could deadlock on.
        self._news: SimpleQueue[StopOrder | Ended | ShutdownReturned] = SimpleQueue()
        self._once = threading.Lock()
        self._started = False
        self._stopping = False
        self._crashed: Member | None = None
        self._runner: threading.Thread | None = None
        self._finished = threading.Event()

    @property
    def running(self) -> bool:
        """Whether `run` is in progress."""
        return self._runner is not None

    @property
    def heartbeat(self) -> Heartbeat:
        """The heartbeat of the running loop that has been silent for the longest time."""
        running = [leaf for leaf in self._leaves if leaf.loop.running] or self._leaves
        return max((leaf.loop.heartbeat for leaf in running), key=Heartbeat.elapsed)

    @property
    def drained(self) -> bool:
        """Whether all loops have ended, those of inner groups too, and no job was cut off."""
        return self._is_over and all(leaf.ended and not leaf.cut_off for leaf in self._leaves)

    @property
    def health_address(self) -> tuple[str, int] | None:
        """Host and port of the health server while it runs; None if there is none."""
        return None if self._health is None else self._health.address

    def run(
        self,
        *,
        max_iterations: int | None = None,
        install_signals: bool = True,
        visibility_timeout: float | None = None,
        wait_time_seconds: float = 20,
    ) -> None:
        """Run all loops until they end: on their own, by `shutdown`, a signal or a crash.

        Without ``visibility_timeout``, each loop uses its own default. If a loop crashes, the
        others are stopped, and then its exception is raised from here. If the shutdown deadline
        passes while work is unfinished, `run` returns and `drained` is False.
        """

        def run_loop(loop: Runnable) -> None:
            if self._stopping:
                return
            run = partial(
                loop.run, max_iterations=max_iterations, wait_time_seconds=wait_time_seconds
            )
            if isinstance(loop, LoopGroup):
                run = partial(run, install_signals=False)  # the outer group handles signals
            if visibility_timeout is None:
                run()
            else:
                run(visibility_timeout=visibility_timeout)

        self._check_threshold(wait_time_seconds)
        if not self._begin():
            return
        try:
            if not self._stopping:
                with ExitStack() as services:
                    self._start_services(services, install_signals)
                    self._run_loops(run_loop)
        finally:
            self._runner = None
            self._finished.set()
        if self._crashed is not None and self._crashed.error is not None:
            raise self._crashed.error

    def shutdown(self, *, timeout: float | None = None) -> bool:
        """Stop all loops at once; return True if they have all ended within ``timeout`` seconds.

        Until then their jobs may finish; giving back the rest may take up to two seconds more. The
        first call sets the deadline; without ``timeout`` that is ``shutdown_timeout``. Called from
        inside the group (by a handler, or by a signal in its thread), it does not wait.
        """
        limit = self.shutdown_timeout if timeout is None else _not_negative(timeout)
        self._stopping = True
        self._news.put(StopOrder(limit))
        if not self._started:
            return True
        if not self._is_inside():
            self._finished.wait(limit + HAND_OVER_SECONDS if limit else 0)
        return self._finished.is_set() and self.drained

    def live(self) -> ProbeReport:
        """Return the answer to the liveness probe: OK unless a loop has crashed."""
        return liveness((member.name, member.crash) for member in self.members)

    def ready(self) -> ProbeReport:
        """Return the answer to the readiness probe, with reasons and the number of dead letters."""
        return readiness(
            [leaf.state for leaf in self._leaves],
            within=self._ready_within,
            stopping=self._stopping,
            dead_letters=self._depths.read(),
        )

    def _begin(self) -> bool:
        """Return True in the first run; later, raise, or return False after a shutdown."""
        if not self._once.acquire(blocking=False):
            if self._stopping:
                return False
            raise RuntimeError("a LoopGroup runs once; make a new one for the next run")
        # In this order, so that a concurrent shutdown() either sees that the group has started,
        # or sets _stopping before run() checks it.
        self._runner = threading.current_thread()
        self._started = True
        return True

    def _check_threshold(self, wait_time_seconds: float) -> None:
        if self._threshold is not None and self._threshold <= wait_time_seconds:
            raise InvalidParameterError(
                f"watchdog_threshold must be above wait_time_seconds ({wait_time_seconds:g}), or "
                f"an idle loop looks like one that hangs; not {self._threshold:g}"
            )

    def _start_services(self, services: ExitStack, install_signals: bool) -> None:
        if install_signals:
            services.enter_context(self._signals())
        if self._health is not None:
            services.callback(self._health.stop)
            self._health.start()
            logger.info("health probes on %s port %d", *(self._health.address or ()))
        if self._threshold is not None:
            watchdog = Watchdog([leaf.loop for leaf in self._leaves], threshold=self._threshold)
            services.callback(watchdog.stop)
            watchdog.start()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def stop() -> None:
            self._stopping = True
            self._news.put(StopOrder(self.shutdown_timeout))

        if threading.current_thread() is not threading.main_thread():
            logger.info("no signal handlers: the group does not run in the main thread")
            yield
            return
        coordinator = ShutdownCoordinator.install()
        coordinator.register(stop)
        try:
            yield
        finally:
            coordinator.unregister(stop)
            coordinator.uninstall()

    def _run_loops(self, run: Callable[[Runnable], None]) -> None:
        timeout = self.shutdown_timeout
        try:
            for member in self.members:
                member.start(run, self._news.put)
            timeout = self._serve()
        finally:
            # Stop the loops whatever ended the wait, including KeyboardInterrupt.
            self._drain(timeout)

    def _serve(self) -> float:
        """Wait for a reason to stop, and return how many seconds the shutdown may take."""
        while not self._is_over:
            try:
                # A bounded wait, so that Python gets to run signal handlers: a signal that arrives
                # just before the wait, or in another thread, does not interrupt it.
                news = self._news.get(timeout=SIGNAL_CHECK_SECONDS)
            except Empty:
                continue
            if isinstance(news, StopOrder):
                return news.timeout
            if isinstance(news, Ended) and self._note(news.member):
                break
        return self.shutdown_timeout

    def _note(self, member: Member) -> bool:
        """Record that a loop has ended; return True if it crashed."""
        member.ended = True
        if member.error is None:
            logger.info("%s has ended", member.name)
            return False
        logger.error("%s crashed; the group stops", member.name, exc_info=member.error)
        if self._crashed is None:
            self._crashed = member
        return True

    def _drain(self, timeout: float) -> None:
        """Stop all loops at once and wait for them until one common deadline."""
        if self._is_over:
            return
        self._stopping = True
        deadline = time.monotonic() + timeout
        stopping = [member for member in self.members if not member.ended]
        for member in stopping:
            member.stop(timeout, self._news.put)
        self._await_stop(stopping, deadline)
        unfinished = [one.name for one in self.members if not one.ended or one.cut_off]
        if unfinished:
            logger.error("did not end within %g s: %s", timeout, ", ".join(unfinished))

    def _await_stop(self, stopping: list[Member], deadline: float) -> None:
        """Wait for the loops until the deadline, and then for what they give back."""
        last = deadline + HAND_OVER_SECONDS
        now = time.monotonic()
        while now < last and not all(one.has_stopped(late=now >= deadline) for one in stopping):
            wait = (deadline if now < deadline else last) - now
            try:
                # In short waits, for the same reason as in `_serve`.
                news = self._news.get(timeout=min(SIGNAL_CHECK_SECONDS, wait))
            except Empty:
                pass
            else:
                if isinstance(news, Ended):
                    self._note(news.member)
            now = time.monotonic()

    @property
    def _is_over(self) -> bool:
        return all(member.ended for member in self.members)

    def _is_inside(self) -> bool:
        current = threading.current_thread()
        return (
            current is self._runner
            or any(current is member.thread for member in self.members)
            or any(leaf.loop.heartbeat.at_work() for leaf in self._leaves)
        )


def _port(value: object) -> int:
    if type(value) is not int or not 0 <= value <= 65535:
        raise InvalidParameterError(
            f"health_port must be a whole number from 0 to 65535, not {value!r}"
        )
    return value


def _not_negative(timeout: float) -> float:
    return timeout if timeout == 0 else check_positive("timeout", timeout)


def _dead_letter_mailboxes(members: Sequence[Member]) -> list[Any]:
    """Return every mailbox that the loops send dead letters to or receive them from, once each."""
    mailboxes = []
    for member in members:
        mailboxes.append(getattr(getattr(member.loop, "dlq", None), "mailbox", None))
        mailboxes.append(getattr(member.loop, "dead_letters", None))
    return list({id(mailbox): mailbox for mailbox in mailboxes if mailbox is not None}.values())

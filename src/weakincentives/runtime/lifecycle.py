"""Loops that run together and stop together."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from .health import HealthServer
from .heartbeat import Heartbeat
from .mailbox.errors import InvalidParameterError
from .mailbox.limits import check_positive
from .members import Ended, Member, Runnable, members_of
from .probes import DeadLetterDepths, Report, liveness, readiness
from .shutdown import HEARING, ShutdownCoordinator
from .watchdog import Watchdog

__all__ = ["LoopGroup", "Runnable"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stop:
    """The order to stop within so many seconds."""

    timeout: float


class LoopGroup:
    """Runs each loop in a thread, and stops all of them when one crashes or a signal comes.

    ``health_port`` opens the probes, ``watchdog_threshold`` ends a process whose loops hang. A
    loop is ready if it reached its mailbox within ``ready_within`` seconds, or is waiting there.
    A group runs once, and can itself be a loop of another group.
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
        self._shutdown_timeout = check_positive("shutdown_timeout", shutdown_timeout)
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
        # Signal handlers may call shutdown(): this queue can be used where one interrupted it,
        # and the flags are plain attributes, so that no lock is ever taken twice.
        self._news: SimpleQueue[Stop | Ended] = SimpleQueue()
        self._once = threading.Lock()
        self._started = False
        self._stopping = False
        self._crashed: Member | None = None
        self._runner: threading.Thread | None = None
        self._finished = threading.Event()

    @property
    def running(self) -> bool:
        """Whether the group is in `run`."""
        return self._runner is not None

    @property
    def heartbeat(self) -> Heartbeat:
        """The pulse of its most silent loop that runs."""
        running = [leaf for leaf in self._leaves if leaf.loop.running] or self._leaves
        return max((leaf.loop.heartbeat for leaf in running), key=Heartbeat.elapsed)

    @property
    def drained(self) -> bool:
        """Whether every loop that was started has ended."""
        return all(member.ended for member in self.members)

    @property
    def health_address(self) -> tuple[str, int] | None:
        """Host and port of the probes while the group runs with a ``health_port``."""
        return None if self._health is None else self._health.address

    def run(
        self,
        *,
        max_iterations: int | None = None,
        install_signals: bool = True,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Serve until all loops have ended: by themselves, by `shutdown`, a signal or a crash.

        What a crashed loop raised comes out as itself, once the others have stopped. After a
        deadline that passed with work unfinished `run` returns and `drained` is False.
        """

        def run_loop(loop: Runnable) -> None:
            if not self._stopping:
                loop.run(
                    max_iterations=max_iterations,
                    visibility_timeout=visibility_timeout,
                    wait_time_seconds=wait_time_seconds,
                )

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
        """Tell all loops at once to stop; True if all have ended within ``timeout`` seconds.

        The first call sets the deadline (``shutdown_timeout`` if it names none). From inside
        the group (a handler, or a signal in the thread that runs it) nothing is waited for.
        """
        limit = self._shutdown_timeout if timeout is None else _not_negative(timeout)
        self._stopping = True
        self._news.put(Stop(limit))
        if not self._started:
            return True
        if not self._is_inside():
            self._finished.wait(limit)
        return self._finished.is_set() and self.drained

    def live(self) -> Report:
        """Answer the liveness probe: no loop has crashed."""
        return liveness((member.name, member.crash) for member in self.members)

    def ready(self) -> Report:
        """Answer the readiness probe, with reasons and the depth of the dead letters."""
        return readiness(
            [leaf.state for leaf in self._leaves],
            within=self._ready_within,
            stopping=self._stopping,
            dead_letters=self._depths.read(),
        )

    def _begin(self) -> bool:
        """Say whether this is the first run; a later one is an error or, after a shutdown, void."""
        if not self._once.acquire(blocking=False):
            if self._stopping:
                return False
            raise RuntimeError("a LoopGroup runs once; make a new one for the next run")
        # In this order: a shutdown() meanwhile either sees the start, or is seen after it.
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
            self._news.put(Stop(self._shutdown_timeout))

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
        timeout = self._shutdown_timeout
        try:
            for member in self.members:
                member.start(run, self._news.put)
            timeout = self._serve()
        finally:
            # Whatever ends the wait, a KeyboardInterrupt too, no loop is left behind.
            self._drain(timeout)

    def _serve(self) -> float:
        """Wait for a reason to stop and return the seconds left for it."""
        while not self.drained:
            try:
                # Bounded, so that Python looks for signals now and then: one that arrives while
                # this thread is about to wait, or in another thread, does not end the wait.
                news = self._news.get(timeout=HEARING)
            except Empty:
                continue
            if isinstance(news, Stop):
                return news.timeout
            if self._note(news.member):
                break
        return self._shutdown_timeout

    def _note(self, member: Member) -> bool:
        """Take note of the end of a loop and say whether it was a crash."""
        member.ended = True
        if member.error is None:
            logger.info("%s has ended", member.name)
            return False
        logger.error("%s crashed; the group stops", member.name, exc_info=member.error)
        if self._crashed is None:
            self._crashed = member
        return True

    def _drain(self, timeout: float) -> None:
        """Tell all loops at once and wait for all of them until one deadline."""
        if self.drained:
            return
        self._stopping = True
        deadline = time.monotonic() + timeout
        # The loops' own deadline lies before ours, for giving back what they did not finish.
        early = timeout - min(1.0, timeout / 10)
        told = [member.told(early) for member in self.members if not member.ended]
        while not self.drained:
            try:
                news = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            if isinstance(news, Ended):
                self._note(news.member)
        for thread in filter(None, told):
            thread.join(max(0.0, deadline - time.monotonic()))
        if not self.drained:
            names = ", ".join(member.name for member in self.members if not member.ended)
            logger.error("not ended within %g s: %s", timeout, names)

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
    policies = (getattr(member.loop, "dlq", None) for member in members)
    mailboxes = (getattr(policy, "mailbox", None) for policy in policies)
    return list({id(mailbox): mailbox for mailbox in mailboxes if mailbox is not None}.values())

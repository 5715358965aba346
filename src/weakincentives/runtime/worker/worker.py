"""The worker loop: receive, handle, settle."""

import _thread
import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from typing_extensions import TypeVar

from weakincentives.logs import get_logger
from weakincentives.runtime.dead_letters.letter import DeadLetter
from weakincentives.runtime.heartbeat import Heartbeat
from weakincentives.runtime.leases.extender import LeaseExtender
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.seam.driver import run as run_coroutine
from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children
from weakincentives.runtime.mailbox.seam.waiting import StopSignal

from . import decide
from .annotations import adopt_annotations
from .announcer import ANNOUNCERS, ServingLoop, wait_until_gone, wait_until_gone_async
from .attempt import Attempt
from .awaited_inbox import LoopInbox, awaited_inbox_of
from .config import Failure, Settings, WorkerConfig
from .errors import CURRENT_JOB
from .event_loop import FINALLY_SECONDS, WorkerLoop
from .foreign import inbox_of
from .handler import with_job
from .interrupts import raised_in
from .job import AsyncJob, Job
from .outage_log import OutageLog
from .resources import Resources, enter, enter_async
from .run import RunInProgress, Shared
from .settle import OutcomeExecutor
from .shortage import Shortage
from .thread import WorkerThread
from .time_limits import TimeLimits
from .type_arguments import bind
from .validation import check_made_of, check_no_event_loop, check_run, is_async

if TYPE_CHECKING:
    from weakincentives.runtime.dead_letters.policy import DLQPolicy

__all__ = ["SHUTDOWN_SECONDS", "Failure", "Worker", "WorkerConfig"]

logger = get_logger(__name__)

T = TypeVar("T", default=Any)
R = TypeVar("R", default=None)

SHUTDOWN_SECONDS = 30.0
"""How long running jobs may take to finish when the worker is shut down."""
GIVE_BACK_SECONDS = 1.0
"""How long giving back unfinished messages may take after the deadline of a shutdown."""
JOIN_SECONDS = 0.5
"""How often to check whether a thread has ended."""


Handler: TypeAlias = (
    Callable[[T], R | Awaitable[R]] | Callable[[T, Job], R] | Callable[[T, AsyncJob], Awaitable[R]]
)
"""A function of a body, or of a body and its job."""


class Worker(Generic[T, R]):
    """Serves a mailbox with a function from a body to a reply, plain or async.

    If the function has a second parameter, it gets the `Job`, or the `AsyncJob`, too.

    A message is acknowledged when its handler has returned and its reply was sent. A handler that
    raises never acknowledges: see ``dlq`` and ``error_reply`` for what happens then.

    Plain handlers run in threads. Async ones run as tasks of one event loop, so that they can share
    clients: ``resources`` returns a context manager, plain or async, that each run enters once.
    """

    def __init__(
        self,
        mailbox: Mailbox[T, R],
        handler: Handler[T, R],
        *,
        error_reply: Callable[[Failure], R] | None = None,
        responses: Mailbox[R, None] | None = None,
        dlq: "DLQPolicy[T, R] | None" = None,
        config: WorkerConfig | None = None,
        resources: Resources | None = None,
    ) -> None:
        check_made_of(mailbox, handler, error_reply, dlq, config, resources)
        adopt_annotations(mailbox, handler, error_reply)
        self.config = config = config if config is not None else WorkerConfig()
        self.dlq = dlq
        self.heartbeat = Heartbeat()
        self.lease_extender = LeaseExtender(config.lease_extender, heartbeat=self.heartbeat)
        self._mailbox = mailbox
        self._handler = handler
        self._resources = resources
        self._stop = StopSignal()
        self._runs: dict[RunInProgress, int] = {}
        self._loop_inbox = awaited_inbox_of(mailbox) if is_async(handler) else None
        self._inbox = inbox = self._loop_inbox or inbox_of(mailbox)
        self._dispatcher = config.dispatcher
        self._responses = responses
        self._executor = OutcomeExecutor(
            inbox,
            Settings(config, error_reply, responses, dlq, config.dispatcher),
            self._stop,
            self.heartbeat,
            self._pause if self._loop_inbox is None else self._stop.pause_async,
        )
        limit = config.time_limit
        self._limits = (
            None
            if limit is None or self._loop_inbox is not None
            else TimeLimits(limit, self._executor)
        )
        self._shared = Shared(
            inbox=inbox,
            handler=handler,
            with_job=with_job(handler),
            executor=self._executor,
            limits=self._limits,
            time_limit=limit,
            stop=self._stop,
            heartbeat=self.heartbeat,
            outage=OutageLog(inbox.name, self.heartbeat.clock),
            shortage=Shortage(inbox.name),
            isolates_suspects=inbox.undoes and (dlq is not None or config.batch > 1),
            wait_lock=threading.RLock(),
            threads={},
            loops={},
        )
        begin_anew_in_children(self)

    def _begin_anew(self) -> None:
        """In a forked child: leave the runs to the parent; the child may start its own."""
        self._runs = {}
        self._shared = replace(self._shared, wait_lock=threading.RLock(), threads={})

    @property
    def running(self) -> bool:
        """Whether `run` is in progress."""
        return bool(self._runs)

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 60,
        wait_time_seconds: float = 20,
    ) -> None:
        """Serve until `shutdown`, until the mailbox is closed, or for ``max_iterations`` receives.

        May be called from several threads. A job that ends the process (``sys.exit``, Ctrl-C) ends
        the loop, and its exception is raised from here.
        """
        check_run(max_iterations)
        if self._loop_inbox is not None:
            check_no_event_loop()
            # Ctrl-C cancels the jobs, and whoever presses it does not want to wait.
            serving = self._serve(
                self._loop_inbox, max_iterations, visibility_timeout, wait_time_seconds, 0.0
            )
            with asyncio.Runner() as runner:
                try:
                    runner.run(serving)
                except SystemExit as error:
                    self._blame(error)
                    raise
            return
        run = self._run_of(max_iterations, visibility_timeout, wait_time_seconds)
        with ExitStack() as stack:
            run.resources = enter(self._resources, stack)
            self._serve_in_threads(run)

    def _blame(self, error: SystemExit) -> None:
        """If a task that a job has started raised this, make it the job's own."""
        context = raised_in(error)
        job = None if context is None else context.get(CURRENT_JOB)
        if isinstance(job, AsyncJob) and job._executor is self._executor:
            job._attempt.exit = error

    def _serve_in_threads(self, run: RunInProgress) -> None:
        scheduler = self.lease_extender.scheduler_of(self._mailbox)
        self._bind_dead_letters()
        self._tell_start(run)
        others = [
            # In a copy of the caller's context, as this thread's own part of the work is.
            threading.Thread(
                target=copy_context().run,
                args=(WorkerThread(self._shared, run).serve,),
                name=f"worker-{number}",
                daemon=True,
            )
            for number in range(1, self.config.concurrency)
        ]
        try:
            self._runs[run] = threading.get_ident()
            scheduler.enter(run)  # raises if leases cannot be extended, before any is taken
            self._list(run)
            if self._limits is not None:
                self._limits.enter(run)
            self._start(others)
            # In a copy, so that nothing stays set in the caller's context after an interrupt.
            copy_context().run(WorkerThread(self._shared, run).serve)
            for thread in others:
                self._join(thread)
        except BaseException:
            self._stop.set()
            raise
        finally:
            try:
                if self._limits is not None:
                    self._limits.leave(run)
                scheduler.leave(run)
                gone = self._unlist(run)
                if not self._stop.is_late():
                    wait_until_gone(gone)
            finally:
                self._runs.pop(run, None)
                run.going_on.release()
        if run.error is not None:
            raise run.error

    async def run_async(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 60,
        wait_time_seconds: float = 20,
    ) -> None:
        """Do what `run` does, in the event loop of the caller; for async handlers.

        Cancelling its task is like calling `shutdown`: it ends when the running jobs have ended, or
        after 30 seconds. Cancelling it again ends them at once.
        """
        check_run(max_iterations)
        if self._loop_inbox is None:
            raise UnsupportedOperationError(
                "run_async() is for async handlers, and this one would block the event loop: "
                "make it async, or await asyncio.to_thread(worker.run)"
            )
        await self._serve(
            self._loop_inbox,
            max_iterations,
            visibility_timeout,
            wait_time_seconds,
            SHUTDOWN_SECONDS,
        )

    async def _serve(
        self,
        inbox: LoopInbox,
        max_iterations: int | None,
        visibility_timeout: float,
        wait_time_seconds: float,
        grace: float,
    ) -> None:
        """Run jobs as tasks of this event loop; if cancelled, let them finish within ``grace``."""
        run = self._run_of(max_iterations, visibility_timeout, wait_time_seconds)
        async with AsyncExitStack() as stack:
            run.resources = await enter_async(self._resources, stack)
            await self._serve_in_event_loop(inbox, run, grace)

    async def _serve_in_event_loop(
        self, inbox: LoopInbox, run: RunInProgress, grace: float
    ) -> None:
        scheduler = self.lease_extender.scheduler_of(self._mailbox)
        self._bind_dead_letters()
        self._tell_start(run)
        loop = WorkerLoop(self._shared, inbox, run, self.config.concurrency)
        try:
            self._runs[run] = threading.get_ident()
            scheduler.enter(run)  # raises if leases cannot be extended, before any is taken
            self._list(run)
            await loop.serve(grace)
        finally:
            try:
                scheduler.leave(run)
                gone = self._unlist(run)
                if not self._stop.is_late():
                    await wait_until_gone_async(gone)
                self._inbox.let_go()
            finally:
                self._runs.pop(run, None)
                run.going_on.release()

    def _list(self, run: RunInProgress) -> None:
        """Have the backend list this process while the run lasts."""
        table, mine = self._inbox.worker_table(), partial(self._members_of, run)
        if table is None:
            return
        run.announcer = ANNOUNCERS.enter(
            run,
            table,
            ServingLoop(
                self._inbox.name,
                self.config.concurrency,
                held=lambda: (attempt for one in mine() for attempt in one.held()),
                lag=lambda: max(
                    (lag for one in mine() if (lag := one.lag()) is not None), default=None
                ),
                is_over=lambda: not run.going_on.locked(),
            ),
        )

    def _unlist(self, run: RunInProgress) -> Any:
        """Undo `_list`; return a lock that is free when that is done, or None."""
        return None if run.announcer is None else run.announcer.leave(run)

    def _members_of(self, run: RunInProgress) -> "list[WorkerThread | WorkerLoop]":
        members: list[WorkerThread | WorkerLoop] = [*self._shared.threads, *self._shared.loops]
        return [one for one in members if one.serves(run)]

    def _run_of(self, max_iterations: int | None, visibility: float, wait: float) -> RunInProgress:
        """Check the arguments of a run, and make its `RunInProgress`."""
        asked = self._inbox.check(self.config.batch, visibility, wait)
        hold = self._inbox.holder(self.lease_extender)
        # Asked now: the mailbox may have got one since this worker was made.
        self._executor.dispatcher = self._dispatcher or self._inbox.dispatcher
        return RunInProgress(max_iterations, *asked, self.config.lease_extender, hold)

    def shutdown(self, *, timeout: float = SHUTDOWN_SECONDS) -> bool:
        """Stop the loop for good, even before it has started; return True if it has ended in time.

        Running jobs may finish within ``timeout`` seconds. Then unfinished messages are given back,
        which takes up to a second more, and the results of their jobs are dropped. Async jobs are
        cancelled, and have five more seconds to end. With a timeout of 0, or from inside a job or
        the worker's event loop, this only tells the loop to end and does not wait.
        """
        inside = [*self._shared.threads.values(), *self._runs.values()]
        if threading.get_ident() in inside or self.heartbeat.at_work():
            # It cannot wait for itself. And a signal handler may have interrupted this thread
            # while it held a lock that stopping needs.
            self._stop.say()
            _thread.start_new_thread(self._stop.set, ())
            return not self.running
        if timeout <= 0:
            self._stop.set()
            return not self._runs
        self._stop.set(within=timeout)
        if self._have_ended(timeout):
            return True
        runs = list(self._runs)
        if self._loop_inbox is not None and self._have_ended(FINALLY_SECONDS + GIVE_BACK_SECONDS):
            return not any(run.given_back for run in runs)
        ends = time.monotonic() + GIVE_BACK_SECONDS
        given_back = self._let_go(ends)
        return not given_back and self._have_ended(ends - time.monotonic())

    async def shutdown_async(self, *, timeout: float = SHUTDOWN_SECONDS) -> bool:
        """Do what `shutdown` does, without blocking the event loop."""
        # In a thread of its own: jobs that call asyncio.to_thread may occupy all others.
        waiting = ThreadPoolExecutor(1, "shutdown")
        call = partial(copy_context().run, self.shutdown, timeout=timeout)
        try:
            return await asyncio.get_running_loop().run_in_executor(waiting, call)
        finally:
            waiting.shutdown(wait=False)

    def _have_ended(self, within: float) -> bool:
        """Wait for every run in progress; False if one does not end in time."""
        ends = time.monotonic() + within
        for run in list(self._runs):
            if not run.going_on.acquire(timeout=max(0.0, ends - time.monotonic())):
                return False
            run.going_on.release()
        return True

    def _let_go(self, ends: float) -> bool:
        """Settle attempts that have ended, and give back the others; False if there are none."""
        # Not the attempts that a forked child inherits from its parent's threads.
        holders: list[WorkerThread | WorkerLoop] = [*self._shared.threads, *self._shared.loops]
        held = [attempt for one in holders if not one.is_inherited for attempt in one.held()]
        taken = [attempt.hand_over("shutdown") for attempt in held if self._may_take(attempt)]
        ended: list[Attempt] = []
        rest: list[Attempt] = []
        for attempt in taken:
            outcome = decide.at_deadline(ended=attempt.has_ended)
            (rest if isinstance(outcome, decide.GiveBack) else ended).append(attempt)
        self._tell_given_back(len(rest))
        for attempt in rest:
            attempt.lease.abandon()
        # Each in its own thread, so that neither delays the other. If the mailbox does not answer
        # in time, the leases run out by themselves.
        drive = run_coroutine if self._loop_inbox is None else _run_in_new_loop
        settling = [
            threading.Thread(target=drive, args=(partial(settle, attempts),), daemon=True)
            for settle, attempts in (
                (self._executor.finish, ended),
                (self._executor.give_back, rest),
            )
            if attempts
        ]
        try:
            for thread in settling:
                thread.start()
        except RuntimeError:  # no thread can be started
            return True
        for thread in settling:
            thread.join(max(0.0, ends - time.monotonic()))
        return bool(rest) or any(attempt.answer is not None for attempt in ended)

    def _may_take(self, attempt: Attempt) -> bool:
        """Tell an attempt to stop; return whether no other thread has settled it or is about to."""
        attempt.cancelled = attempt.cancelled or "shutdown"
        if attempt.is_settled or attempt.message.is_finalized:
            return False
        return self._limits is None or attempt.has_ended or self._limits.end(attempt)

    def _tell_given_back(self, count: int) -> None:
        if count:
            logger.warning(
                "%s: the deadline of the shutdown has passed, so %d unfinished %s given back; "
                "results of jobs that still run are dropped",
                self._inbox.name,
                count,
                "message is" if count == 1 else "messages are",
                extra={"mailbox": self._inbox.name, "given_back": count},
            )

    def _start(self, threads: list[threading.Thread]) -> None:
        """Start all threads; if one cannot be started, end those that were."""
        for number, thread in enumerate(threads):
            try:
                thread.start()
            except Exception:
                self._stop.set()
                for started in threads[:number]:
                    self._join(started)
                raise

    def _join(self, thread: threading.Thread) -> None:
        """Wait for a thread until its time to stop has passed, and a second more."""
        while thread.is_alive() and not self._stop.is_late():
            thread.join(JOIN_SECONDS)
        thread.join(GIVE_BACK_SECONDS)

    def _tell_start(self, run: RunInProgress) -> None:
        name, concurrency = self._inbox.name, self.config.concurrency
        logger.info(
            "Serving %s: concurrency=%d batch=%d lease=%gs",
            name,
            concurrency,
            run.batch,
            run.visibility,
            extra={"mailbox": name, "concurrency": concurrency, "batch": run.batch},
        )

    def _bind_dead_letters(self) -> None:
        if self.dlq is None:
            return
        body_type = self._inbox.body_type
        try:
            bind(self.dlq.mailbox, DeadLetter[Any if body_type is None else body_type], None)  # type: ignore[misc]
        except InvalidParameterError:
            # A union whose members only the envelope tells apart; inside a letter it stays plain
            # JSON.
            bind(self.dlq.mailbox, DeadLetter[Any], None)

    async def _pause(self, seconds: float) -> None:
        """Pause in this thread, but not beyond the time that the worker has to stop."""
        self._stop.pause(seconds)


def _run_in_new_loop(make: Callable[[], Coroutine[Any, Any, object]]) -> None:
    asyncio.run(make())

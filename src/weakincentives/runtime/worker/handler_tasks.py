"""Calls async handlers, each in a task of its own that can be cancelled."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, NamedTuple

from weakincentives.logs import get_logger
from weakincentives.runtime.events import JobFinished, JobStarted
from weakincentives.runtime.leases.extender import CURRENT
from weakincentives.runtime.mailbox.seam.driver import unlist

from . import decide
from .attempt import ACKNOWLEDGED, INHERITED, RUNNING, Attempt
from .decide import Outcome
from .errors import CURRENT_JOB
from .handler import check_has_run
from .interrupts import is_from_outside, raised_in
from .job import AsyncJob
from .run import RunInProgress, Shared
from .time_limits import LOOK_AGAIN_SECONDS, TaskLimit

__all__ = ["HandlerTasks"]

logger = get_logger(__name__)


class Ended(NamedTuple):
    """How a handler ended: what it returned or raised."""

    value: Any
    error: BaseException | None = None


class HandlerTasks:
    """The handlers that a run has called and that have not returned.

    Each has a task of its own, so that cancelling it cancels the job but not its settlement.
    """

    def __init__(
        self,
        shared: Shared,
        run_in_progress: RunInProgress,
        is_cancelled: Callable[[], bool],
        overdue: Callable[[Attempt], None],
    ) -> None:
        """``is_cancelled`` tells whether the worker itself is being cancelled; ``overdue`` is
        called for a job that was cancelled at its time limit but still runs."""
        self._shared = shared
        self._executor = shared.executor
        self._run = run_in_progress
        self._is_cancelled = is_cancelled
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Attempt, asyncio.Task[Ended]] = {}
        self.cut_off: set[Attempt] = set()
        """Attempts cancelled at the deadline of a shutdown; given back unless they end in time."""

    def cut_off_all(self, attempts: Iterable[Attempt]) -> None:
        """Cancel these attempts because the worker shuts down."""
        self.cut_off.update(attempts)
        for attempt, task in self._tasks.items():
            attempt.cancelled = attempt.cancelled or "shutdown"
            task.cancel()

    def give_up(self) -> None:
        """Let the event loop end without the handlers that have not ended by now."""
        for task in self._tasks.values():
            unlist(task)

    async def handle(self, attempt: Attempt, context: Context) -> Outcome | None:
        """Call the handler in a copy of the context, and return the outcome; None if it was cut
        off."""
        if attempt in self.cut_off:
            return None
        executor, limit = self._executor, self._shared.time_limit
        attempt.started = started = time.monotonic()
        ended = await self._ended(attempt, context, limit)
        if isinstance(ended.error, SystemExit) and (
            attempt not in self.cut_off or raised_in(ended.error) is not None
        ):
            attempt.exit = ended.error
        if attempt.is_handed_over:
            return decide.TAKEN if attempt.cancelled == "time_limit" else None
        if attempt.parts is not None:
            await attempt.parts.flush()
        if attempt.is_cancelled_by_caller:
            return decide.after_cancel(lost=attempt.is_lost, answered=attempt.state is ACKNOWLEDGED)
        if limit is not None and attempt.is_late(time.monotonic()):
            return decide.at_time_limit(limit, ended.error)
        error = attempt.exit or ended.error
        if error is not None:
            # What ended the event loop is a failure: else each worker that took it would end.
            if attempt in self.cut_off and attempt.exit is None:
                return None
            return self._shared.shortage.after_error(attempt, error)
        lost = attempt.is_lost
        answers = attempt.route is not None and not attempt.has_replied
        if executor.dispatcher is not None and not lost:
            executor.publish(JobFinished, attempt.message.id, time.monotonic() - started)
        return decide.after_return(ended.value, lost=lost, answers=answers)

    async def _ended(self, attempt: Attempt, context: Context, limit: float | None) -> Ended:
        """Run the handler in its own task, within the time limit."""
        self._tasks[attempt] = task = self._loop.create_task(
            self._call(attempt), name=f"job-{attempt.message.id}", context=context.copy()
        )
        attempt.lease.on_cancel = partial(self._cancelled_elsewhere, attempt)
        if attempt.lease.cancelled:  # since this was last looked at, when nobody was to be told
            self._cancel(attempt)
        timer = None if limit is None else TaskLimit(attempt, limit, task, self._overdue)
        try:
            return await task
        except asyncio.CancelledError as error:
            if self._is_cancelled():
                # An event loop that ends cancels all its tasks: the worker's and the jobs'.
                self.cut_off.add(attempt)
                attempt.cancelled = attempt.cancelled or "shutdown"
            return Ended(None, error)
        finally:
            del self._tasks[attempt]
            if timer is not None:
                timer.end()

    async def _call(self, attempt: Attempt) -> Ended:
        """Await the handler in the context of its job; return an error that it raises."""
        CURRENT.set(attempt.lease)
        message, executor, with_job = attempt.message, self._executor, self._shared.with_job
        attempt.job = job = AsyncJob(attempt, executor, self._run.resources)
        CURRENT_JOB.set(job)
        try:
            attempt.body = body = message.body
            attempt.become(RUNNING)
            if executor.dispatcher is not None:
                facts = message.id, message.delivery_count, message.attributes
                executor.publish(JobStarted, *facts)
            with self._shared.heartbeat.working():
                handler = self._shared.handler
                result = handler(body) if with_job is None else with_job(body, job)
                value = await result
                if hasattr(value, "__await__"):  # as in `return work(body)`
                    value = await value
                check_has_run(value)
                ended = Ended(value)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # If a task raises SystemExit, its event loop ends, so it is returned instead.
            if is_from_outside(error) or _is_destroyed(error):
                raise
            ended = Ended(None, error)
        if attempt.state is INHERITED:
            _end_child()
        return ended

    # --- cancelled by its caller -----------------------------------------------------------

    def _cancelled_elsewhere(self, attempt: Attempt) -> None:
        """Have a job cancelled by its caller; called by the thread that extends leases."""
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._cancel, attempt)

    def _cancel(self, attempt: Attempt) -> None:
        task = self._tasks.get(attempt)
        if task is None or attempt.cancelled is not None:
            return  # it has ended, or ends for another reason
        if attempt.is_replying:  # cut off, nobody would know whether the reply was sent
            self._loop.call_later(LOOK_AGAIN_SECONDS, self._cancel, attempt)
            return
        attempt.cancelled = "caller"
        task.cancel()


def _is_destroyed(error: BaseException) -> bool:
    """Return whether this error means that the task is being destroyed."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True


def _end_child() -> None:
    """End a child process that a job forked: an event loop cannot continue in two processes."""
    logger.warning("a child that a job forked has left the job; it ends here")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)

"""One thread of a worker: it receives messages, calls the handler and settles."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from weakincentives.logs import get_logger
from weakincentives.runtime.events import JobFinished, JobStarted
from weakincentives.runtime.leases.extender import CURRENT
from weakincentives.runtime.mailbox.message import Carried
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.waiting import LATEST_LEASES, RETRIES, Retries

from . import decide
from .attempt import (
    ACKNOWLEDGED,
    FINISHED,
    INHERITED,
    RECEIVED,
    RUNNING,
    UNANSWERED,
    Attempt,
)
from .decide import ACKNOWLEDGE, RUN, TAKEN, Outcome, Reply
from .errors import CURRENT_JOB
from .handler import check_has_run
from .interrupts import is_from_outside
from .job import Job
from .mailbox_faults import MISUSE, MailboxFaults
from .quarantine import QUARANTINE
from .remembered_ids import RememberedIds
from .run import RunInProgress, Shared
from .shortage import LOOK_SECONDS
from .suspects import PUT_OFF_SECONDS, Suspects

__all__ = ["WorkerThread"]

logger = get_logger(__name__)

MESSAGE_OF = attrgetter("message")


class WorkerThread:
    """One thread of a worker, and the attempts that it holds."""

    in_event_loop = False

    def __init__(self, shared: Shared, run_in_progress: RunInProgress) -> None:
        self._shared = shared
        self._run = run_in_progress
        self._inbox = shared.inbox
        self._executor = shared.executor
        self._handler = shared.handler
        self._with_job = shared.with_job
        self._limits = shared.limits
        self._stop = shared.stop
        heartbeat = shared.heartbeat
        self.beat = heartbeat.beat
        self._working = heartbeat.working()
        self._waiting_receive = heartbeat.looking(run_in_progress.wait)
        self._receive_now = heartbeat.looking()
        self.waiting: list[Attempt] = []
        """Attempts that have not ended; the first one may be running."""
        self.finished: list[Attempt] = []
        """Attempts to acknowledge with the next receive; the last one may still need its answer."""
        self._sequels = RememberedIds()
        self._is_receiving = False
        """Whether a receive is in progress; its messages are not in `waiting` yet."""
        self.is_inherited = False
        """Whether this is a forked child, and its attempts belong to the parent."""
        self._faults = MailboxFaults(shared)
        self._suspects = Suspects(shared)
        self._found: tuple[object, Retries]
        """What was set for this thread before it began to serve."""
        self._event_loop: asyncio.Runner | None = None

    # --- what it has in hand ---------------------------------------------------------------

    def is_busy(self) -> bool:
        """Return whether this holds messages, or may get some at any moment."""
        return self._is_receiving or bool(self.waiting or self.finished)

    def held(self) -> list[Attempt]:
        """Return the attempts of this thread, once each: one may be in two lists after an
        interrupt."""
        # Read in this order, because another thread may ask while an attempt moves between lists.
        waiting, finished = list(self.waiting), list(self.finished)
        return [*finished, *(attempt for attempt in waiting if attempt not in finished)]

    def serves(self, run_in_progress: RunInProgress) -> bool:
        """Return whether this is part of a run, in this process."""
        return self._run is run_in_progress and not self.is_inherited

    def lag(self) -> float | None:
        """Return None: there is no event loop."""
        return None

    def disown(self) -> None:
        """In a forked child: leave all attempts to the parent."""
        self.is_inherited = True
        for attempt in self.held():
            attempt.inherit()

    # --- from its start to its end ---------------------------------------------------------

    def serve(self) -> None:
        """Receive, handle and settle until the worker stops or the mailbox is closed."""
        self._found = LATEST_LEASES.store, RETRIES.get()
        try:
            self._serve()
        finally:
            self._end()  # again: an interrupt may have come while it ended

    def _serve(self) -> None:
        try:
            self._begin()
            self._iterate_until_end()
            self._leave()
        except BaseException as error:  # noqa: BLE001 - run() raises it
            self._run.error = self._run.error or error
            self._stop.set()
            self._leave_after(error)
        finally:
            self._end()

    def _begin(self) -> None:
        self._shared.threads[self] = threading.get_ident()
        QUARANTINE.join(self)
        RETRIES.set(Retries(self._fault, self._fault_is_over))
        LATEST_LEASES.store = self._inbox.store

    def _end(self) -> None:
        if self._shared.wait_lock._is_owned():  # an interrupt came as soon as it was taken
            self._shared.wait_lock.release()
        # A worker inside a job of another one puts back what it found.
        LATEST_LEASES.store, retries = self._found
        RETRIES.set(retries)
        QUARANTINE.leave(self)
        self._shared.threads.pop(self, None)
        if self._event_loop is not None and not self.is_inherited:  # a parent goes on using it
            self._event_loop.close()

    def _iterate_until_end(self) -> None:
        # Not in `serve`: an interrupt where a loop begins anew passes by the `try` around it.
        receives, inbox = self._run.receives, self._inbox
        closed = inbox.closed
        while not closed and not self._stop.is_set() and next(receives, None) is not None:
            closed = not self._iterate() and inbox.closed

    def _leave_after(self, error: BaseException) -> None:
        """Leave after an error that may have cut off an attempt or a step."""
        for held in self.held():
            held.in_doubt = True  # the interrupted step may have taken effect
        self._end_limits()
        if self.waiting:
            first = self.waiting[0]
            outcome = decide.when_cut_off(
                begun=first.has_begun, from_outside=is_from_outside(error)
            )
            if isinstance(outcome, decide.Retry):
                run(partial(self._executor.carry_out, first, outcome))
        self._leave()

    def _leave(self) -> None:
        """Settle the attempts that have ended, and give back the others."""
        if self.is_inherited:
            return
        if self._is_receiving:
            # All of the last receive first, in order, although some may be in `waiting` already.
            self._undo_receive()
        self._give_back([one for one in self.waiting if one not in self.finished])
        self._settle_finished()

    def _end_limits(self) -> None:
        """End the time limits of all attempts, and drop those that are settled."""
        if self._limits is not None:
            for attempt in self.waiting:
                self._limits.end(attempt)
        for attempt in self.waiting:
            if attempt.is_settled and not attempt.is_handed_over:
                self._let_go(attempt)
        self.waiting = [attempt for attempt in self.waiting if not attempt.is_settled]

    # --- faults of the mailbox -------------------------------------------------------------

    def _fault(self, error: Exception, seconds: float) -> bool:
        """Report a fault that lasts while the backend retries; return True to make it give up.

        It should give up if the worker is stopping and has nothing left to settle, or no more time.
        """
        # Calls that a job makes come here too, but they may use another mailbox than the worker's.
        if self._is_looking():
            self._faults.notice(error, seconds)
        stop = self._stop
        return stop.is_set() and (stop.is_late() or not (self.waiting or self.finished))

    def _fault_is_over(self) -> None:
        """Record that the mailbox can be reached again, while the receive is still waiting."""
        if self._is_looking():
            self._faults.over()

    def _is_looking(self) -> bool:
        """Return whether a receive is in progress."""
        return self._waiting_receive.in_progress or self._receive_now.in_progress

    def _pause_after(self, error: Exception) -> None:
        """Undo a receive that failed, report the error, and pause."""
        self._undo_receive()
        self._is_receiving = False
        for attempt in self.finished:
            attempt.in_doubt = True
        self._stop.wait(self._faults.pause_after(error))

    def _wait_out_shortage(self) -> None:
        """Take no job while the process has no file handle or thread for it."""
        shortage = self._shared.shortage
        self._settle_finished()
        while shortage.lasts() and not self._stop.is_set():
            if shortage.is_hopeless() and (error := shortage.error) is not None:
                raise error
            self._shared.heartbeat.beat()
            self._stop.wait(LOOK_SECONDS)

    # --- one round -------------------------------------------------------------------------

    def _iterate(self) -> bool:
        """Receive messages and handle them; False if there were none."""
        LATEST_LEASES.handles = ()
        if self._shared.shortage.error is not None:
            self._wait_out_shortage()
        self._is_receiving = True  # before the look at who wants to be alone, who then sees it
        if QUARANTINE.owner is not None:
            self._stand_back()
        try:
            messages = self._exchange()
        except MISUSE:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of the transport never ends a loop
            self._pause_after(error)
            return False
        self._faults.count = 0
        self._let_go_of_finished()
        self._hold(messages)
        if self._shared.isolates_suspects:
            for message in messages:
                if message.delivery_count > 1:
                    self._set_apart()
                    break
        while self.waiting and not self._stop.is_set():
            if QUARANTINE.owner is not None and QUARANTINE.is_anothers(self):
                self._give_back(self.waiting)
                break
            self._work()
        return bool(messages)

    def _hold(self, messages: Sequence[Any]) -> None:
        """Start extending the leases of received messages, and queue an attempt for each."""
        hold, leases, waiting = self._run.hold, self._run.leases, self.waiting
        for message in messages:
            waiting.append(Attempt(message, hold(message, leases)))
        self._is_receiving = False

    def _undo_receive(self) -> None:
        """Give back the messages of a receive that was cut off."""
        run(partial(self._executor.undo_leases, LATEST_LEASES.handles))

    def _exchange(self) -> Sequence[Any]:
        """Settle the attempts that have ended, and receive the next messages."""
        finished = self.finished
        last = finished[-1] if finished and finished[-1].state is UNANSWERED else None
        if last is None:
            return self._receive(finished)
        carried = self._executor.carried(last)
        if carried is not None:
            last.lease.is_settling = True
            messages = self._receive(finished[:-1], (carried,))
            last.finish()
            return messages
        run(partial(self._executor.answer, last))
        if last.state is not FINISHED:
            finished.remove(last)
            self._let_go(last)
        return self._receive(finished)

    def _receive(self, done: list[Attempt], carried: Sequence[Carried] = ()) -> Sequence[Any]:
        """Acknowledge and receive; wait for messages if no other thread does."""
        exchange, asked, shared, stop = self._inbox.exchange, self._run, self._shared, self._stop
        for attempt in done:
            attempt.lease.is_settling = True
        settled = list(map(MESSAGE_OF, done))
        # After a fault, receive without waiting first, so that health probes notice the recovery at
        # once.
        if shared.heartbeat.reaches and shared.wait_lock.acquire(blocking=False):
            try:
                if self._faults.count:
                    shared.outage.over()  # another thread has reached the mailbox since
                with self._waiting_receive:
                    return exchange(
                        settled, asked.batch, asked.visibility, asked.wait, stop, carried
                    )
            finally:
                shared.wait_lock.release()
        with self._receive_now:
            messages = exchange(settled, asked.batch, asked.visibility, 0, stop, carried)
        if self._faults.count:
            shared.outage.over()
        if messages or not asked.wait:
            return messages
        with shared.wait_lock:
            if stop.is_set():
                return messages  # stopping has woken the thread that waited, too
            with self._waiting_receive:
                return exchange((), asked.batch, asked.visibility, asked.wait, stop)

    def _work(self) -> None:
        """Run the first attempt and carry out its outcome."""
        attempt, executor = self.waiting[0], self._executor
        outcome = executor.before_run(attempt)
        if outcome is None:
            outcome = run(partial(executor.ask_caller, attempt))
        if outcome is RUN:
            outcome = self._handle(attempt)
        # The most common outcomes are handled here, without the cost of a coroutine.
        if outcome is ACKNOWLEDGE and attempt.state is RUNNING:
            attempt.state = FINISHED
        elif isinstance(outcome, Reply):
            attempt.answer_with(outcome)
        else:
            run(partial(executor.carry_out, attempt, outcome))
        if len(self.waiting) > 1 and attempt.state is UNANSWERED:
            # The last answer of a batch is sent with the next receive; the others must not wait for
            # it.
            run(partial(executor.answer, attempt))
        state = attempt.state
        has_ended = state is FINISHED or state is UNANSWERED
        if has_ended:
            self.finished.append(attempt)
        # Only now, so that an interrupt always finds the attempt in one of the lists.
        del self.waiting[0]
        if not has_ended and outcome is not TAKEN:
            self._let_go(attempt)
        if attempt.exit is not None:
            raise attempt.exit

    def _handle(self, attempt: Attempt) -> Outcome:
        """Call the handler, and return what is to be done then."""
        attempt.started = started = time.monotonic()
        value, error = None, None
        try:
            # In a copy, so that the next job does not see what this one sets in its context.
            value = contextvars.copy_context().run(self._call, attempt)
            if attempt.state is INHERITED:
                logger.warning("a child that a job forked has left the job; it ends here")
                raise SystemExit(0)
        except BaseException as raised:
            # Whatever a handler raises, its message is not acknowledged. An interrupt, and the end
            # of a child that it forked, are not its failure.
            if attempt.state is INHERITED or is_from_outside(raised):
                raise
            if isinstance(raised, SystemExit):
                attempt.exit = raised
            error = raised
        return self._after(attempt, value, error, started)

    def _after(
        self, attempt: Attempt, value: Any, error: BaseException | None, started: float
    ) -> Outcome:
        """Return what is to be done with an attempt whose handler has ended."""
        executor, limits = self._executor, self._limits
        if limits is not None and not limits.end(attempt):
            # Set by the deadline of a shutdown, else by the time limit.
            return decide.ABANDON if attempt.cancelled == "shutdown" else TAKEN
        if attempt.is_cancelled_by_caller:
            return decide.after_cancel(lost=attempt.is_lost, answered=attempt.state is ACKNOWLEDGED)
        if limits is not None and attempt.is_late(time.monotonic()):
            return decide.at_time_limit(limits.seconds, error)
        if error is not None:
            return self._shared.shortage.after_error(attempt, error)
        lost = attempt.is_lost
        answers = attempt.route is not None and not attempt.has_replied
        if executor.dispatcher is not None and not lost:
            executor.publish(JobFinished, attempt.message.id, time.monotonic() - started)
        return decide.after_return(value, lost=lost, answers=answers)

    def _call(self, attempt: Attempt) -> Any:
        """Call the handler, plain or async, in the context of its job."""
        CURRENT.set(attempt.lease)
        attempt.job = job = Job(attempt, self._executor, self._run.resources)
        CURRENT_JOB.set(job)
        message = attempt.message
        attempt.body = body = message.body
        if attempt.state is RECEIVED:  # unless it was handed over meanwhile
            attempt.state = RUNNING
        if self._executor.dispatcher is not None:
            facts = message.id, message.delivery_count, message.attributes
            self._executor.publish(JobStarted, *facts)
        if self._limits is not None:
            self._limits.begin(attempt)
        with self._working:
            with_job = self._with_job
            result = self._handler(body) if with_job is None else with_job(body, job)
            if result is None:
                return None
            if hasattr(result, "__await__"):
                return self._await(result)
        check_has_run(result)
        return result

    def _await(self, result: Awaitable[Any]) -> Any:
        """Await an async handler's result, in this thread's own event loop."""
        if self._event_loop is None:
            self._event_loop = asyncio.Runner()
        # In the context of the job, so that current_lease() works.
        return self._event_loop.run(_awaited(result), context=contextvars.copy_context())

    def _settle_finished(self) -> None:
        """Answer and acknowledge the attempts that have ended."""
        for attempt in self.finished:
            if attempt.state is UNANSWERED:
                run(partial(self._executor.answer, attempt))
        finished = [attempt for attempt in self.finished if attempt.state is FINISHED]
        for attempt in self.finished:
            if attempt not in finished:
                self._let_go(attempt)
        self.finished = finished
        if finished:
            run(lambda: self._executor.acknowledge(finished))
        self._let_go_of_finished()
        if self._sequels.count:
            self._sequels.forget_all()

    def _let_go_of_finished(self) -> None:
        """Record the result of acknowledging the finished attempts, and release their leases."""
        for attempt in self.finished:
            if attempt.message.is_finalized:
                if attempt.state is FINISHED:  # unless it was handed over to another thread
                    attempt.state = ACKNOWLEDGED
                    if attempt.sequels:
                        self._sequels.done(attempt.sequels)
            else:
                refused = decide.after_refusal(in_doubt=attempt.in_doubt, lost=attempt.lease.lost)
                run(partial(self._executor.carry_out, attempt, refused))
            attempt.lease.release()
        self.finished = []
        if self._sequels.count:
            self._sequels.forget_some()

    def _let_go(self, attempt: Attempt) -> None:
        """Stop extending the lease of an attempt that is settled or abandoned."""
        if attempt.state is ACKNOWLEDGED:
            self._sequels.done(attempt.sequels)
        attempt.lease.release()

    def _give_back(self, attempts: list[Attempt], delay: float = 0.0) -> None:
        """Give back waiting messages as if they had not been received."""
        if attempts:
            run(lambda: self._executor.give_back(attempts, delay))
        self.waiting = [attempt for attempt in self.waiting if attempt not in attempts]
        for attempt in attempts:
            attempt.lease.release()

    # --- messages whose workers died -------------------------------------------------------

    def _set_apart(self) -> None:
        """Separate messages whose worker died from others: they may kill this worker too.

        Every message that a worker holds when it dies counts as crashed. So nothing waits behind
        such a message, and one that another crash would dead-letter runs alone.
        """
        last = [attempt for attempt in self.waiting if self._suspects.must_run_alone(attempt)]
        if last and QUARANTINE.is_overdue():
            # Another suspect has been running alone for very long. Put these off instead of
            # waiting.
            self._give_back(last, PUT_OFF_SECONDS)
        elif last:
            self._give_back(self.waiting)
            self._work_alone()
            return
        suspects = [attempt for attempt in self.waiting if self._suspects.crashes(attempt) > 0]
        if suspects:
            self._give_back([attempt for attempt in self.waiting if attempt is not suspects[0]])

    def _work_alone(self) -> None:
        """Receive one message and run it while this process holds no other."""
        # That is the one just given back, unless another process was faster.
        if not QUARANTINE.begin(self, self._stop):
            return
        try:
            if not self._stop.is_set():
                LATEST_LEASES.handles = ()
                self._is_receiving = True
                try:
                    with self._receive_now:
                        messages = self._inbox.exchange((), 1, self._run.visibility, 0, self._stop)
                except MISUSE:
                    raise
                except Exception as error:  # noqa: BLE001 - as with any other receive
                    self._pause_after(error)
                    return
                self._hold(messages)
                for _ in messages:
                    self._work()
                self._settle_finished()
        finally:
            QUARANTINE.end(self)

    def _stand_back(self) -> None:
        """Settle everything and wait while another thread of the process runs alone."""
        while QUARANTINE.is_anothers(self) and not self._stop.is_set():
            self._settle_finished()
            self._is_receiving = False
            QUARANTINE.wait(self, self._stop)
            self._is_receiving = True


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result

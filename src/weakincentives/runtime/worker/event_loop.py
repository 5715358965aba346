"""Runs the jobs of an async handler as tasks of one event loop."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.message import Carried
from weakincentives.runtime.mailbox.seam.driver import start_unlisted
from weakincentives.runtime.mailbox.seam.step_threads import hop
from weakincentives.runtime.mailbox.seam.waiting import RETRIES, Retries, call_soon

from . import decide
from .attempt import ACKNOWLEDGED, UNANSWERED, Attempt
from .awaited_inbox import LoopInbox
from .blocked_loop import LOOP_WATCH, WatchedLoop
from .decide import RUN
from .handler_tasks import HandlerTasks
from .mailbox_faults import MISUSE, MailboxFaults
from .quarantine import QUARANTINE
from .remembered_ids import RememberedIds, forget
from .run import RunInProgress, Shared
from .suspects import CROWDED_SECONDS, PUT_OFF_SECONDS, Suspects
from .time_limits import FINALLY_SECONDS

__all__ = ["FINALLY_SECONDS", "WorkerLoop"]

logger = get_logger(__name__)

LARGEST_LEASE = 200
"""The most messages that are leased at a time: opening more at once would stall the event loop."""
GATHER_SECONDS = 0.005
"""How long a free place waits for others, so that one receive can fill them all."""
SETTLE_SECONDS = 0.01
"""How long a finished job waits for others, so that one step can acknowledge them all."""
MOST_UNSETTLED = 100
"""When this many jobs have finished, they are acknowledged without waiting for others."""
PROMPT_SECONDS = 0.5
"""How long a shutdown waits for cancelled jobs before it gives back those that have ended."""
IDLE_SECONDS = 0.5
"""The longest pause between two looks, even if nothing has happened."""


class WorkerLoop:
    """The jobs of one run, as tasks of the event loop that calls `serve`."""

    in_event_loop = True

    def __init__(
        self, shared: Shared, inbox: LoopInbox, run_in_progress: RunInProgress, places: int
    ) -> None:
        self._shared = shared
        self._run = run_in_progress
        self._inbox = inbox
        self._executor = shared.executor
        self._stop = shared.stop
        self._heartbeat = shared.heartbeat
        self.beat = shared.heartbeat.beat
        self._looking = shared.heartbeat.looking(run_in_progress.wait)
        self._places = places
        self._at_work: dict[Attempt, asyncio.Task[None]] = {}
        self._answers: dict[Attempt, Carried] = {}
        """Answers that are sent in the step that acknowledges attempts in `finished`."""
        self._handlers = HandlerTasks(
            shared, run_in_progress, self._is_cancelled, self._fail_overdue
        )
        self._suspects = Suspects(shared, places)
        self._overdue: set[asyncio.Task[None]] = set()
        """Tasks that settle jobs which failed at their time limit but still run."""
        self.finished: list[Attempt] = []
        """Attempts to be acknowledged, with the next receive or separately."""
        self._being_settled: dict[Attempt, None] = {}
        """Attempts that a step in progress has taken from `finished`."""
        self._finished_at = self._freed_at = 0.0
        self._is_urgent = False
        """Whether a caller waits for the answer of an attempt in `finished`."""
        self._ids = RememberedIds()
        self._faults = MailboxFaults(shared)
        self._is_exhausted = False
        self._exit: BaseException | None = None
        self._is_inherited = False
        self._receiving: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[Any] | None = None
        self._watched: WatchedLoop | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._context = copy_context()
        # One context for all settlements, because none of them changes it.
        self._settling_context = copy_context()
        self._settling_context.run(RETRIES.set, Retries(self._settling_fails))

    # --- what it has in hand ---------------------------------------------------------------

    def is_busy(self) -> bool:
        """Return whether this holds messages, or may get some at any moment."""
        return bool(self._receiving or self._at_work or self.finished or self._being_settled)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, and its attempts belong to the parent."""
        return self._is_inherited

    def held(self) -> list[Attempt]:
        """Return the attempts whose leases this holds."""
        return [*self._being_settled, *self.finished, *self._at_work]

    def serves(self, run_in_progress: RunInProgress) -> bool:
        """Return whether this is part of a run, in this process."""
        return self._run is run_in_progress and not self._is_inherited

    def lag(self) -> float | None:
        """Return how late the event loop was lately; None if that is not known."""
        return None if self._watched is None else self._watched.lag

    def disown(self) -> None:
        """In a forked child: leave all attempts to the parent."""
        self._is_inherited = True
        for attempt in self.held():
            attempt.inherit()

    # --- from its start to its end ---------------------------------------------------------

    def interrupt(self) -> None:
        """Look again whether it is time to stop; called from any thread."""
        call_soon(self._loop, self._changed.set)

    async def serve(self, grace: float) -> None:
        """Receive, run and settle until the worker stops or the mailbox is closed.

        If this is cancelled, jobs may still finish within ``grace`` seconds. Cancelled again, it
        ends them at once.
        """
        self._serving = asyncio.current_task()
        watched = self._watched = LOOP_WATCH.watch(self._inbox.name)
        try:
            self._shared.loops[self] = threading.get_ident()
            QUARANTINE.join(self)
            self._stop.add(self)
            await self._serve_until_cancelled(grace)
        except BaseException:
            self._stop.set()
            raise
        finally:
            try:
                await self._end_jobs_whatever_happens()
            finally:
                self._stop.discard(self)
                LOOP_WATCH.unwatch(watched)
                QUARANTINE.leave(self)
                self._shared.loops.pop(self, None)
        if self._exit is not None:
            raise self._exit

    async def _serve_until_cancelled(self, grace: float) -> None:
        try:
            await self._serve()
        except asyncio.CancelledError:
            self._stop.set(within=grace)
            await self._serve()
            raise

    async def _serve(self) -> None:
        while not self._has_ended():
            self._changed.clear()
            self._start_what_is_due()
            await self._wait()
            self._raise_what_failed()

    def _is_cancelled(self) -> bool:
        return self._serving is not None and self._serving.cancelling() > 0

    def _has_ended(self) -> bool:
        if self._stop.is_late():
            return True
        return self._is_ending() and not (
            self._at_work or self.finished or self._receiving or self._settling or self._overdue
        )

    def _is_ending(self) -> bool:
        return self._stop.is_set() or self._is_exhausted or self._inbox.closed

    def _start_what_is_due(self) -> None:
        if self._shared.shortage.is_hopeless() and not self._stop.is_set():
            self._exit = self._exit or self._shared.shortage.error
            self._stop.set()
        free, now = self._places - len(self._at_work), self._loop.time()
        if self._receiving is None and self._may_receive() and self._is_worth(free, now):
            if next(self._run.receives, None) is None:
                self._is_exhausted = True
            else:
                self._receiving = self._begin(self._receive(min(free, LARGEST_LEASE)))
        if self._settling is None and self.finished and self._is_due(now):
            self._settling = self._begin(self._settle_apart())

    def _may_receive(self) -> bool:
        """Whether a place is free, and nothing speaks against filling it."""
        is_full = self._places <= len(self._at_work)
        return not (is_full or self._is_ending() or self._shared.shortage.lasts())

    def _is_worth(self, free: int, now: float) -> bool:
        """Return whether enough places are free, or some have been free for long enough."""
        return free * 20 >= self._places or now - self._freed_at >= GATHER_SECONDS

    def _is_due(self, now: float) -> bool:
        """Return whether finished attempts should be settled now, not with the next receive."""
        if self._is_ending():
            return True
        if self._receiving is None:
            return not self._may_receive()  # else the next receive begins soon
        late = now - self._finished_at >= SETTLE_SECONDS
        return self._is_urgent or late or len(self.finished) >= MOST_UNSETTLED

    async def _wait(self) -> None:
        """Wait until something has changed, or it is time to look again."""
        handle = self._loop.call_later(self._next_look(), self._changed.set)
        try:
            await self._changed.wait()
        finally:
            handle.cancel()
        self._heartbeat.beat()

    def _next_look(self) -> float:
        if self._receiving is None and self._may_receive():
            return GATHER_SECONDS
        if self.finished and self._settling is None:
            return SETTLE_SECONDS
        return IDLE_SECONDS

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Unlisted, so that code that cancels all tasks, as asyncio.run does at its end, cancels
        # only `serve`, which then ends this task in order.
        task = start_unlisted(work, self._context.copy())
        task.add_done_callback(lambda _: self._changed.set())
        return task

    def _raise_what_failed(self) -> None:
        receiving, settling = self._receiving, self._settling
        if settling is not None and settling.done():
            self._settling = None
            settling.result()
        if receiving is not None and receiving.done():
            self._receiving = None
            receiving.result()

    # --- faults of the mailbox -------------------------------------------------------------

    def _fault(self, error: Exception, seconds: float) -> bool:
        """Report a fault that lasts while the backend retries; return True to make it give up.

        It should give up if the worker is stopping and has nothing left to settle, or no more time.
        """
        self._faults.notice(error, seconds)
        return self._stop.is_set() and (self._stop.is_late() or not self.finished)

    async def _pause_after(self, error: Exception, done: list[Attempt]) -> None:
        """Keep the attempts for a later step, report the fault, and pause."""
        for attempt in done:
            attempt.in_doubt = True
            self._being_settled.pop(attempt, None)
        self.finished[:0] = done
        await self._stop.wait_async(self._faults.pause_after(error))

    # --- receiving and settling ------------------------------------------------------------

    async def _receive(self, count: int) -> None:
        """Settle finished attempts and fill free places; wait if there are no messages."""
        RETRIES.set(Retries(self._fault, self._faults.over))
        if QUARANTINE.owner is not None:
            await QUARANTINE.wait_async(self, self._stop)
            if self._stop.is_set():
                return
        done = self._taken()
        try:
            with self._looking:
                messages = await self._exchange(done, count, self._run.wait)
        except MISUSE:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of the transport never ends a loop
            await self._pause_after(error, done)
            return
        if self._faults.count:
            self._faults.count = 0
            self._shared.outage.over()
        if done:
            await self._let_go_of(done)
        await self._start_jobs(messages)

    async def _exchange(
        self, done: Sequence[Attempt], count: int, wait: float = 0.0
    ) -> Sequence[Any]:
        """Acknowledge and answer what is done, and receive up to ``count`` messages."""
        plain: list[Any] = []
        carried: list[Carried] = []
        for attempt in done:
            if attempt in self._answers:
                carried.append(self._answers[attempt])
            else:
                plain.append(attempt.message)
        asked = self._run
        return await self._inbox.exchange_async(
            plain, count, asked.visibility, wait, self._stop, carried
        )

    async def _settle_apart(self) -> None:
        """Answer and acknowledge finished attempts during a receive, or after the last one."""
        done = self._taken()
        if self._is_ending():
            await self._executor.settle_together(done, lambda: self._exchange(done, 0))
        else:
            try:
                await self._exchange(done, 0)
            except MISUSE:
                raise
            except Exception as error:  # noqa: BLE001 - retried while the leases last
                await self._pause_after(error, done)
                return
        await self._let_go_of(done)
        if self._ids.is_due():
            await self._forget_ids()

    def _taken(self) -> list[Attempt]:
        """Take the finished attempts, for a step that settles them."""
        done, self.finished, self._is_urgent = self.finished, [], False
        for attempt in done:
            if attempt.message.is_finalized:  # by a step that then failed to receive
                self._answers.pop(attempt, None)
            attempt.lease.is_settling = True
            self._being_settled[attempt] = None
        return done

    async def _let_go_of(self, done: Sequence[Attempt]) -> None:
        """Record the result of acknowledging these attempts, and release their leases."""
        for attempt in done:
            self._being_settled.pop(attempt, None)
            self._answers.pop(attempt, None)
            if attempt.message.is_finalized:
                if attempt.has_ended:
                    attempt.answer = None
                    attempt.state = ACKNOWLEDGED
                self._ids.done(attempt.sequels)
            elif attempt.has_ended:
                refused = decide.after_refusal(in_doubt=attempt.in_doubt, lost=attempt.lease.lost)
                await self._executor.carry_out(attempt, refused)
            attempt.lease.release()

    async def _forget_ids(self) -> None:
        for store, ids in self._ids.take():
            make = partial(forget, store, ids)
            await (hop(make, store) if store.steps == "blocking" else make())

    # --- jobs ------------------------------------------------------------------------------

    async def _start_jobs(self, messages: Sequence[Any]) -> None:
        attempts = self._held_from_now(messages)
        if (
            self._shared.isolates_suspects
            and any(message.delivery_count > 1 for message in messages)
            and not self._stop.is_set()
        ):
            attempts = await self._without_suspects(attempts)
        await self._start(attempts, self._context)

    def _held_from_now(self, messages: Sequence[Any]) -> list[Attempt]:
        """Start extending the leases of received messages; return an attempt for each."""
        hold, leases = self._run.hold, self._run.leases
        return [Attempt(message, hold(message, leases)) for message in messages]

    async def _start(self, attempts: list[Attempt], context: Context) -> None:
        """Start a task for each attempt; their handlers are called in copies of the context."""
        # Looked at here, and not before a step: once the jobs are being ended, nobody would end
        # or settle one more.
        if self._stop.is_set():
            await self._give_back(attempts)
            return
        for attempt in attempts:
            work = self._work(attempt, context)
            self._at_work[attempt] = task = start_unlisted(work, self._settling_context)
            task.add_done_callback(self._note_error)

    def _note_error(self, work: asyncio.Task[None]) -> None:
        """If a task failed outside its handler, stop the worker with that error."""
        if not work.cancelled() and (error := work.exception()) is not None:
            self._exit = self._exit or error
            self._stop.set()

    async def _work(self, attempt: Attempt, context: Context) -> None:
        """Run an attempt and carry out its outcome."""
        executor = self._executor
        try:
            outcome = executor.before_run(attempt)
            if outcome is None:
                outcome = await executor.ask_caller(attempt)
            if outcome is RUN:
                outcome = await self._handlers.handle(attempt, context)
            if outcome is None:
                return  # given back with all others that were cut off
            await executor.carry_out(attempt, outcome)
            if attempt.state is UNANSWERED:
                answer = executor.carried(attempt)
                if answer is None:
                    await executor.answer(attempt)
                else:
                    self._answers[attempt] = answer
        except Exception:
            if not attempt.has_begun:  # so it is no fault of the message
                await executor.give_back([attempt])
            raise
        finally:
            self._leave(attempt)

    def _settling_fails(self, error: Exception, seconds: float) -> bool:
        return self._stop.is_late()

    def _leave(self, attempt: Attempt) -> None:
        """Free the place of an attempt; if it must be acknowledged, it waits for others."""
        self._at_work.pop(attempt, None)
        self._suspects.leave(attempt)
        now = self._loop.time()
        if attempt.is_handed_over:
            pass  # with its lease
        elif attempt.has_ended:
            if not self.finished:
                self._finished_at = now
            self._is_urgent = self._is_urgent or attempt.state is UNANSWERED
            self.finished.append(attempt)
        elif attempt.is_settled or attempt not in self._handlers.cut_off:
            attempt.lease.release()  # else it is yet to be given back
        if attempt.exit is not None:
            self._exit = attempt.exit
            self._stop.set()
        if len(self._at_work) == self._places - 1:
            self._freed_at = now
        self._changed.set()

    def _fail_overdue(self, attempt: Attempt) -> None:
        """Settle a job that was cancelled at its limit but still runs; it keeps its place."""
        if attempt.is_settled:
            return  # given back at the end of its run
        settling = self._settle_overdue(attempt.hand_over("time_limit"))
        task = start_unlisted(settling, self._settling_context)
        self._overdue.add(task)
        task.add_done_callback(self._overdue.discard)
        task.add_done_callback(self._note_error)

    async def _settle_overdue(self, taken: Attempt) -> None:
        limit = self._shared.time_limit
        assert limit is not None
        try:
            await self._executor.settle_entirely(taken, decide.at_time_limit(limit))
            if taken.state is ACKNOWLEDGED:
                self._ids.done(taken.sequels)
        finally:
            taken.lease.release()
            self._changed.set()

    # --- messages whose workers died -------------------------------------------------------

    async def _without_suspects(self, attempts: list[Attempt]) -> list[Attempt]:
        """Return the attempts that may start now; give back or run alone those that are suspect.

        Every message that a worker holds when it dies counts as crashed. So the more crashes a
        message has, the fewer of its kind run at once, and one that another crash would dead-letter
        runs alone.
        """
        last = [attempt for attempt in attempts if self._suspects.must_run_alone(attempt)]
        if last and not QUARANTINE.is_overdue():
            await self._give_back(attempts)
            await self._work_alone()
            return []
        # Another suspect has been running alone for very long. Put these off instead of waiting.
        await self._give_back(last, PUT_OFF_SECONDS)
        crowd = [one for one in attempts if one not in last and not self._suspects.admit(one)]
        await self._give_back(crowd, CROWDED_SECONDS)
        return [one for one in attempts if one not in last and one not in crowd]

    async def _work_alone(self) -> None:
        """Receive one message and run it while this process holds no other."""
        # That is the one just given back, unless another process was faster.
        if not await QUARANTINE.begin_async(self, self._stop):
            return
        try:
            await self._idle()
            if not self._stop.is_set():
                attempts = self._held_from_now(await self._exchange((), 1))
                # In this task's context, so that a worker inside the job knows that it runs alone.
                await self._start(attempts, copy_context())
                await self._idle()
        except MISUSE:
            raise
        except Exception as error:  # noqa: BLE001 - as with any other receive
            await self._pause_after(error, [])
        finally:
            QUARANTINE.end(self)

    async def _idle(self) -> None:
        """Wait until no job runs and all are settled, or until it is time to stop."""
        while self._at_work or self.finished or self._being_settled:
            if self._stop.is_set() or QUARANTINE.is_overdue():
                return
            await self._stop.wait_async(SETTLE_SECONDS)

    async def _give_back(self, attempts: list[Attempt], delay: float = 0.0) -> None:
        """Give back messages that were not run, as if they had not been received."""
        await self._executor.give_back(attempts, delay)
        for attempt in attempts:
            attempt.lease.release()

    # --- the end ---------------------------------------------------------------------------

    async def _end_jobs_whatever_happens(self) -> None:
        """End the jobs, also if this is cancelled again and again, as some libraries do."""
        ending = start_unlisted(self._end_jobs(), self._context.copy())
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError as error:
                # Not at once: nothing would give the jobs back, and their leases would be kept.
                cancelled = error
        ending.result()
        if cancelled is not None:
            raise cancelled

    async def _end_jobs(self) -> None:
        """Cancel the jobs that still run, wait a few seconds, and give their messages back."""
        self._handlers.cut_off_all(self._at_work)
        # Most end at once. They need not wait for one that does not: a process that has less time
        # than this wait would leave them all leased.
        if not await self._have_ended(min(PROMPT_SECONDS, FINALLY_SECONDS)):
            await self._settle_cut_off(self._handlers.cut_off - self._at_work.keys())
            await self._have_ended(max(0.0, FINALLY_SECONDS - PROMPT_SECONDS))
            self._handlers.give_up()
        if self._being_settled and not (self._receiving or self._settling):
            self.finished[:0] = self._being_settled  # the step that was to settle them has failed
        await self._settle_cut_off(self._handlers.cut_off)
        await self._forget_ids()

    async def _have_ended(self, within: float) -> bool:
        """Wait for all jobs and for the steps in progress; False if one does not end in time."""
        steps = filter(None, (self._receiving, self._settling))
        tasks = [*self._at_work.values(), *self._overdue, *steps]
        return not tasks or not (await asyncio.wait(tasks, timeout=within))[1]

    async def _settle_cut_off(self, cut_off: set[Attempt]) -> None:
        """Give back what was cut off, and settle what has ended in time."""
        rest = [
            one
            for one in cut_off
            if not (one.has_ended or one.is_settled or one.message.is_finalized)
        ]
        for attempt in rest:
            attempt.lease.abandon()
        if rest:
            self._tell_given_back(rest)
            await self._give_back(rest)
        if self.finished:
            await self._settle_apart()

    def _tell_given_back(self, rest: Sequence[Attempt]) -> None:
        self._run.given_back += len(rest)
        still = sum(attempt in self._at_work for attempt in rest)
        logger.warning(
            "%s: the shutdown gave back %d unfinished %s%s",
            self._inbox.name,
            len(rest),
            "job" if len(rest) == 1 else "jobs",
            f"; {still} did not end within {FINALLY_SECONDS:g} s of being cancelled" * bool(still),
            extra={"mailbox": self._inbox.name, "given_back": len(rest)},
        )

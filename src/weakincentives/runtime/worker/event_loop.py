"""The jobs of an async handler: all of them are tasks of one event loop."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NamedTuple

from weakincentives.error_text import error_type
from weakincentives.logs import get_logger
from weakincentives.runtime.events import JobFinished, JobStarted, MailboxUnreachable
from weakincentives.runtime.leases.extender import CURRENT
from weakincentives.runtime.mailbox import InvalidParameterError, UnsupportedOperationError
from weakincentives.runtime.mailbox.message import Carried
from weakincentives.runtime.mailbox.seam.driver import start_unlisted
from weakincentives.runtime.mailbox.seam.step_threads import hop
from weakincentives.runtime.mailbox.seam.waiting import RETRIES, Retries, call_soon

from . import decide
from .attempt import ACKNOWLEDGED, INHERITED, RUNNING, UNANSWERED, Attempt
from .awaited_inbox import LoopInbox
from .backoff import transport_pause
from .blocked_loop import LOOP_WATCH
from .decide import RUN, Outcome
from .errors import CURRENT_JOB
from .interrupts import is_from_outside
from .job import AsyncJob
from .quarantine import QUARANTINE
from .remembered_ids import RememberedIds, forget
from .run import RunInProgress, Shared
from .shortage import is_shortage
from .time_limits import FINALLY_SECONDS, LOOK_AGAIN_SECONDS, TaskLimit

__all__ = ["FINALLY_SECONDS", "WorkerLoop"]

logger = get_logger(__name__)

LARGEST_LEASE = 200
"""How many messages are leased at a time: opening more at once would stall the event loop."""
GATHER_SECONDS = 0.005
"""How long places that became free wait for others, to be filled in one step."""
SETTLE_SECONDS = 0.01
"""How long a finished job waits for others, to be acknowledged in one step."""
MOST_UNSETTLED = 100
"""So many finished jobs are acknowledged at once."""
IDLE_SECONDS = 0.5
"""How often a loop looks around although nothing has happened."""
NOTICED_AFTER_SECONDS = 0.5
"""How long a fault lasts before the worker tells of it, though the backend still tries again."""
PUT_OFF_SECONDS = 60.0
"""How long a message waits that must run alone, while another one does so for long."""
SUSPECT_SECONDS = 2.0
"""How long a message waits that may have killed its workers, while enough such are at work."""

# A worker that is misused must not go on trying.
MISUSE = (InvalidParameterError, UnsupportedOperationError)


class Ended(NamedTuple):
    """How a handler ended."""

    value: Any
    error: BaseException | None = None


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
        self._handlers: dict[Attempt, asyncio.Task[Ended]] = {}
        """Tasks of their own: who cancels one cancels the job, and not its settlement."""
        self._answers: dict[Attempt, Carried] = {}
        """What goes out with the acknowledgement of attempts in `finished`."""
        self._suspects: dict[Attempt, int] = {}
        """How often workers died with the attempts at work that may be why."""
        self._cut_off: set[Attempt] = set()
        """Cancelled at the deadline of a shutdown: given back, unless they end all the same."""
        self._overdue: set[asyncio.Task[None]] = set()
        """Settle jobs that have failed at their time limit and go on running."""
        self.finished: list[Attempt] = []
        """To be acknowledged, with the next receive or apart."""
        self._being_settled: dict[Attempt, None] = {}
        """Taken from `finished`, by a step that is under way."""
        self._finished_at = self._freed_at = 0.0
        self._is_urgent = False
        """Whether a caller waits for the answer of something in `finished`."""
        self._ids = RememberedIds()
        self._failures = 0
        self._is_exhausted = False
        self._exit: BaseException | None = None
        self._is_inherited = False
        self._receiving: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._context = copy_context()
        # One for all settlements, because none of them changes it.
        self._settling_context = copy_context()
        self._settling_context.run(RETRIES.set, Retries(self._settling_fails))

    # --- what it has in hand ---------------------------------------------------------------

    def is_busy(self) -> bool:
        """Return whether anything is in hand, or may be at any moment."""
        return bool(self._receiving or self._at_work or self.finished or self._being_settled)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, and what is in hand is its parent's."""
        return self._is_inherited

    def held(self) -> list[Attempt]:
        """Return what is in hand."""
        return [*self._being_settled, *self.finished, *self._at_work]

    def disown(self) -> None:
        """Leave what is in hand to the parent of this forked child."""
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
        watched = LOOP_WATCH.watch(self._inbox.name)
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
        """Whether enough places are free, or have been for long enough, to be filled."""
        return free * 20 >= self._places or now - self._freed_at >= GATHER_SECONDS

    def _is_due(self, now: float) -> bool:
        """Whether what has finished should be settled now, and not with the next receive."""
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
        # Unlisted: whoever cancels all tasks of the loop, as asyncio.run does when it ends, cancels
        # `serve`, which then ends in order.
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
        """Tell of a fault that lasts while the backend tries again; True if it should give up.

        It should when the worker ends and the mailbox is not worth waiting for.
        """
        if seconds >= NOTICED_AFTER_SECONDS and not self._failures:
            self._failures = 1
            self._heartbeat.missed(error)
            self._tell_unreachable(error, 0.0)
        return self._stop.is_set() and (self._stop.is_late() or not self.finished)

    def _fault_is_over(self) -> None:
        """Record that the mailbox can be reached again, while the receive is still waiting."""
        if self._failures:
            self._failures = 0
            self._heartbeat.looked()
            self._shared.outage.over()

    async def _pause_after(self, error: Exception, done: list[Attempt]) -> None:
        """Keep what was to be settled, tell of the fault, and leave the mailbox alone."""
        for attempt in done:
            attempt.in_doubt = True
            self._being_settled.pop(attempt, None)
        self.finished[:0] = done
        if is_shortage(error):
            self._shared.shortage.met(error)
        self._failures += 1
        pause = transport_pause(self._failures)
        self._tell_unreachable(error, pause)
        await self._stop.wait_async(pause)

    def _tell_unreachable(self, error: Exception, pause: float) -> None:
        self._shared.outage.met(error)
        self._executor.publish(MailboxUnreachable, error_type(error), pause)

    # --- receiving and settling ------------------------------------------------------------

    async def _receive(self, count: int) -> None:
        """Settle what has finished, fill free places, and wait for messages if there are none."""
        RETRIES.set(Retries(self._fault, self._fault_is_over))
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
        if self._failures:
            self._failures = 0
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
        """Answer and acknowledge what has finished, beside a receive or after the last one."""
        done = self._taken()
        if self._is_ending():
            await self._executor.settle_together(done, lambda: self._exchange(done, 0))
        else:
            try:
                await self._exchange(done, 0)
            except MISUSE:
                raise
            except Exception as error:  # noqa: BLE001 - it is tried again while the leases last
                await self._pause_after(error, done)
                return
        await self._let_go_of(done)
        if self._ids.is_due():
            await self._forget_ids()

    def _taken(self) -> list[Attempt]:
        """Return what has finished, for a step that settles it."""
        done, self.finished, self._is_urgent = self.finished, [], False
        for attempt in done:
            if attempt.message.is_finalized:  # by a step after which the mailbox was lost
                self._answers.pop(attempt, None)
            attempt.lease.is_settling = True
            self._being_settled[attempt] = None
        return done

    async def _let_go_of(self, done: Sequence[Attempt]) -> None:
        """Take note of what became of the attempts that were to be acknowledged."""
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
        if self._stop.is_set():
            await self._give_back(attempts)
            return
        if self._shared.is_careful and any(message.delivery_count > 1 for message in messages):
            attempts = await self._without_suspects(attempts)
        for attempt in attempts:
            self._start(attempt, self._context)

    def _held_from_now(self, messages: Sequence[Any]) -> list[Attempt]:
        """Have the leases of what was received extended from now on."""
        hold, leases = self._run.hold, self._run.leases
        return [Attempt(message, hold(message, leases)) for message in messages]

    def _start(self, attempt: Attempt, context: Context) -> None:
        """Work on an attempt; its handler is called in a copy of the context."""
        work = self._work(attempt, context)
        self._at_work[attempt] = task = start_unlisted(work, self._settling_context)
        task.add_done_callback(self._note_error)

    def _note_error(self, work: asyncio.Task[None]) -> None:
        """End the worker with an error that no attempt can be blamed for."""
        if not work.cancelled() and (error := work.exception()) is not None:
            self._exit = self._exit or error
            self._stop.set()

    async def _work(self, attempt: Attempt, context: Context) -> None:
        """Bring an attempt to its end."""
        executor = self._executor
        try:
            outcome = executor.before_run(attempt)
            if outcome is None:
                outcome = await executor.ask_caller(attempt)
            if outcome is RUN:
                outcome = await self._handle(attempt, context)
            if outcome is None:
                return  # it is given back with all others that were cut off
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
        """Free the place of an attempt; what is to be acknowledged waits for others."""
        self._at_work.pop(attempt, None)
        self._suspects.pop(attempt, None)
        now = self._loop.time()
        if attempt.is_handed_over:
            pass  # so is its lease
        elif attempt.has_ended:
            if not self.finished:
                self._finished_at = now
            self._is_urgent = self._is_urgent or attempt.state is UNANSWERED
            self.finished.append(attempt)
        elif attempt not in self._cut_off:
            attempt.lease.release()
        if attempt.exit is not None:
            self._exit = attempt.exit
            self._stop.set()
        if len(self._at_work) == self._places - 1:
            self._freed_at = now
        self._changed.set()

    async def _handle(self, attempt: Attempt, context: Context) -> Outcome | None:
        """Have the handler called, and return what is to be done then; None if it was cut off."""
        if attempt in self._cut_off:
            return None
        executor, limit = self._executor, self._shared.time_limit
        attempt.started = started = time.monotonic()
        ended = await self._ended(attempt, context, limit)
        if isinstance(ended.error, SystemExit) and attempt not in self._cut_off:
            attempt.exit = ended.error
        if attempt.is_handed_over:
            return decide.TAKEN if attempt.cancelled == "time_limit" else None
        if attempt.parts is not None:
            await attempt.parts.flush()
        if attempt.is_cancelled_by_caller:
            return decide.after_cancel(lost=attempt.is_lost, answered=attempt.state is ACKNOWLEDGED)
        if limit is not None and attempt.is_late(time.monotonic()):
            return decide.at_time_limit(limit, ended.error)
        if ended.error is not None:
            if attempt in self._cut_off:
                return None
            return self._shared.shortage.after_error(attempt, ended.error)
        lost = attempt.is_lost
        answers = attempt.route is not None and not attempt.has_replied
        if executor.dispatcher is not None and not lost:
            executor.publish(JobFinished, attempt.message.id, time.monotonic() - started)
        return decide.after_return(ended.value, lost=lost, answers=answers)

    async def _ended(self, attempt: Attempt, context: Context, limit: float | None) -> "Ended":
        """Run the handler as a task of its own, within the time limit."""
        self._handlers[attempt] = handler = self._loop.create_task(
            self._call(attempt), name=f"job-{attempt.message.id}", context=context.copy()
        )
        attempt.lease.on_cancel = partial(self._cancelled_elsewhere, attempt)
        if attempt.lease.cancelled:  # since this was last looked at, when nobody was to be told
            self._cancel(attempt)
        timer = None if limit is None else TaskLimit(attempt, limit, handler, self._fail_overdue)
        try:
            return await handler
        except asyncio.CancelledError as error:
            if self._is_cancelled():
                # An event loop that ends cancels all its tasks, the worker's and those of jobs.
                self._cut_off.add(attempt)
                attempt.cancelled = attempt.cancelled or "shutdown"
            return Ended(None, error)
        finally:
            del self._handlers[attempt]
            if timer is not None:
                timer.end()

    def _cancelled_elsewhere(self, attempt: Attempt) -> None:
        """Have a job cancelled by its caller; called by the thread that extends leases."""
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._cancel, attempt)

    def _cancel(self, attempt: Attempt) -> None:
        handler = self._handlers.get(attempt)
        if handler is None or attempt.cancelled is not None:
            return  # it has ended, or ends for another reason
        if attempt.is_replying:  # cut off, nobody would know whether the reply was sent
            self._loop.call_later(LOOK_AGAIN_SECONDS, self._cancel, attempt)
            return
        attempt.cancelled = "caller"
        handler.cancel()

    async def _call(self, attempt: Attempt) -> "Ended":
        """Await the handler, in the context of its job; whatever it raises is returned."""
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
            with self._heartbeat.working():
                handler = self._shared.handler
                result = handler(body) if with_job is None else with_job(body, job)
                ended = Ended(await result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # The event loop would end with an exit that one of its tasks raises.
            if is_from_outside(error) or _is_destroyed(error):
                raise
            ended = Ended(None, error)
        if attempt.state is INHERITED:
            _end_child()
        return ended

    def _fail_overdue(self, attempt: Attempt) -> None:
        """Settle a job that was cancelled at its limit and goes on; its place stays taken."""
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
        """Return what may start now; see to those that may have killed their workers.

        What is in hand when a worker dies counts as crashed. So the more often that happened, the
        fewer such messages are at work at once, and one that would be given up after another crash
        runs when nothing else does.
        """
        last = [attempt for attempt in attempts if self._must_run_alone(attempt)]
        if last and not QUARANTINE.is_overdue():
            await self._give_back(attempts)
            await self._work_alone()
            return []
        # Another one has been alone for long. These do not run beside it, nor hold up the rest.
        await self._give_back(last, PUT_OFF_SECONDS)
        crowd = [one for one in attempts if one not in last and not self._has_room(one)]
        await self._give_back(crowd, SUSPECT_SECONDS)
        return [one for one in attempts if one not in last and one not in crowd]

    def _has_room(self, attempt: Attempt) -> bool:
        """Return whether a message may run beside others, and count it if it is suspect."""
        crashes = decide.crashes(self._inbox.counts(attempt.message))
        beside = sum(others >= crashes for others in self._suspects.values())
        if beside >= decide.room_for_suspects(crashes, self._places):
            return False
        if crashes > 1:
            self._suspects[attempt] = crashes
        return True

    def _must_run_alone(self, attempt: Attempt) -> bool:
        thresholds = self._executor.thresholds
        return thresholds is not None and decide.must_run_alone(
            self._inbox.counts(attempt.message), thresholds
        )

    async def _work_alone(self) -> None:
        """Work on the next message while nothing else is in the hands of this process."""
        # What was given back is the next, unless another process was quicker.
        if not await QUARANTINE.begin_async(self, self._stop):
            return
        try:
            await self._idle()
            if not self._stop.is_set():
                for attempt in self._held_from_now(await self._exchange((), 1)):
                    # In this task's context, so that a worker inside the job knows of it.
                    self._start(attempt, copy_context())
                await self._idle()
        except MISUSE:
            raise
        except Exception as error:  # noqa: BLE001 - as with any other receive
            await self._pause_after(error, [])
        finally:
            QUARANTINE.end(self)

    async def _idle(self) -> None:
        """Wait until nothing is at work and all is settled, or it is time to stop."""
        while self._at_work or self.finished or self._being_settled:
            if self._stop.is_set() or QUARANTINE.is_overdue():
                return
            await self._stop.wait_async(SETTLE_SECONDS)

    async def _give_back(self, attempts: list[Attempt], delay: float = 0.0) -> None:
        """Give back what was not run, as if it had not been received."""
        await self._executor.give_back(attempts, delay)
        for attempt in attempts:
            attempt.lease.release()

    # --- the end ---------------------------------------------------------------------------

    async def _end_jobs_whatever_happens(self) -> None:
        """End the jobs, also if this is cancelled again and again, as some libraries do."""
        ending = start_unlisted(self._end_jobs(), self._context.copy())
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError:
                pass  # nothing would give the jobs back, and their leases would be kept
        ending.result()

    async def _end_jobs(self) -> None:
        """Cancel what still runs, give it a while to end, and give it back."""
        tasks = [
            *self._at_work.values(),
            *self._overdue,
            *filter(None, (self._receiving, self._settling)),
        ]
        self._cut_off.update(self._at_work)
        for attempt, handler in self._handlers.items():
            attempt.cancelled = attempt.cancelled or "shutdown"
            handler.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FINALLY_SECONDS)
        rest = [
            one
            for one in self._cut_off
            if not (one.has_ended or one.is_settled or one.message.is_finalized)
        ]
        for attempt in rest:
            attempt.lease.abandon()
        if rest:
            self._tell_given_back(rest)
            await self._give_back(rest)
        if self._being_settled and not (self._receiving or self._settling):
            self.finished[:0] = self._being_settled  # the step that was to settle them has failed
        if self.finished:
            await self._settle_apart()
        await self._forget_ids()

    def _tell_given_back(self, rest: Sequence[Attempt]) -> None:
        self._run.given_back = len(rest)
        still = sum(attempt in self._at_work for attempt in rest)
        logger.warning(
            "%s: the shutdown gave back %d unfinished %s%s",
            self._inbox.name,
            len(rest),
            "job" if len(rest) == 1 else "jobs",
            f"; {still} did not end within {FINALLY_SECONDS:g} s of being cancelled" * bool(still),
            extra={"mailbox": self._inbox.name, "given_back": len(rest)},
        )


def _is_destroyed(error: BaseException) -> bool:
    """Return whether the task is being destroyed, rather than its job having raised this."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True


def _end_child() -> None:
    """End a child that a job has forked: an event loop cannot go on in two processes."""
    logger.warning("a job was left by a child that it forked: the child ends here")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)

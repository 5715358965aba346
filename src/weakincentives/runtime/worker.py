"""The one loop: receive, handle, settle."""

import _thread
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.waiting import StopSignal

from .backoff import transport_pause
from .checks import check_made_of, check_run
from .dead_letter import DeadLetter
from .events import MailboxUnreachable
from .evidence import error_type
from .heartbeat import Heartbeat
from .lane import Lane, Run
from .lease_extender import LeaseExtender
from .settler import Settler
from .source import NOTHING, Job, Source
from .terms import Failure, Terms, WorkerConfig
from .type_arguments import bind

if TYPE_CHECKING:
    from .dlq import DLQPolicy

__all__ = ["Failure", "Worker", "WorkerConfig"]

logger = logging.getLogger(__name__)

T = TypeVar("T", default=Any)
R = TypeVar("R", default=None)

# A loop that is misused must not go on trying.
MISUSE = (InvalidParameterError, UnsupportedOperationError)


class Worker(Generic[T, R]):
    """Serves a mailbox with a function from a body to a reply, plain or async.

    A message is acknowledged when its handler has returned and its reply was sent. A handler that
    raises never acknowledges: see ``dlq`` and ``error_reply`` for what happens then.
    """

    def __init__(
        self,
        mailbox: Mailbox[T, R],
        handler: Callable[[T], R | Awaitable[R]],
        *,
        error_reply: Callable[[Failure], R] | None = None,
        responses: Mailbox[R, None] | None = None,
        dlq: "DLQPolicy[T, R] | None" = None,
        config: WorkerConfig | None = None,
    ) -> None:
        check_made_of(mailbox, handler, dlq, config)
        self.config = config = config if config is not None else WorkerConfig()
        self.heartbeat = Heartbeat()
        self.lease_extender = LeaseExtender(config.lease_extender)
        self._handler = handler
        self.dlq = dlq
        self._source = Source(mailbox)
        self._stop = StopSignal()
        self._settler = Settler(
            self._source,
            Terms(
                error_reply,
                responses,
                dlq,
                config.backoff,
                config.error_detail,
                config.failure_log,
                config.dispatcher or getattr(mailbox, "dispatcher", None),
            ),
            self._stop,
        )
        self._lock = threading.Lock()
        self._runs = 0
        self._ended = threading.Event()
        self._ended.set()
        # Only one thread waits for messages at a time; the others would wait for the same ones.
        self._turn = threading.Lock()
        self._lanes: dict[Lane, int] = {}

    @property
    def running(self) -> bool:
        """Whether `run` is in progress."""
        return self._runs > 0

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Serve until `shutdown`, until the mailbox is closed, or for ``max_iterations`` receives.

        May be called from several threads. A job that ends the process (``sys.exit``, Ctrl-C)
        ends the loop, and comes out of here.
        """
        check_run(max_iterations, self._handler)
        asked = self._source.check(self.config.batch, visibility_timeout, wait_time_seconds)
        run = Run(max_iterations, *asked, self.config.lease_extender)
        self._bind_dead_letters()
        with self._lock:
            self._runs += 1
            self._ended.clear()
        others = [
            threading.Thread(target=self._lane, args=(run,), name=f"worker-{number}", daemon=True)
            for number in range(1, self.config.concurrency)
        ]
        try:
            for thread in others:
                thread.start()
            self._lane(run)
            for thread in others:
                thread.join()
        except BaseException:
            self._stop.set()
            raise
        finally:
            with self._lock:
                self._runs -= 1
                if self._runs == 0:
                    self._ended.set()
        if run.error is not None:
            raise run.error

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """End the loop for good, also one that has not begun; True if it has ended in time.

        Jobs at work may finish within ``timeout``; what is then unfinished is given back, and its
        result dropped. With 0, or from inside a job, it only tells the loop to end.
        """
        if threading.get_ident() in list(self._lanes.values()) or self.heartbeat.at_work():
            # It cannot wait for itself. And a signal handler may have interrupted this thread
            # while it held a lock that stopping needs.
            self._stop.say()
            _thread.start_new_thread(self._stop.set, ())
            return not self.running
        self._stop.set()
        ended = self._ended.wait(timeout)
        if not ended and timeout > 0:
            for lane in list(self._lanes):
                for job in lane.held():
                    job.lease.abandon()
                    self._settler.give_back(job)
        return ended

    def _bind_dead_letters(self) -> None:
        if self.dlq is None:
            return
        body_type = getattr(self._source.mailbox, "body_type", None)
        try:
            bind(self.dlq.mailbox, DeadLetter[Any if body_type is None else body_type], None)  # type: ignore[misc]
        except InvalidParameterError:
            # A union that only its envelope can tell apart: inside a letter it stays plain JSON.
            bind(self.dlq.mailbox, DeadLetter[Any], None)

    def _lane(self, run: Run) -> None:
        """Receive, handle and settle in one thread."""
        lane = Lane(self._handler, self.heartbeat, run.wait)
        self._lanes[lane] = threading.get_ident()
        try:
            closed = self._source.closed
            while not closed and not self._stop.is_set() and run.next():
                closed = not self._iterate(run, lane) and self._source.closed
        except BaseException as error:  # noqa: BLE001 - handed to whoever called run()
            run.error = run.error or error
            self._stop.set()
        finally:
            try:
                self._leave(lane)
            finally:
                del self._lanes[lane]
                lane.close()

    def _iterate(self, run: Run, lane: Lane) -> bool:
        """Take what is next and work on it; False if there was nothing."""
        try:
            messages = self._exchange(run, lane)
        except MISUSE:
            raise
        except Exception as error:
            lane.failures += 1
            for job in lane.finished:
                job.uncertain = True
            pause = transport_pause(lane.failures)
            logger.warning(
                "%s: receiving failed, looking again in %.1f s",
                self._source.name,
                pause,
                exc_info=error,
            )
            self._settler.publish(MailboxUnreachable, error_type(error), pause)
            self._stop.wait(pause)
            return False
        lane.failures = 0
        self._let_go_of_finished(lane)
        hold = self.lease_extender.hold
        lane.waiting = [Job(message, hold(message, run.leases)) for message in messages]
        while lane.waiting and not self._stop.is_set():
            self._work(lane)
        return bool(messages)

    def _work(self, lane: Lane) -> None:
        job = lane.waiting[0]
        finished = self._settler.work(job, lane.call, lane.working)
        if finished and len(lane.waiting) > 1:
            # The last answer of a batch goes with the next receive; the others must not wait.
            finished = self._settler.answer_patiently(job)
        # Only now: whatever interrupts this, the job is in somebody's hands.
        del lane.waiting[0]
        if finished:
            lane.finished.append(job)
        else:
            job.lease.release()
        if job.exit is not None:
            raise job.exit

    def _exchange(self, run: Run, lane: Lane) -> Any:
        """Settle what is finished and receive what is next."""
        finished = lane.finished
        last = finished[-1] if finished and finished[-1].answer is not NOTHING else None
        if last is None:
            return self._take(finished, run, lane)
        answer = last.answer
        # A caller's reply acknowledges its message too.
        done = finished[:-1] if last.via == "channel" else finished
        try:
            return self._take(done, run, lane, partial(self._settler.answer, last))
        except Exception as error:
            if last.answer_error is not error:
                last.answer = answer  # it may have been undone together with the rest
                raise
        if not self._settler.answer_patiently(last):
            finished.remove(last)
            last.lease.release()
        return self._take(finished, run, lane)

    def _take(
        self, done: list[Job], run: Run, lane: Lane, first: Callable[[], object] | None = None
    ) -> Any:
        take, stop = self._source.take, self._stop
        # A probe wants to hear at once that the mailbox is reached, not after a long poll.
        if self.heartbeat.reaches and self._turn.acquire(blocking=False):
            try:
                with lane.looking:
                    return take(done, run.batch, run.visibility, run.wait, stop, first)
            finally:
                self._turn.release()
        with lane.glancing:
            messages = take(done, run.batch, run.visibility, 0, stop, first)
        if messages or not run.wait:
            return messages
        with self._turn, lane.looking:
            return take((), run.batch, run.visibility, run.wait, stop)

    def _leave(self, lane: Lane) -> None:
        """Settle what is finished and give back what is not."""
        for job in lane.waiting:
            self._settler.give_back(job)
            job.lease.release()
        finished = [job for job in lane.finished if self._settler.answer_patiently(job)]
        for job in lane.finished:
            if job not in finished:
                job.lease.release()
        lane.finished = finished
        if finished:
            try:
                self._settler.patiently(finished[0], partial(self._source.acknowledge, finished))
            except Exception as error:  # noqa: BLE001 - their leases run out, they come back
                logger.warning("%s: the last acknowledgement failed: %s", self._source.name, error)
        self._let_go_of_finished(lane)

    def _let_go_of_finished(self, lane: Lane) -> None:
        for job in lane.finished:
            if not job.settled and (job.lease.lost or not job.uncertain):
                self._settler.abandon(job)
            job.lease.release()
        lane.finished = []

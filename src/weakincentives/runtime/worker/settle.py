"""Carries out what `decide` has decided about an attempt.

All of it is coroutines over an `Inbox`: a thread runs them to their end, an event loop awaits them.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar

from weakincentives.dispatch import publish
from weakincentives.error_text import described, error_type
from weakincentives.ids import new_id
from weakincentives.logs import get_logger
from weakincentives.runtime.dead_letters.letter import letter_for, sequel_id
from weakincentives.runtime.events import (
    JobAbandoned,
    JobCancelled,
    JobFailed,
    JobGivenBack,
    JobPutOff,
    JobSkipped,
    MessageDeadLettered,
)
from weakincentives.runtime.heartbeat import Heartbeat
from weakincentives.runtime.leases.extender import CURRENT
from weakincentives.runtime.mailbox import (
    PayloadTooLargeError,
    ReceiptHandleExpiredError,
    ReplyAlreadySentError,
    SerializationError,
)
from weakincentives.runtime.mailbox.cause import caused_by
from weakincentives.runtime.mailbox.replies.failure import Failed
from weakincentives.runtime.mailbox.seam.waiting import StopSignal

from . import decide
from .answers import Answers, log_unsent
from .attempt import ABANDONED, ACKNOWLEDGED, FINISHED, GIVEN_BACK, UNANSWERED, Attempt, State
from .backoff import transport_pause
from .config import Settings
from .decide import Ending, Outcome
from .emit import JobParts
from .errors import CURRENT_JOB, JobCancelledError
from .failures import failure_of, log_dead_letter, log_failure
from .inbox import Inbox
from .interrupts import is_from_outside
from .job import because
from .shortage import is_shortage

__all__ = ["OutcomeExecutor"]

logger = get_logger(__name__)

SETTLE_RETRY_SECONDS = 60.0
"""How long a reply, a nack or a worker's last acknowledgement is retried while the mailbox cannot
be reached. Other acknowledgements go with the next receive, which is retried until the worker
stops."""

V = TypeVar("V")

OUTCOME_NAMES: dict[type, str] = {
    decide.Retry: "retry",
    decide.TellSender: "told",
    decide.ToDeadLetters: "dead-letter",
    decide.Acknowledge: "answered",
}
DROPPED_BECAUSE: dict[type, str] = {
    decide.Crash: "it counts as crashed, and is delivered again when its lease ends",
    decide.Taken: "it failed at its time limit, so its result is dropped",
}


class OutcomeExecutor:
    """Carries out outcomes, for one worker."""

    def __init__(
        self,
        inbox: Inbox,
        settings: Settings,
        stop: StopSignal,
        heartbeat: Heartbeat,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._inbox = inbox
        self._settings = settings
        self._stop = stop
        self._heartbeat = heartbeat
        self._pause = pause
        self._answers = Answers(inbox, settings)
        self.carried = self._answers.carried
        self._default_route = None if settings.responses is None else "responses"
        self.thresholds = settings.thresholds()
        self.dispatcher = settings.dispatcher
        """Who is told of events; each run of the worker sets it anew."""
        self.longest_delay = inbox.limits.max_visibility
        """The longest time after which a message can be delivered again, in seconds."""

    @property
    def mailbox(self) -> Any:
        """The mailbox that the worker serves."""
        return self._inbox.mailbox

    def seconds_left(self, attempt: Attempt) -> float | None:
        """Return the seconds until a reply expires or the time limit is reached, None if never."""
        limit = attempt.limit
        until_limit = math.inf if limit is None else limit - time.monotonic()
        left = min(self._inbox.reply_expires_in(attempt.message), until_limit)
        return None if left == math.inf else left

    def publish(self, event: Callable[..., object], *facts: object) -> None:
        """Tell the dispatcher, if there is one."""
        if self.dispatcher is not None:
            publish(self.dispatcher, event(self._inbox.name, *facts))

    # --- before the handler runs -----------------------------------------------------------

    def before_run(self, attempt: Attempt) -> Outcome | None:
        """Return what is to be done with an attempt; None if its caller must be asked first."""
        message, crashed = attempt.message, None
        if attempt.lease.cancelled:
            return decide.DROP
        if self.thresholds is not None and message.delivery_count > 1:
            counts = self._inbox.counts(message)
            crashed = counts.deliveries if decide.is_given_up(counts, self.thresholds) else None
        try:
            attempt.route = self._inbox.route(message) or self._default_route
        except Exception as error:  # noqa: BLE001 - `decide` says what it means
            if crashed is None:
                return self._without_caller(attempt, error)
        if crashed is not None:  # it is not even read
            return decide.before_run(crashed=crashed)
        return None if attempt.route == "channel" else decide.RUN

    async def ask_caller(self, attempt: Attempt) -> Outcome:
        """Record the start for the caller who waits, and return what is to be done."""
        try:
            is_awaited = await self._inbox.start(attempt.message)
        except Exception as error:  # noqa: BLE001 - `decide` says what it means
            return self._without_caller(attempt, error)
        return decide.before_run(gone=not is_awaited)

    def _without_caller(self, attempt: Attempt, error: Exception) -> Outcome:
        """Return what is to be done if this was raised when the sender was looked for."""
        if is_shortage(error) and not isinstance(error, decide.TRANSPORT_ERRORS):
            raise error  # no fault of the message, which has not been run
        message = attempt.message
        outcome = decide.before_run(
            error=error,
            readable=_is_readable(message),
            pause=transport_pause(message.delivery_count),
        )
        if isinstance(outcome, decide.Retry):
            logger.warning("Message %s: its reply channel cannot be read: %s", message.id, error)
        return outcome

    # --- any outcome -----------------------------------------------------------------------

    async def carry_out(self, attempt: Attempt, outcome: Outcome) -> None:
        """Carry out an outcome and what follows from it.

        Afterwards the attempt has ended, and is still to be answered or acknowledged, or it is
        settled or abandoned.
        """
        following: Outcome | None = outcome
        while following is not None:
            following = await self._step(attempt, following)

    async def _step(self, attempt: Attempt, outcome: Outcome) -> Outcome | None:
        match outcome:
            case decide.Acknowledge():
                attempt.finish()
            case decide.Reply():
                attempt.answer_with(outcome)
            case decide.Skip() | decide.Drop():
                return self._leave(attempt, outcome)
            case decide.Fail():
                return await self._fail(attempt, outcome)
            case decide.Retry() | decide.PutOff() | decide.Remove():
                await self._settle_as(attempt, outcome)
            case decide.GiveBack(delay):
                await self.give_back([attempt], delay)
            case decide.Abandon():
                self.abandon(attempt)
            case decide.Crash() | decide.Taken():
                self._drop(attempt, DROPPED_BECAUSE[type(outcome)])
            case decide.Settled():
                attempt.become(ABANDONED)
            case _:
                raise AssertionError(f"{outcome!r} stands at the wrong place")
        return None

    def _leave(
        self, attempt: Attempt, outcome: decide.Skip | decide.Drop
    ) -> decide.Acknowledge | decide.Remove:
        """Tell that nobody wants the result of an attempt, and return what follows."""
        if isinstance(outcome, decide.Skip):
            self.publish(JobSkipped, attempt.message.id)
            return decide.ACKNOWLEDGE
        logger.info("Message %s was cancelled by its caller", attempt.message.id)
        self.publish(JobCancelled, attempt.message.id)
        return decide.REMOVE

    def abandon(self, attempt: Attempt) -> None:
        """Let go of an attempt whose lease was lost: nothing more is said for it."""
        attempt.lease.abandon()
        self._drop(
            attempt,
            "the shutdown settled it at its deadline, so its result is dropped"
            if attempt.state is ABANDONED
            else "its lease was lost, so its result is dropped; it is delivered again",
        )

    def _drop(self, attempt: Attempt, why: str) -> None:
        logger.warning("Message %s: %s", attempt.message.id, why)
        self.publish(JobAbandoned, attempt.message.id)
        attempt.become(ABANDONED)

    # --- failures --------------------------------------------------------------------------

    async def _fail(self, attempt: Attempt, failed: decide.Fail) -> Outcome | None:
        """Decide about a failure, tell of it, and return what follows."""
        if attempt.is_cancelled_by_caller:
            return self._after_cancel(attempt)
        put_off = self._put_off(attempt, failed.error)
        if isinstance(put_off, decide.Fail):
            failed = put_off
        elif put_off is not None:
            return put_off
        settings, message, error = self._settings, attempt.message, failed.error
        deliveries, reference = message.delivery_count, new_id()[:10]
        can_tell = not attempt.has_replied and (
            self._can_fail_reply(attempt)
            or (attempt.route is not None and settings.error_reply is not None)
        )
        delay, lost = settings.config.backoff.delay(message.attempts), attempt.is_lost
        outcome = decide.after_failure(
            error,
            deliveries,
            lost=lost,
            answered=attempt.state is ACKNOWLEDGED,
            readable=failed.readable,
            verdict=None if lost else self._verdict(attempt, error),
            absolute_max=100 if self.thresholds is None else self.thresholds.absolute_max,
            can_tell=can_tell,
            delay=delay,
        )
        if isinstance(outcome, decide.Abandon):
            return outcome
        if isinstance(outcome, decide.ToDeadLetters) and await self._is_cancelled(attempt):
            return self._after_cancel(attempt)
        name = OUTCOME_NAMES[type(outcome)]
        log_failure(settings.config, self._inbox.name, message, error, reference, name)
        began = attempt.started
        seconds = None if began is None else time.monotonic() - began
        self.publish(JobFailed, message.id, error_type(error), reference, name, seconds)
        following: Outcome = outcome
        letter_id = None
        if isinstance(outcome, decide.ToDeadLetters):
            letter_id = await self._dead_letter(attempt, failed)
            following = decide.after_dead_letter(
                sent=letter_id is not None,
                can_tell=can_tell,
                awaited=attempt.route == "channel",
                delay=delay,
            )
        if isinstance(following, decide.TellSender):
            return self._error_reply(attempt, error, reference, letter_id)
        return following

    def _after_cancel(self, attempt: Attempt) -> Outcome:
        return decide.after_cancel(lost=attempt.is_lost, answered=attempt.state is ACKNOWLEDGED)

    async def _is_cancelled(self, attempt: Attempt) -> bool:
        """Ask the queue: a cancel that nobody has told of yet came before this failure."""
        try:
            return await self._inbox.is_cancelled(attempt.message)
        except Exception as error:  # noqa: BLE001 - it is evidence of a failure, and must not be lost
            logger.warning("Message %s may have been cancelled: %s", attempt.message.id, error)
            return False

    def _can_fail_reply(self, attempt: Attempt) -> bool:
        """Return whether a caller waits for a reply that can be settled as failed."""
        return attempt.route == "channel" and self._inbox.can_fail_reply(attempt.message)

    def _put_off(
        self, attempt: Attempt, error: BaseException
    ) -> decide.Abandon | decide.PutOff | decide.Fail | None:
        """Return what is to be done if an error asks for the message again later, else None."""
        delay = decide.asked_delay(error, self.longest_delay)
        if delay is None:
            return None
        message = attempt.message
        return decide.after_retry_after(
            error,
            delay,
            lost=attempt.is_lost,
            answered=attempt.state is ACKNOWLEDGED,
            deliveries=message.delivery_count,
            most=decide.most_put_off(self.thresholds, counted_apart=self._inbox.undoes),
            left=self._inbox.reply_expires_in(message),
            age=self._inbox.age(message),
            max_put_off=self._settings.config.max_put_off,
        )

    def _verdict(self, attempt: Attempt, error: BaseException) -> bool | None:
        """Return what the dead-letter policy says, None without one."""
        dlq = self._settings.dlq
        if dlq is None:
            return None
        try:
            return _in_job(attempt, dlq.should_dead_letter, attempt.lease.message, error)
        except Exception:
            logger.exception("the dead-letter policy failed; the message is retried")
            return False

    async def _dead_letter(self, attempt: Attempt, failed: decide.Fail) -> str | None:
        """Send the dead letter, without its traceback if that is too much; return its id.

        None if it could not be sent.
        """
        dlq, source, error = self._settings.dlq, self._inbox.name, failed.error
        assert dlq is not None
        message, deliveries = attempt.lease.message, attempt.message.delivery_count
        id = sequel_id("dead-letter", source, message)

        async def send(with_stack: bool = True) -> None:
            letter = letter_for(
                message,
                error,
                source=source,
                dlq=dlq.mailbox,
                readable=failed.readable,
                with_stack=with_stack,
            )
            with caused_by(message):
                await self._inbox.send(dlq.mailbox, letter, id)

        try:
            try:
                await self._patiently([attempt], send)
            except PayloadTooLargeError:
                await self._patiently([attempt], lambda: send(with_stack=False))
        except Exception:
            logger.exception("Message %s could not be dead-lettered; it is retried", message.id)
            return None
        attempt.sequels += ((dlq.mailbox, id),)
        log_dead_letter(self._inbox.name, message, deliveries, error)
        facts = error_type(error), deliveries, dlq.mailbox.name
        self.publish(MessageDeadLettered, message.id, id, *facts)
        return str(id)

    def _error_reply(
        self, attempt: Attempt, error: BaseException, reference: str, letter_id: str | None
    ) -> Outcome:
        """Have the user's function make an error reply; return what is to be done with it.

        A caller who waits is told of the failure in any case.
        """
        settings, message = self._settings, attempt.lease.message
        deliveries, detail = attempt.message.delivery_count, settings.config.error_detail
        dead_lettered = letter_id is not None
        ending = Ending.DEAD_LETTERED if dead_lettered else Ending.FAILED
        fails_reply = self._can_fail_reply(attempt)
        text = described(error) if detail == "text" else None
        failed = Failed(error_type(error), reference, letter_id, text)
        if settings.error_reply is None:
            return decide.Reply(failed, ending)
        given_up_after = deliveries if dead_lettered else None
        failure = failure_of(message, attempt.body, error, reference, detail, given_up_after)
        try:
            value = _in_job(attempt, settings.error_reply, failure)
        except BaseException as raised:
            if is_from_outside(raised):
                raise
            logger.exception("error_reply failed for message %s", message.id)
            if fails_reply:
                return decide.Reply(failed, ending)
            return decide.after_error_reply_failed(
                dead_lettered=dead_lettered,
                awaited=attempt.route == "channel",
                delay=settings.config.backoff.delay(attempt.message.attempts),
            )
        return decide.Reply(replace(failed, value=value) if fails_reply else value, ending)

    # --- answers ---------------------------------------------------------------------------

    async def answer(self, attempt: Attempt) -> None:
        """Send an attempt's answer, or find another end for it."""
        while attempt.state is UNANSWERED:
            if attempt.message.is_finalized:
                # It went out in a step after which the mailbox was lost.
                attempt.finish()
                return
            try:
                await self._patiently([attempt], partial(self._answers.send_last, attempt))
            except Exception as error:  # noqa: BLE001 - whatever it is, the answer did not go out
                await self.carry_out(attempt, self._answers.after_unsent(attempt, error))

    async def answer_now(self, attempt: Attempt, value: Any) -> bool:
        """Send what a handler answers before its end; False if the message asks for no answer."""
        if attempt.has_replied or attempt.is_replying:
            raise ReplyAlreadySentError(
                f"job {attempt.message.id} has replied already: a message gets one answer"
            )
        # Before the look at the time: until this is over, nobody settles it at its limit.
        attempt.is_replying = True
        try:
            reason = attempt.why_cancelled(time.monotonic())
            if reason is not None:
                raise JobCancelledError(f"no reply was sent: {because(attempt.message.id, reason)}")
            if attempt.route is None:
                return False
            if attempt.parts is not None:
                await attempt.parts.flush()
            await self._patiently([attempt], partial(self._answers.send, attempt, value))
        except asyncio.CancelledError:
            attempt.in_doubt = True
            raise
        except ReceiptHandleExpiredError:
            refused = decide.after_refusal(in_doubt=attempt.in_doubt, lost=attempt.lease.lost)
            if attempt.route != "channel" or not isinstance(refused, decide.Settled):
                raise
            attempt.become(ACKNOWLEDGED)  # by the step that was cut off
        finally:
            attempt.is_replying = False
        attempt.has_replied = True
        return True

    def parts_of(self, attempt: Attempt) -> JobParts | None:
        """Return where the parts of an attempt go, None if no caller can read them."""
        if attempt.route != "channel" or not self._inbox.can_fail_reply(attempt.message):
            return None
        if attempt.parts is None:
            attempt.parts = JobParts(attempt, self._inbox)
        return attempt.parts

    # --- settling --------------------------------------------------------------------------

    async def acknowledge(self, attempts: Sequence[Attempt]) -> None:
        """Acknowledge what is finished; if that fails it comes back when its lease ends."""
        if not attempts:
            return
        messages = [attempt.message for attempt in attempts]
        await self.settle_together(attempts, lambda: self._inbox.acknowledge(messages))

    async def settle_together(
        self, attempts: Sequence[Attempt], step: Callable[[], Awaitable[object]]
    ) -> None:
        """Take the last step for what has ended; if it fails, their leases run out."""
        try:
            await self._patiently(attempts, step)
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop ends
            logger.warning("%s: the last acknowledgement failed: %s", self._inbox.name, error)

    async def give_back(self, attempts: Sequence[Attempt], delay: float = 0.0) -> None:
        """Give back what was not run, or not to its end, as if nobody had received it."""
        if not attempts:
            return
        messages = [attempt.message for attempt in attempts]
        try:
            await self._patiently(attempts, lambda: self._inbox.undo(messages, delay))
        except Exception as error:  # noqa: BLE001 - their leases run out, they come back
            names = ", ".join(message.id for message in messages)
            logger.warning("Messages %s could not be given back: %s", names, error)
            for attempt in attempts:
                attempt.become(ABANDONED)
            return
        for attempt in attempts:
            if attempt.message.is_finalized:
                self.publish(JobGivenBack, attempt.message.id)
                attempt.become(GIVEN_BACK)
            else:
                await self._step(attempt, decide.after_refusal(in_doubt=attempt.in_doubt))

    async def settle_entirely(self, attempt: Attempt, outcome: Outcome) -> None:
        """Carry out an outcome, answer and acknowledge, apart from any receive."""
        await self.carry_out(attempt, outcome)
        await self.answer(attempt)
        if attempt.state is FINISHED:
            await self.acknowledge([attempt])
            if attempt.message.is_finalized:
                attempt.become(ACKNOWLEDGED)

    async def finish(self, attempts: Sequence[Attempt]) -> None:
        """Answer and acknowledge what has ended at the deadline of a shutdown, or give it back."""
        unanswered = []
        for attempt in attempts:
            try:
                await self._answers.send_last(attempt)
            except Exception as error:  # noqa: BLE001 - it is run again, by a worker with more time
                log_unsent(attempt, error)
                unanswered.append(attempt)
            finally:
                attempt.lease.abandon()  # the thread that had it says nothing more for it
        await self.acknowledge([one for one in attempts if one not in unanswered])
        await self.give_back(unanswered)

    async def undo_leases(self, handles: Sequence[str]) -> None:
        """Give back what was leased by a receive that was interrupted before it could return."""
        try:
            await self._inbox.undo_leases(handles)
        except Exception as error:  # noqa: BLE001 - the leases run out, the messages come back
            logger.warning(
                "%s: what was just received could not be given back: %s", self._inbox.name, error
            )

    async def _settle_as(
        self, attempt: Attempt, outcome: decide.Retry | decide.PutOff | decide.Remove
    ) -> None:
        """Take the one step that settles an attempt."""
        inbox, message = self._inbox, attempt.message
        match outcome:
            case decide.Retry(delay):
                await self._settle(attempt, GIVEN_BACK, partial(inbox.nack, message, delay))
            case decide.PutOff(delay):
                await self._settle(attempt, GIVEN_BACK, partial(inbox.put_off, message, delay))
                if attempt.state is GIVEN_BACK:
                    logger.info("Message %s is put off by %g s", message.id, delay)
                    self.publish(JobPutOff, message.id, delay)
            case decide.Remove():
                await self._settle(attempt, ACKNOWLEDGED, partial(inbox.remove, message))

    async def _settle(
        self, attempt: Attempt, state: State, step: Callable[[], Awaitable[None]]
    ) -> None:
        """Take the step after which an attempt has this state; if it fails, it is abandoned."""
        try:
            await self._patiently([attempt], step)
            attempt.become(state)
        except ReceiptHandleExpiredError:
            await self._step(attempt, decide.after_refusal(in_doubt=attempt.in_doubt))
        except Exception as error:  # noqa: BLE001 - its lease runs out, and it comes back by itself
            logger.warning("Message %s could not be given back: %s", attempt.message.id, error)
            attempt.become(ABANDONED)

    async def _patiently(
        self, attempts: Sequence[Attempt], step: Callable[[], Awaitable[object]]
    ) -> None:
        """Take a step of a settlement; again and again while the mailbox cannot be reached."""
        began, first = time.monotonic(), attempts[0]
        for failures in count(1):
            try:
                await step()
                return
            except decide.TRANSPORT_ERRORS as error:
                for attempt in attempts:
                    attempt.in_doubt = True
                if not decide.is_worth_repeating(
                    left=began + SETTLE_RETRY_SECONDS - time.monotonic(),
                    lost=first.lease.lost,
                    stopping=self._stop.is_over(),
                ):
                    raise
                if failures == 1:
                    text = "Message %s cannot be settled yet: %s"
                    logger.warning(text, first.message.id, error)
                self._heartbeat.beat()  # a loop that waits for its mailbox does not hang
                await self._pause(transport_pause(failures))
                if self._stop.is_over():
                    raise
                self._heartbeat.beat()


def _in_job(attempt: Attempt, call: Callable[..., V], *arguments: Any) -> V:
    """Call a user's function in the job's context, so that it can get its job and its lease."""
    context = copy_context()
    context.run(CURRENT.set, attempt.lease)
    context.run(CURRENT_JOB.set, attempt.job)
    return context.run(call, *arguments)


def _is_readable(message: Any) -> bool:
    """Return whether a letter can keep the body: what cannot be read is kept as bytes."""
    try:
        message.body  # noqa: B018 - reading it is the question
    except SerializationError:
        return False
    return True

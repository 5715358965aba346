"""One message's way from its receipt to its settlement: what settlement.py decides is done here."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import (
    MailboxConnectionError,
    Message,
    PayloadTooLargeError,
    ReceiptHandleExpiredError,
    ReplyAlreadySentError,
)
from weakincentives.runtime.mailbox.waiting import StopSignal

from .backoff import transport_pause
from .dead_letter import letter_for, request_id_of, sequel_id
from .events import (
    JobAbandoned,
    JobFailed,
    JobFinished,
    JobGivenBack,
    JobSkipped,
    JobStarted,
    MessageDeadLettered,
)
from .evidence import described, error_type
from .lease_extender import CURRENT, LeaseLostError
from .settlement import (
    Counts,
    RepeatedCrashError,
    Retry,
    TellAndAck,
    Thresholds,
    ToDeadLetters,
    after_failure,
    unread,
)
from .source import NOTHING, Job, Source
from .terms import Failure, Terms

__all__ = ["Settler"]

logger = logging.getLogger(__name__)

# How long a finished job's settlement is repeated while the mailbox cannot be reached.
PATIENCE = 60.0

TRANSPORT_ERRORS = (MailboxConnectionError, OSError)


class Settler:
    """Runs jobs and settles them, for one loop."""

    def __init__(self, source: Source, terms: Terms, stop: StopSignal) -> None:
        self._source = source
        self._terms = terms
        self._stop = stop
        self._listened = terms.dispatcher is not None

    def work(
        self, job: Job, call: Callable[[Any], Any], working: AbstractContextManager[None]
    ) -> bool:
        """Run a job. True if it is to be acknowledged, once its answer, if any, is sent."""
        settled = self._without_running(job)
        if settled is not None:
            return settled
        message = job.message
        started = time.monotonic()
        token = CURRENT.set(job.lease)
        try:
            job.body = message.body
            if self._listened:
                self.publish(JobStarted, message.id, job.deliveries)
            with working:
                result = call(job.body)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - nothing a handler does may acknowledge
            if isinstance(error, SystemExit):
                job.exit = error
            job.readable = job.body is not NOTHING
            return self.fail(job, error)
        finally:
            CURRENT.reset(token)
        if job.lease.lost:
            return self.abandon(job)
        if self._listened:
            self.publish(JobFinished, message.id, time.monotonic() - started)
        if job.via is not None:
            job.answer = result
        return True

    def answer(self, job: Job) -> None:
        """Send a job's answer; sent twice, it is the same one."""
        try:
            if job.lease.lost:
                raise LeaseLostError
            message = job.message
            id = sequel_id("answer", self._source.name, message)
            if job.via == "responses":
                self._terms.responses.send(job.answer, message_id=id)
            elif isinstance(message, Message):
                message.reply(job.answer, message_id=id)
            else:
                message.reply(job.answer)
        except ReplyAlreadySentError:
            # Of this very delivery: the step that it was part of was undone or its end not heard.
            pass
        except BaseException as error:
            job.answer_error = error
            raise
        job.answer = NOTHING

    def answer_patiently(self, job: Job) -> bool:
        """Send a job's answer, or find another end for it; True if it is to be acknowledged."""
        if job.answer is NOTHING:
            return True
        try:
            self.patiently(job, partial(self.answer, job))
            return True
        except ReceiptHandleExpiredError:
            # A reply that was cut off has acknowledged the message, unless its time was over.
            heard = job.uncertain and job.via == "channel" and not job.lease.lost
            return False if heard else self.abandon(job)
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer did not go out
            job.answer = NOTHING
            if job.dead_lettered:
                # The evidence is safe; running the job again would only make another letter.
                logger.warning(
                    "Message %s: the sender could not be told: %s", job.message.id, error
                )
                return True
            told_nothing = job.failed or isinstance(error, TRANSPORT_ERRORS)
            if told_nothing and self._terms.dlq is None:
                logger.warning("Message %s: its reply could not be sent: %s", job.message.id, error)
                return self._retry(job, self._terms.backoff.delay(job.deliveries))
            return self.fail(job, error) and self.answer_patiently(job)

    def patiently(self, job: Job, step: Callable[[], object]) -> None:
        """Take a step of a settlement; again and again while the mailbox cannot be reached."""
        give_up = time.monotonic() + PATIENCE
        for failures in count(1):
            try:
                step()
                return
            except TRANSPORT_ERRORS as error:
                job.uncertain = True
                if time.monotonic() > give_up or job.lease.lost:
                    raise
                logger.warning("Message %s cannot be settled yet: %s", job.message.id, error)
                if self._stop.wait(transport_pause(failures)):
                    raise

    def fail(self, job: Job, error: BaseException) -> bool:
        """Settle a job that failed. True if it is to be acknowledged, once its answer is sent."""
        if job.lease.lost:
            return self.abandon(job)
        message, terms, reference = job.message, self._terms, new_id()[:10]
        can_tell = job.via is not None and terms.error_reply is not None and not job.failed
        settlement = after_failure(
            error,
            job.deliveries,
            readable=job.readable,
            verdict=self._verdict(job, error),
            absolute_max=100 if terms.dlq is None else terms.dlq.absolute_max_delivery_count,
            can_tell=can_tell,
            backoff=terms.backoff,
        )
        outcome = _OUTCOMES[type(settlement)]
        logger.error(
            "%s: message_id=%s mailbox=%s delivery_count=%d ref=%s outcome=%s",
            terms.failure_log,
            message.id,
            self._source.name,
            job.deliveries,
            reference,
            outcome,
            exc_info=error,
        )
        self.publish(JobFailed, message.id, error_type(error), reference, outcome)
        job.failed = True
        if isinstance(settlement, Retry):
            return self._retry(job, settlement.delay)
        dead = not isinstance(settlement, TellAndAck)
        if dead and not self._dead_letter(job, error):
            return self._retry(job, terms.backoff.delay(job.deliveries))
        if not can_tell:
            # A caller who waits for a reply stops the usual way of acknowledging.
            return job.via != "channel" or self._remove(job)
        return self._prepare_error_answer(job, error, reference, dead)

    def abandon(self, job: Job) -> bool:
        """Let go of a job whose lease was lost: nothing more is said for it."""
        job.lease.abandon()
        logger.warning(
            "Message %s: its lease was lost, so its result is dropped; it is delivered again",
            job.message.id,
        )
        self.publish(JobAbandoned, job.message.id)
        return False

    def give_back(self, job: Job) -> None:
        """Give a job back at once because the loop ends."""
        if self._settle_by(job, partial(self._source.give_back, job, 0.0)):
            self.publish(JobGivenBack, job.message.id)

    def publish(self, event: Callable[..., object], *facts: object) -> None:
        """Tell the dispatcher, if anybody listens."""
        if self._terms.dispatcher is not None:
            self._terms.dispatcher.dispatch(event(self._source.name, *facts))

    def _without_running(self, job: Job) -> bool | None:
        """Settle a job that nobody is to run, as `work` does; None if it is to run."""
        message = job.message
        if self._terms.dlq is not None and self._unread(job):
            return self.fail(
                job,
                RepeatedCrashError(
                    f"received {job.deliveries} times, and most of its workers died"
                ),
            )
        try:
            job.via = self._way_back(message)
            if job.via != "channel" or message.reply_channel.is_open():
                return None
        except TRANSPORT_ERRORS as error:
            # Not the job's failure: it comes back when somebody can be asked again.
            logger.warning("Message %s: its reply channel cannot be read: %s", message.id, error)
            return self._retry(job, transport_pause(job.deliveries))
        except Exception as error:  # noqa: BLE001 - such as a reply_to that nobody knows
            return self.fail(job, error)
        self.publish(JobSkipped, message.id)  # nobody waits for its reply any more
        return True

    def _unread(self, job: Job) -> bool:
        dlq, message = self._terms.dlq, job.message
        assert dlq is not None
        nacks = getattr(message, "nack_count", None) if self._source.counts_nacks else None
        thresholds = Thresholds(
            dlq.max_delivery_count, dlq.absolute_max_delivery_count, bool(dlq.exclude_errors)
        )
        if not unread(Counts(job.deliveries, nacks), thresholds):
            return False
        try:
            job.via = self._way_back(message)
        except Exception:  # noqa: BLE001 - nobody can be told, and that is no reason to go on
            pass
        return True

    def _way_back(self, message: Any) -> str | None:
        """Return how the sender can be told."""
        if type(message) is Message:
            # What every message is asked: one look at its envelope says it.
            envelope = message.envelope
            if envelope.reply_id is None and envelope.reply_to is None:
                return None if self._terms.responses is None else "responses"
        expects = getattr(message, "expects_reply", None)
        if expects is not None and expects():
            return "channel"
        if getattr(message, "reply_to", None) is not None:
            return "reply_to"
        return None if self._terms.responses is None else "responses"

    def _verdict(self, job: Job, error: BaseException) -> bool | None:
        if self._terms.dlq is None:
            return None
        try:
            return self._terms.dlq.should_dead_letter(job.message, error)  # type: ignore[arg-type]
        except Exception:
            logger.exception("the dead-letter policy failed; the message is retried")
            return False

    def _dead_letter(self, job: Job, error: BaseException) -> bool:
        dlq, message, source = self._terms.dlq, job.message, self._source.name
        assert dlq is not None
        id = sequel_id("dead-letter", source, message)

        def send(with_stack: bool = True) -> None:
            letter = letter_for(
                message,
                error,
                source=source,
                dlq=dlq.mailbox,
                readable=job.readable,
                with_stack=with_stack,
            )
            dlq.mailbox.send(letter, message_id=id)

        try:
            try:
                self.patiently(job, send)
            except PayloadTooLargeError:
                self.patiently(job, partial(send, with_stack=False))
        except Exception:
            logger.exception("Message %s could not be dead-lettered; it is retried", message.id)
            return False
        job.dead_lettered = True
        fields = {
            "message_id": message.id,
            "request_id": str(request_id_of(message)),
            "source_mailbox": source,
            "delivery_count": job.deliveries,
            "error_type": error_type(error),
            "error_message": described(error),
        }
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        logger.warning("Message dead-lettered %s", shown, extra=fields)
        self.publish(MessageDeadLettered, message.id, id, fields["error_type"], job.deliveries)
        return True

    def _prepare_error_answer(
        self, job: Job, error: BaseException, reference: str, dead: bool
    ) -> bool:
        terms, message = self._terms, job.message
        assert terms.error_reply is not None
        detail = f": {described(error)}" if terms.error_detail == "text" else ""
        text = f"{type(error).__name__}{detail} (ref {reference})"
        if dead:
            text = f"Dead-lettered after {job.deliveries} attempts: {text}"
        failure = Failure(
            message_id=message.id,
            text=text,
            reference=reference,
            error=error,
            body=None if job.body is NOTHING else job.body,
            request_id=request_id_of(message),
            dead_lettered=dead,
        )
        try:
            job.answer = terms.error_reply(failure)
        except Exception:
            logger.exception("error_reply failed for message %s", message.id)
            return dead or self._retry(job, terms.backoff.delay(job.deliveries))
        return True

    def _retry(self, job: Job, delay: float) -> bool:
        self._settle_by(job, partial(self._source.give_back, job, delay))
        return False

    def _remove(self, job: Job) -> bool:
        self._settle_by(job, partial(self._source.remove, job))
        return False

    def _settle_by(self, job: Job, step: Callable[[], object]) -> bool:
        try:
            self.patiently(job, step)
        except ReceiptHandleExpiredError:
            if not job.uncertain:
                self.abandon(job)
            return False
        except Exception as error:  # noqa: BLE001 - its lease runs out, and it comes back by itself
            logger.warning("Message %s could not be given back: %s", job.message.id, error)
            return False
        return True


_OUTCOMES: dict[type, str] = {Retry: "retry", TellAndAck: "told", ToDeadLetters: "dead-letter"}

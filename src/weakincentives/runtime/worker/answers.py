"""Sends answers to where senders want them; sent twice, an answer is the same one."""

from typing import Any

from weakincentives.ids import SequelId
from weakincentives.logs import get_logger
from weakincentives.runtime.dead_letters.letter import sequel_id
from weakincentives.runtime.leases.extender import LeaseLostError
from weakincentives.runtime.mailbox import ReplyAlreadySentError, SerializationError
from weakincentives.runtime.mailbox.cause import caused_by
from weakincentives.runtime.mailbox.message import Carried
from weakincentives.runtime.mailbox.replies.failure import Failed

from . import decide
from .attempt import ACKNOWLEDGED, Attempt
from .config import Settings
from .decide import Outcome
from .inbox import Inbox

__all__ = ["Answers", "log_unsent"]

logger = get_logger(__name__)


class Answers:
    """The answers of one worker."""

    def __init__(self, inbox: Inbox, settings: Settings) -> None:
        self._inbox = inbox
        self._settings = settings

    def carried(self, attempt: Attempt) -> Carried | None:
        """Return an answer if it can go in the step that acknowledges the message."""
        reply, route = attempt.answer, attempt.route
        if not self._inbox.carries or attempt.lease.lost or reply is None:
            return None
        # Once this step is taken the message cannot come again: no need to know the id for long.
        id = None if route == "channel" else str(self._id(attempt))
        to = self._settings.responses if route == "responses" else None
        try:
            return self._inbox.carried(attempt.message, reply.value, id, to)
        except Exception:  # noqa: BLE001 - it fails by itself too, and is seen to there
            return None

    async def send_last(self, attempt: Attempt) -> None:
        """Send the answer of an attempt that has ended."""
        if attempt.answer is None:
            return
        try:
            await self.send(attempt, attempt.answer.value)
        except ReplyAlreadySentError:  # of this very delivery
            _note_acknowledged(attempt)
        attempt.finish()

    async def send(self, attempt: Attempt, value: Any) -> None:
        """Send an answer; to a caller who waits, it acknowledges the message too."""
        if attempt.lease.lost:
            raise LeaseLostError
        route = attempt.route
        id = None if route == "channel" else self._id(attempt)
        if route == "responses":
            to = self._settings.responses
            with caused_by(attempt.lease.message):
                await self._inbox.send(to, value, id)
        else:
            to = await self._inbox.reply(attempt.message, value, id)
        if to is not None and id is not None:
            attempt.sequels += ((to, id),)
        _note_acknowledged(attempt)

    def after_unsent(self, attempt: Attempt, error: Exception) -> Outcome:
        """Return what is to be done after an answer could not be sent."""
        reply, settings = attempt.answer, self._settings
        assert reply is not None
        value = reply.value
        if isinstance(value, Failed) and value.has_value and isinstance(error, SerializationError):
            log_unsent(attempt, error)
            return decide.Reply(value.without_value(), reply.ending)
        outcome = decide.after_unsent(
            error,
            ending=reply.ending,
            awaited=attempt.route == "channel",
            in_doubt=attempt.in_doubt,
            lost=attempt.lease.lost,
            has_policy=settings.dlq is not None,
            delay=settings.config.backoff.delay(attempt.message.attempts),
        )
        match outcome:
            case decide.Remove() | decide.Acknowledge():
                text = "Message %s: the sender could not be told: %s"
                logger.warning(text, attempt.message.id, error)
            case decide.GiveBack() | decide.Retry():
                log_unsent(attempt, error)
        return outcome

    def _id(self, attempt: Attempt) -> SequelId:
        """Return the id of an answer that is sent to a mailbox; a caller gets one anyway."""
        return sequel_id("answer", self._inbox.name, attempt.message)


def log_unsent(attempt: Attempt, error: Exception) -> None:
    """Write one line for an answer that could not be sent, so that its message comes again."""
    logger.warning("Message %s: its reply could not be sent: %s", attempt.message.id, error)


def _note_acknowledged(attempt: Attempt) -> None:
    """Record that the reply to a caller has acknowledged the message."""
    if attempt.route == "channel" and attempt.message.is_finalized:
        attempt.become(ACKNOWLEDGED)

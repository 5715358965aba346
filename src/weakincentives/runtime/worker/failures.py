"""Reports failures: to the log, and to the sender."""

import logging
from typing import Any

from weakincentives.error_text import described, error_type, own_place_of, type_name
from weakincentives.logs import get_logger
from weakincentives.runtime.dead_letters.letter import request_id_of

from .attempt import UNREAD
from .config import Failure, WorkerConfig

__all__ = ["failure_of", "log_dead_letter", "log_failure"]

logger = get_logger(__name__)


def failure_of(
    message: Any,
    body: Any,
    error: BaseException,
    reference: str,
    detail: str,
    given_up_after: int | None,
) -> Failure:
    """Return what ``error_reply`` gets; ``given_up_after`` is the attempts of a dead letter."""
    text = f"{type_name(error)}{f': {described(error)}' if detail == 'text' else ''}"
    text = f"{text} (ref {reference})"
    if given_up_after is not None:
        attempts = "1 attempt" if given_up_after == 1 else f"{given_up_after} attempts"
        text = f"Dead-lettered after {attempts}: {text}"
    return Failure(
        message_id=message.id,
        text=text,
        reference=reference,
        error=error,
        body=None if body is UNREAD else body,
        request_id=request_id_of(message),
        dead_lettered=given_up_after is not None,
    )


def log_failure(
    config: WorkerConfig,
    mailbox: str,
    message: Any,
    error: BaseException,
    reference: str,
    outcome: str,
) -> None:
    """Write one line for a failure that is retried, and the traceback for one that is not."""
    level = config.failure_level if outcome == "retry" else logging.ERROR
    fields = {
        "message_id": message.id,
        "mailbox": mailbox,
        "delivery_count": message.delivery_count,
        "outcome": outcome,
        "reference": reference,
        "error_type": error_type(error),
        "error_message": described(error),
        "at": own_place_of(error),
    }
    detailed = level >= logging.ERROR or logger.isEnabledFor(logging.DEBUG)
    logger.event(level, config.failure_log, fields, exc_info=error if detailed else None)


def log_dead_letter(mailbox: str, message: Any, deliveries: int, error: BaseException) -> None:
    """Write one line for a message that is given up."""
    request_id = request_id_of(message)
    fields = {
        "message_id": message.id,
        "request_id": None if request_id is None else str(request_id),
        "source_mailbox": mailbox,
        "delivery_count": deliveries,
        "error_type": error_type(error),
        "error_message": described(error),
    }
    logger.event(logging.WARNING, "Message dead-lettered", fields)

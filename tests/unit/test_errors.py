import inspect
import pickle

import pytest

from weakincentives import runtime
from weakincentives.errors import WinkError
from weakincentives.runtime import mailbox
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxError,
    MailboxResolutionError,
    NoReplyChannelError,
    PayloadTooLargeError,
    QueueNotEmptyError,
    ReplyError,
    ReplyFailedError,
    ReplyNotAvailableError,
    ReplyTimeoutError,
    SerializationError,
)

ERRORS = [
    value
    for name in mailbox.__all__
    if inspect.isclass(value := getattr(mailbox, name))
    and issubclass(value, Exception)
    and value is not WinkError
]


def test_the_root_of_all_errors_is_where_they_are() -> None:
    assert mailbox.WinkError is runtime.WinkError is WinkError


def test_there_are_errors_to_look_at() -> None:
    assert len(ERRORS) == 22


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_ours(error: type[Exception]) -> None:
    assert issubclass(error, MailboxError | ReplyError)
    assert issubclass(error, WinkError)


@pytest.mark.parametrize(
    "error",
    [
        error
        for error in ERRORS
        if error not in (MailboxResolutionError, QueueNotEmptyError, ReplyFailedError)
    ],
)
def test_the_docstring_is_the_default_message(error: type[Exception]) -> None:
    assert str(error()) == inspect.getdoc(error)
    assert str(error("something else")) == "something else"


def test_a_resolution_error_names_what_was_looked_for() -> None:
    error = MailboxResolutionError("client-7")
    assert error.identifier == "client-7"
    assert "client-7" in str(error)
    assert str(MailboxResolutionError("client-7", "not here")) == "not here"


@pytest.mark.parametrize(
    "error",
    [MailboxResolutionError("client-7"), MailboxResolutionError("client-7", "not here")],
)
def test_a_resolution_error_crosses_processes_as_it_is(error: MailboxResolutionError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.identifier, str(copy), copy.args) == ("client-7", str(error), error.args)


def test_the_counts_of_a_queue_cross_processes() -> None:
    error = QueueNotEmptyError("orders", 1, 2, 3)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.queue, copy.pending, copy.in_flight, copy.delayed) == ("orders", 1, 2, 3)
    assert str(copy) == str(error)
    assert "6 messages (1 pending, 2 in flight, 3 delayed)" in str(error)


def test_a_failed_reply_crosses_processes_as_it_is() -> None:
    facts = {"error_type": "ValueError", "reference": "r1", "dead_letter_id": "d1", "detail": "no"}
    error = ReplyFailedError("reply-1", **facts)
    copy = pickle.loads(pickle.dumps(error))
    assert {name: getattr(copy, name) for name in facts} == facts
    assert (copy.reply_id, str(copy)) == ("reply-1", str(error))
    for fact in ("reply-1", *facts.values()):
        assert fact in str(error)


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (InvalidParameterError, ValueError),
        (ReplyTimeoutError, TimeoutError),
        (NoReplyChannelError, ReplyNotAvailableError),
        (PayloadTooLargeError, SerializationError),
    ],
)
def test_some_errors_are_caught_by_a_more_common_name(
    error: type[Exception], also: type[Exception]
) -> None:
    with pytest.raises(also):
        raise error

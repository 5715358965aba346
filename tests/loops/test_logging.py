"""What loops write to the log: enough to see what happens, and nothing that floods or forges."""

import json
import logging

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import NO_WAIT, boom, drained, explain, in_background
from weakincentives.runtime import (
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    InProcessDispatcher,
    MailboxConnectionError,
    Worker,
    WorkerConfig,
    replay_dead_letters,
)
from weakincentives.runtime.events import MailboxUnreachable
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import FakeClock, FakeMailbox, driven
from weakincentives.runtime.worker.outage_log import OutageLog


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="weakincentives")
    return caplog


def records(log, beginning):
    return [record for record in log.records if record.getMessage().startswith(beginning)]


# --- a worker's life ------------------------------------------------------------------------


def test_a_worker_says_what_it_serves(box, log):
    worker = Worker(box, print, config=WorkerConfig(concurrency=3, batch=2))
    worker.run(max_iterations=1, visibility_timeout=45, wait_time_seconds=0)
    (record,) = records(log, "Serving jobs")
    assert record.levelname == "INFO"
    assert record.getMessage() == "Serving jobs: concurrency=3 batch=2 lease=45s"
    assert (record.mailbox, record.concurrency, record.batch) == ("jobs", 3, 2)


def test_a_mailbox_that_is_away_is_told_once_and_that_it_is_back(log):
    box = FakeMailbox("jobs")
    box.set_connection_error(MailboxConnectionError("down\npassword=hunter2"))
    events, unreachable = InProcessDispatcher(), []
    events.subscribe(MailboxUnreachable, unreachable.append)
    config = WorkerConfig(concurrency=2, dispatcher=events)
    with in_background(Worker(box, print, config=config)):
        eventually(lambda: len(unreachable) > 5, within=120)
        assert len(records(log, "jobs cannot be reached")) == 1
        assert not records(log, "jobs can be reached again")
        box.set_connection_error(None)
        eventually(lambda: records(log, "jobs can be reached again"))
    (away,) = records(log, "jobs cannot be reached")
    assert away.levelname == "WARNING"
    assert away.exc_text is None
    assert away.getMessage().isprintable()
    assert "hunter2" not in away.getMessage()
    (back,) = records(log, "jobs can be reached again")
    assert back.levelname == "INFO"
    assert back.seconds >= 0


def test_a_long_outage_is_told_again_at_a_slow_pace(log):
    clock = FakeClock()
    outage = OutageLog("jobs", clock)
    outage.over()
    assert not log.records
    for _ in range(3_000):
        outage.met(MailboxConnectionError("down"))
        clock.advance(0.1)
    told = [record.getMessage() for record in records(log, "jobs")]
    assert len(told) == 5  # at once, and once a minute
    assert told[0].startswith("jobs cannot be reached: MailboxConnectionError: down")
    assert told[1].startswith("jobs cannot be reached for 60 s")
    outage.over()
    (back,) = records(log, "jobs can be reached again")
    assert back.getMessage() == "jobs can be reached again after 300 s"
    outage.over()
    outage.met(MailboxConnectionError("down"))
    assert len(records(log, "jobs cannot be reached")) == 6


# --- failures -------------------------------------------------------------------------------


def test_a_failure_is_told_where_the_handler_called_a_library(box, log):
    def decode(text):
        json.loads(text)

    box.send("{")
    drained(Worker(box, decode, config=NO_WAIT), 1)
    (failed,) = records(log, "Message handling failed")
    assert failed.at.startswith("test_logging.py:")
    assert failed.at.endswith(" in decode")


def test_a_retry_is_one_line_and_the_end_has_the_traceback(box, log):
    letters = InMemoryMailbox("letters")
    id = box.send("x")
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=3), config=NO_WAIT)
    drained(worker, 3)
    first, second, last = records(log, "Message handling failed")
    for record in (first, second):
        assert record.levelname == "WARNING"
        assert record.exc_text is None
        text = record.getMessage()
        assert text.isprintable()
        assert "outcome=retry" in text
        assert "error_type=builtins.ValueError error_message=cannot do x at=" in text
        assert "at=helpers.py:" in text
        assert "in boom" in text
    assert last.levelname == "ERROR"
    assert "outcome=dead-letter" in last.getMessage()
    assert "in boom" in last.exc_text
    assert last.exc_text.endswith("builtins.ValueError: cannot do x")
    assert (last.message_id, last.mailbox, last.delivery_count) == (id, "jobs", 3)
    assert last.error_type == "builtins.ValueError"


def test_without_dead_letters_a_failure_is_told_to_the_sender_with_its_traceback(box, replies, log):
    box.send("x", reply_to=replies)
    drained(Worker(box, boom, error_reply=explain))
    (record,) = records(log, "Message handling failed")
    assert record.levelname == "ERROR"
    assert record.exc_text
    (reply,) = replies.receive()
    assert record.reference in reply.body


def test_for_debugging_every_retry_has_its_traceback(box, caplog):
    caplog.set_level(logging.DEBUG, logger="weakincentives")
    box.send("x")
    drained(Worker(box, boom, config=NO_WAIT))
    (record,) = records(caplog, "Message handling failed")
    assert record.levelname == "WARNING"
    assert "in boom" in record.exc_text


def test_an_id_and_an_error_cannot_forge_a_line(log):
    box = InMemoryMailbox("jobs", serialize=True)
    box.send("x")
    ((_, payload, *_),) = driven(box.store.peek(1, 0))
    box.purge()
    # Not by send(), which checks it: as another program may write it.
    box.store.put_now([Outgoing("id\n2026-11-17 ERROR forged\x1b[2J", payload, 0.0, True)])

    def fail(body):
        raise ValueError("no\n2026-11-17 ERROR forged\x1b[2J" + "x" * 10**6)

    drained(Worker(box, fail, dlq=DLQPolicy(InMemoryMailbox("l"), max_delivery_count=1)))
    assert records(log, "Message dead-lettered")
    assert "\x1b" not in log.text
    assert not any(line.startswith("2026-11-17") for line in log.text.splitlines())
    assert len(log.text) < 20_000


@pytest.mark.parametrize(("count", "told"), [(1, "after 1 attempt:"), (2, "after 2 attempts:")])
def test_the_sender_is_told_in_plain_english(box, replies, count, told):
    box.send("x", reply_to=replies)
    dlq = DLQPolicy(InMemoryMailbox("letters"), max_delivery_count=count)
    drained(Worker(box, boom, dlq=dlq, error_reply=explain, config=NO_WAIT), count + 1)
    (reply,) = replies.receive()
    assert reply.body.startswith(f"Dead-lettered {told} ValueError (ref ")


# --- dead letters ---------------------------------------------------------------------------


@pytest.fixture
def letter_box(box):
    letters = InMemoryMailbox("letters")
    box.send("x", message_id="duck")
    drained(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    return letters


def alert(letter: DeadLetter) -> None:
    """Do nothing."""


def test_a_consumer_says_what_it_processes(letter_box, log):
    DLQConsumer(mailbox=letter_box, handler=alert).run(max_iterations=1, wait_time_seconds=0)
    (record,) = records(log, "Processing dead letter")
    assert record.levelname == "INFO"
    assert (record.message_id, record.request_id, record.action) == ("duck", None, "alert")
    assert 0 <= record.age_seconds < 600
    assert "message_id=duck" in record.getMessage()


def test_a_replay_says_what_it_processed(box, letter_box, log):
    assert replay_dead_letters(letter_box, box) == 1
    (processing,) = records(log, "Processing dead letter")
    assert (processing.message_id, processing.action) == ("duck", "replay")
    (replayed,) = records(log, "Replayed dead letter")
    assert replayed.levelname == "INFO"
    assert (replayed.message_id, replayed.request_id) == ("duck", None)


def test_a_consumer_that_fails_is_an_error(letter_box, log):
    DLQConsumer(mailbox=letter_box, handler=boom).run(max_iterations=1, wait_time_seconds=0)
    (record,) = records(log, "DLQ handler failed")
    assert record.levelname == "ERROR"
    assert record.message_id
    assert "in boom" in record.exc_text

"""How large a message may be."""

import pytest

from weakincentives import connect
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.runtime import DLQPolicy, InMemoryMailbox, Worker, replay_dead_letters
from weakincentives.runtime.mailbox import InvalidParameterError, PayloadTooLargeError

MIB = 1024 * 1024
BAD = [0, -1, 1023, 2**40, 1.5, True, "4096"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "box.db"


def test_a_mebibyte_unless_said_otherwise(path):
    box = SQLiteMailbox("jobs", path)
    assert box.limits.max_bytes == MIB
    with pytest.raises(PayloadTooLargeError, match=f"takes {MIB}"):
        box.send("x" * MIB)


def test_more_or_less(path):
    large = SQLiteMailbox("jobs", path, max_bytes=4 * MIB)
    assert large.limits.max_bytes == 4 * MIB
    body = "x" * (3 * MIB)
    large.send(body)
    (message,) = large.receive()
    assert message.body == body
    small = SQLiteMailbox("jobs", path, max_bytes=2048)
    with pytest.raises(PayloadTooLargeError, match="takes 2048"):
        small.send("x" * 2048)


def test_replies_may_be_as_large(path):
    box = SQLiteMailbox("jobs", path, max_bytes=4 * MIB)
    answer = "x" * (3 * MIB)
    reply = box.send_expecting_reply("how many?")
    (message,) = box.receive()
    message.reply(answer)
    assert reply.wait(timeout=120) == answer
    box.send("stream it", reply_to=SQLiteMailbox("answers", path))
    (message,) = box.receive()
    message.reply(answer)
    (found,) = SQLiteMailbox("answers", path, max_bytes=4 * MIB).receive()
    assert found.body == answer


@pytest.mark.parametrize("value", BAD)
def test_nonsense_is_refused(path, value):
    with pytest.raises(InvalidParameterError, match="max_bytes"):
        SQLiteMailbox("jobs", path, max_bytes=value)
    with pytest.raises(InvalidParameterError, match="max_bytes"):
        InMemoryMailbox("jobs", max_bytes=value)
    with connect(f"sqlite:///{path}") as backend, pytest.raises(InvalidParameterError):
        backend.mailbox("jobs", max_bytes=value)


def test_in_memory_only_what_goes_through_json_has_a_size():
    InMemoryMailbox("jobs", max_bytes=2048).send("x" * 5000)
    with pytest.raises(PayloadTooLargeError, match="takes 2048"):
        InMemoryMailbox("jobs", max_bytes=2048, serialize=True).send("x" * 5000)


def test_a_letter_of_a_large_message_goes_into_a_mailbox_for_small_ones(path):
    box = SQLiteMailbox("jobs", path, max_bytes=16 * MIB)
    letters = SQLiteMailbox("dead", path)
    body = "x" * (15 * MIB)
    box.send(body)

    def fail(body):
        raise ValueError

    Worker(box, fail, dlq=DLQPolicy(letters, max_delivery_count=1)).run(
        max_iterations=1, wait_time_seconds=0
    )
    assert letters.stats().pending == 1
    assert replay_dead_letters(letters, box) == 1
    (message,) = box.receive()
    assert message.body == body

"""Parts that are emitted at awkward moments: none is lost, and no index is used twice."""

import asyncio
import signal

import pytest

from tests.loops.helpers import drained
from weakincentives import connect
from weakincentives.runtime import Worker
from weakincentives.runtime.mailbox.memory import replies

DEADLINE = 60.0


@pytest.fixture
def box():
    with connect("memory://") as backend:
        yield backend.mailbox("jobs")


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_part_that_comes_just_as_a_step_has_ended_is_sent(box, parts):
    async def handle(body, job):
        for number in range(parts):
            await job.emit(number)
            await asyncio.sleep(0)  # in this round of the event loop, what was sent is done

    reply = box.send_expecting_reply("tea", keep=600)
    drained(Worker(box, handle))
    assert [part.value for part in reply.parts(timeout=DEADLINE)] == list(range(parts))


def test_what_a_signal_handler_emits_in_the_middle_of_a_step_gets_an_index_of_its_own(
    box, monkeypatch
):
    """The signal comes while the table adds a part."""
    raised = []

    def handle(body, job):
        signal.signal(signal.SIGUSR1, lambda *_: job.emit("signal"))
        job.emit("first")
        job.emit("last")
        return "done"

    row = replies.PartRow

    def interrupted(number, series, payload):
        if not raised:
            raised.append(True)
            signal.raise_signal(signal.SIGUSR1)
        return row(number, series, payload)

    monkeypatch.setattr(replies, "PartRow", interrupted)
    reply = box.send_expecting_reply("tea", keep=600)
    before = signal.getsignal(signal.SIGUSR1)
    try:
        drained(Worker(box, handle))
    finally:
        signal.signal(signal.SIGUSR1, before)
    parts = list(reply.parts(timeout=DEADLINE))
    assert [part.index for part in parts] == [0, 1, 2]
    assert {part.value for part in parts} == {"first", "signal", "last"}

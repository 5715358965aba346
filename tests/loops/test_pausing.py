"""A paused queue stops the loops of every process, and costs those of other queues nothing."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from testkit.waiting import eventually
from tests.loops.letters import boom, run
from weakincentives import connect
from weakincentives.contrib.mailbox.contract.driver import background
from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime import (
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    InvalidParameterError,
    UnsupportedOperationError,
    Worker,
)
from weakincentives.runtime.mailbox.events import QueuePaused, QueueResumed

ROOT = Path(__file__).parents[2]
LONG_WAIT = 60.0


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/queues.db"


@pytest.fixture
def backend(url: str) -> Iterator[Any]:
    with connect(url) as backend:
        yield backend
        for pause in backend.paused():
            backend.resume(pause.queue)


@contextmanager
def serving(loop: Any) -> Iterator[None]:
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.shutdown(timeout=20)
        thread.join(20)


def test_who_has_paused_a_queue_is_kept(backend: Any) -> None:
    assert backend.paused() == []
    pause = backend.pause("pausable", because="the bank is down")
    assert (pause.queue, pause.because) == ("pausable", "the bank is down")
    assert pause.by
    assert backend.paused() == [pause]
    later = asyncio.run(backend.pause_async("pausable", by="ann"))
    assert (later.by, later.because) == ("ann", None)
    other = backend.pause("another")
    assert asyncio.run(backend.paused_async()) == [other, later]
    assert asyncio.run(backend.resume_async("pausable")) is True
    assert backend.resume("pausable") is False
    assert backend.paused() == [other]


def test_a_pause_needs_a_name_and_texts(backend: Any) -> None:
    for call in (
        lambda: backend.pause("no such/name?"),
        lambda: backend.pause("pausable", because="x" * 1001),
        lambda: backend.pause("pausable", by=7),
        lambda: backend.resume(""),
    ):
        with pytest.raises(InvalidParameterError):
            call()
    assert backend.paused() == []


def test_pausing_is_told(backend: Any) -> None:
    told: list[Any] = []
    dispatcher = InProcessDispatcher()
    for kind in (QueuePaused, QueueResumed):
        dispatcher.subscribe(kind, told.append)
    backend._publish_to(dispatcher)
    backend.pause("pausable", by="ann", because="tea")
    backend.resume("pausable", by="bob")
    backend.resume("pausable", by="bob")
    assert told == [QueuePaused("pausable", "ann", "tea"), QueueResumed("pausable", "bob")]


def test_every_kind_of_loop_stops_and_goes_on(backend: Any) -> None:
    done: list[Any] = []

    async def handle(body: Any) -> None:
        done.append(body)

    letters = backend.mailbox("paused-letters", body_type=DeadLetter[Any])
    boxes = [backend.mailbox("paused-plain"), backend.mailbox("paused-async")]
    for box in (*boxes, letters):
        box.purge()
    boxes[0].send("fails")
    run(Worker(boxes[0], boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    for box in (*boxes, letters):
        backend.pause(box.name)
    loops = [
        Worker(boxes[0], done.append),
        Worker(boxes[1], handle),
        DLQConsumer(mailbox=letters, handler=lambda letter: done.append("letter")),
    ]
    with ExitStack() as stack:
        for loop in loops:
            stack.enter_context(serving(loop))
        eventually(lambda: all(box._listeners for box in (*boxes, letters)))
        boxes[0].send("plain")
        boxes[1].send("async")
        assert [box.stats().paused for box in boxes] == [True, True]
        assert done == []
        for box in (*boxes, letters):
            backend.resume(box.name)
        eventually(lambda: sorted(done) == ["async", "letter", "plain"])


@pytest.mark.parametrize("waits", ["in a thread", "in an event loop"])
def test_a_resumed_queue_wakes_at_once(backend: Any, waits: str) -> None:
    box = backend.mailbox("pausable")
    box.purge()
    box.store.look_interval = LONG_WAIT  # so that only the wake-up can end the wait
    box.send("job")
    backend.pause("pausable")
    if waits == "in a thread":
        receiving = background(box.receive, wait_time_seconds=LONG_WAIT)
    else:
        receiving = background(lambda: asyncio.run(box.receive_async(wait_time_seconds=LONG_WAIT)))
    eventually(lambda: box._listeners)
    began = time.monotonic()
    backend.resume("pausable")
    (message,) = receiving.result(2 * LONG_WAIT)
    assert time.monotonic() - began < LONG_WAIT / 2
    message.acknowledge()


def test_a_paused_queue_stays_so_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    with connect(url) as backend:
        pause = backend.pause("pausable", because="overnight")
    with connect(url) as backend:
        assert backend.paused() == [pause]
        backend.mailbox("pausable").send(1)
        assert backend.mailbox("pausable").receive() == []


def test_sqs_says_that_it_cannot() -> None:
    pytest.importorskip("boto3")
    with connect("sqs://eu-west-1") as backend:
        for call in (backend.paused, lambda: backend.pause("q"), lambda: backend.resume("q")):
            with pytest.raises(UnsupportedOperationError, match="cannot pause queues"):
                call()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "kind"), [("sqlite", "async"), ("redis", "plain")], indirect=["url"]
)
def test_a_pause_reaches_other_processes(backend: Any, url: str, kind: str) -> None:
    box = backend.mailbox("pausable")
    box.purge()
    with child(url, kind) as first, child(url, kind) as second:
        said = Lines(first, second)
        eventually(lambda: said.count("ready") == 2)
        box.send("long")
        eventually(lambda: "begin long" in said)
        backend.pause("pausable")
        for number in range(10):
            box.send(str(number))
        eventually(lambda: "end long" in said and box.stats().in_flight == 0)
        assert box.stats().pending == 10
        assert said.count("begin") == 1
        backend.resume("pausable")
        eventually(lambda: said.count("end") == 11)


class Lines:
    """What children print, read as it comes."""

    def __init__(self, *children: "subprocess.Popen[str]") -> None:
        self._lines: list[str] = []
        for one in children:
            threading.Thread(target=self._read, args=(one.stdout,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._lines.append(line.strip())

    def __contains__(self, line: str) -> bool:
        return line in self._lines

    def count(self, beginning: str) -> int:
        return sum(line.startswith(beginning) for line in list(self._lines))


@contextmanager
def child(url: str, kind: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.loops.pausable_child", url, kind]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()

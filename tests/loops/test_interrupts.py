"""Ctrl-C ends a loop; what a job raises itself, whatever its name, is a failure that counts."""

import asyncio
import signal
import sys
import threading
from functools import partial

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import NO_WAIT, in_background
from weakincentives.runtime import DLQPolicy, InMemoryMailbox, Worker, WorkerConfig

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need the main thread"
)


@pytest.fixture
def handled():
    """Set a signal's handler, also where the shell ignores it; the old one comes back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield signal.signal
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupt():
    raise KeyboardInterrupt


def close_generator():
    raise GeneratorExit


def caught_and_raised_anew():
    try:
        {}["x"]
    except KeyError:
        raise KeyboardInterrupt from None


async def from_a_task():
    await asyncio.sleep(0)
    raise KeyboardInterrupt


@pytest.mark.parametrize("ignored", [True, False])
@pytest.mark.parametrize(
    "raises", [interrupt, close_generator, caught_and_raised_anew, from_a_task]
)
@pytest.mark.parametrize("where", ["main thread", "other thread"])
def test_an_interrupt_that_a_job_raises_is_its_failure(box, handled, where, raises, ignored):
    handled(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    letters = InMemoryMailbox("dead")
    done = []

    def handler(body):
        if body == "bad":
            return raises()
        done.append(body)
        if where == "main thread":
            worker.shutdown(timeout=0)

    box.send_batch(["bad"])
    worker = Worker(box, handler, dlq=DLQPolicy(letters, max_delivery_count=2), config=NO_WAIT)
    if where == "main thread":
        worker.run(max_iterations=2, wait_time_seconds=0)
        box.send("good")
        worker.run(max_iterations=1, wait_time_seconds=0)
    else:
        box.send("good")
        with in_background(worker):
            eventually(lambda: letters.stats().total == 1 and box.stats().total == 0)
    (letter,) = letters.receive()
    assert letter.body.delivery_count == 2
    assert letter.body.last_error_type in ("builtins.KeyboardInterrupt", "builtins.GeneratorExit")
    assert done == ["good"]


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def ctrl_c_raised_anew():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("tidied up") from None


async def ctrl_c_in_a_task():
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(30)


@pytest.mark.parametrize("job", [ctrl_c, ctrl_c_raised_anew, ctrl_c_in_a_task])
def test_ctrl_c_gives_the_job_back_at_once_and_ends_the_loop(box, handled, job):
    handled(signal.SIGINT, signal.default_int_handler)
    box.send("a")
    letters = InMemoryMailbox("dead")
    worker = Worker(box, lambda body: job(), dlq=DLQPolicy(letters, max_delivery_count=1))
    with pytest.raises(KeyboardInterrupt):
        worker.run()
    assert box.stats().pending == 1
    assert letters.stats().total == 0


class Handler:
    """A signal handler that is an object."""

    def __call__(self, number, frame):
        raise KeyboardInterrupt

    def method(self, number, frame):
        sys.exit(number)


def with_more(more, number, frame):
    raise KeyboardInterrupt(more)


@pytest.mark.parametrize(
    "on_signal", [Handler(), Handler().method, partial(with_more, 1), lambda n, f: sys.exit(4)]
)
def test_what_a_signal_handler_raises_is_not_the_jobs_failure(box, handled, on_signal):
    """As in the many programs that make SIGTERM a KeyboardInterrupt or an exit."""
    handled(signal.SIGTERM, on_signal)
    letters = InMemoryMailbox("dead")
    box.send("a")
    worker = Worker(
        box,
        lambda body: signal.raise_signal(signal.SIGTERM),
        dlq=DLQPolicy(letters, max_delivery_count=1),
        config=WorkerConfig(concurrency=1),
    )
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        worker.run()
    assert box.stats().pending == 1
    assert letters.stats().total == 0

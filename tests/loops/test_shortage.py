"""A process that has no file handle or thread left is not the failure of a message."""

import errno
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives import connect
from weakincentives.ids import new_id
from weakincentives.runtime import (
    Backoff,
    DLQPolicy,
    InMemoryMailbox,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.worker import shortage
from weakincentives.runtime.worker.shortage import is_shortage

ROOT = Path(__file__).parents[2]
SOON = Backoff(base=0, cap=0)
NO_HANDLE = OSError(errno.EMFILE, "Too many open files")
NO_THREAD = RuntimeError("can't start new thread")


def raised_from(error, cause):
    try:
        raise error from cause
    except BaseException as raised:
        return raised


def in_a_ring():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NO_HANDLE, True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        (NO_THREAD, True),
        (raised_from(ValueError("no client"), NO_HANDLE), True),
        (ExceptionGroup("several", [ValueError(), raised_from(KeyError(), NO_THREAD)]), True),
        (OSError(errno.ENOENT, "no such file"), False),
        (OSError("without a number"), False),
        (RuntimeError("something else"), False),
        (in_a_ring(), False),
    ],
)
def test_a_shortage_is_found_anywhere_in_the_chain(error, expected):
    assert is_shortage(error) is expected


@pytest.fixture(params=["plain", "async"])
def made(request):
    """Make a handler of a plain function, plain or async."""

    def make(handle):
        async def handle_async(body):
            return handle(body)

        return handle if request.param == "plain" else handle_async

    return make


@pytest.fixture
def is_short(monkeypatch):
    """While it is set, the process seems to have nothing left."""
    short = threading.Event()
    monkeypatch.setattr(shortage, "_is_over", lambda: not short.is_set())
    monkeypatch.setattr(shortage, "LOOK_SECONDS", 0.01)
    return short


def test_no_job_is_taken_until_there_is_a_handle_again(made, is_short):
    box, dead = InMemoryMailbox("jobs"), InMemoryMailbox("dead")
    begun = []

    def handle(body):
        begun.append(body)
        if body == "unlucky" and len(begun) == 1:
            is_short.set()
            raise ValueError("no client") from NO_HANDLE

    worker = Worker(
        box,
        made(handle),
        dlq=DLQPolicy(dead, max_delivery_count=2),
        config=WorkerConfig(backoff=SOON),
    )
    box.send("unlucky")
    with in_background(worker, visibility_timeout=0.5):
        eventually(is_short.is_set)
        box.send("next")
        eventually(lambda: box.stats().in_flight == 0)  # the lease of the first one is over
        assert begun == ["unlucky"]
        assert box.stats().pending == 2
        is_short.clear()
        eventually(lambda: box.stats().total == 0)
    assert sorted(begun) == ["next", "unlucky", "unlucky"]
    assert dead.stats().total == 0


def test_a_job_that_uses_everything_up_counts_as_crashed(made, is_short):
    box, dead = InMemoryMailbox("jobs"), InMemoryMailbox("dead")

    def handle(body):
        raise NO_HANDLE

    worker = Worker(
        box,
        made(handle),
        dlq=DLQPolicy(dead, max_delivery_count=2),
        config=WorkerConfig(backoff=SOON),
    )
    box.send("leaks")
    with in_background(worker, visibility_timeout=0.1):
        eventually(lambda: dead.stats().total == 1)
    (letter,) = dead.receive()
    assert letter.body.last_error_type.endswith("RepeatedCrashError")


def test_a_shortage_that_lasts_ends_the_worker_with_its_error(made, is_short, monkeypatch):
    monkeypatch.setattr(shortage, "GIVE_UP_SECONDS", 0.05)
    box = InMemoryMailbox("jobs")
    box.send_batch(["first", "second"])

    def handle(body):
        is_short.set()
        raise NO_HANDLE

    with pytest.raises(OSError, match="Too many open files"):
        Worker(box, made(handle)).run()
    assert box.stats().pending == 1  # and the first comes back with the end of its lease


def test_what_had_finished_before_the_shortage_is_acknowledged(is_short):
    box = InMemoryMailbox("jobs")

    async def handle(body):
        if body == "unlucky":
            is_short.set()
            raise NO_HANDLE

    worker = Worker(box, handle, config=WorkerConfig(concurrency=10))
    box.send_batch(["unlucky", "done"])
    with in_background(worker, visibility_timeout=30):
        eventually(lambda: box.stats().in_flight == 1)
        assert is_short.is_set()


def test_a_message_that_has_not_begun_is_undone_and_the_worker_ends(made, monkeypatch):
    box = InMemoryMailbox("jobs")
    box.send_expecting_reply("asked")
    worker = Worker(box, made(lambda body: body))

    async def no_thread(message):
        raise NO_THREAD

    monkeypatch.setattr(worker._inbox, "start", no_thread)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.run()
    (message,) = box.receive()
    assert message.delivery_count == 1


SERVE = """
import asyncio, json, os, resource, sys
from weakincentives import connect
from weakincentives.runtime import Worker, WorkerConfig

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
inside, most = 0, 0

async def handle(number: int) -> None:
    global inside, most
    inside += 1
    most = max(most, inside)
    if inside == 1000:
        everyone.set()
    await everyone.wait()

async def main(url: str, name: str) -> None:
    global everyone
    everyone = asyncio.Event()
    with connect(url) as backend:
        worker = Worker(backend.mailbox(name), handle, config=WorkerConfig(concurrency=1000))
        running = asyncio.create_task(worker.run_async())
        await everyone.wait()
        handles = len(os.listdir("/proc/self/fd"))
        await worker.shutdown_async()
        await running
    print(json.dumps({"most": most, "handles": handles}))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="NOT RUN: it reads /proc")
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_thousand_jobs_at_once_need_few_file_handles(kind, tmp_path, request):
    url = (
        f"sqlite:///{tmp_path}/jobs.db?durability=normal"
        if kind == "sqlite"
        else request.getfixturevalue("redis_url")
    )
    name = f"jobs-{new_id()}"
    with connect(url) as backend:
        backend.mailbox(name).send_batch(list(range(1000)))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", SERVE, url, name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert facts["most"] == 1000
        assert facts["handles"] < 50
        assert backend.mailbox(name).stats().total == 0
